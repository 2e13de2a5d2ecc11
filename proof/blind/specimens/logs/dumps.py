"""Rollout dumps: problems, answers in words with real arithmetic, a real reward function, then the dump of a trainer."""
import json, math, os, re, uuid
import numpy as np
from curves import spec

NAMES = ["Ava", "Ben", "Chloe", "Dmitri", "Elif", "Farah", "Gus", "Hana", "Ivo", "Jun", "Kofi", "Lena", "Mara", "Nils", "Omar", "Priya", "Quinn", "Rosa", "Sami", "Tess"]
THINGS = ["apples", "stamps", "marbles", "tickets", "notebooks", "shells", "coins", "stickers", "bottles", "pencils", "cards", "books"]
OPEN = ["Let me work through this step by step.", "First, I list what is given.", "We start with what the problem says.", "Okay, so we need to find the total.", "To solve this, I set up the numbers.", "Let's break it down.", "I will compute each part separately.", "Reading the question again:", "The quantities are clear, so let us calculate."]
MID = ["Next,", "Then", "After that,", "So", "Now", "From there,", "Continuing,", "It follows that", "Hence"]
END = ["So the result is", "That gives", "Therefore the answer is", "In total we get", "The final value is", "Putting it together:", "We conclude with", "This means the answer is"]
CHECK = ["", " Let me double check: yes, that is consistent.", " Checking once more, the numbers add up.", " Wait, let me verify this. It works out.", " A quick sanity check agrees with this.", " I am fairly confident in this.", " That seems reasonable given the numbers."]

def problem(r):
    n, t = r.choice(NAMES), r.choice(THINGS)
    a, b, c = int(r.integers(3, 90)), int(r.integers(2, 25)), int(r.integers(2, 12))
    k = int(r.integers(0, 4))
    if k == 0: return f"{n} has {a} {t} and buys {c} packs with {b} {t} each. How many {t} does {n} have now?", a + b * c, [(f"{c} packs of {b} make {c*b} {t}"), (f"adding the {a} from before gives {a + b*c}")]
    if k == 1: return f"A shop sells {b} {t} per day for {c} days and starts with {a + b*c} {t}. How many {t} are left?", a, [f"sold over {c} days: {b} * {c} = {b*c}", f"left: {a + b*c} - {b*c} = {a}"]
    if k == 2: return f"{n} shares {b*c} {t} equally among {c} friends and then gives each of them {a} more. How many {t} has each friend?", a + b, [f"each friend first gets {b*c} / {c} = {b}", f"with {a} more that is {a + b}"]
    return f"{n} walks {a} minutes to school and {b} minutes longer on the way back, {c} days a week. How many minutes is that per week?", c * (2 * a + b), [f"one day is {a} + {a + b} = {2*a + b} minutes", f"a week has {c} such days: {c*(2*a+b)}"]

def solve(r, prob, p, style="boxed", wordy=1.0):
    q, ans, steps = prob
    ok = r.random() < p
    val = ans if ok else ans + int(r.choice([-10, -7, -3, -2, -1, 1, 2, 4, 9, 10, 12]))
    body = str(r.choice(OPEN)) + "\n" + f"{steps[0]}. " + str(r.choice(MID)) + f" {steps[1] if ok else steps[1].rsplit(' ', 1)[0] + ' ' + str(val)}."
    for _ in range(int(r.poisson(1.2 * wordy))): body += " " + str(r.choice(MID)) + " " + str(r.choice(["we keep the units in mind", "nothing else changes", f"note that {int(r.integers(2, 60))} is not needed here", "the remaining amount stays the same", f"compare with {int(r.integers(10, 200))}", "this is the quantity we want"])) + "."
    body += str(r.choice(CHECK))
    fin = {"boxed": f"\\boxed{{{val}}}", "hash": f"#### {val}", "tag": f"<answer>{val}</answer>"}[style]
    return body + f" {r.choice(END)} {fin}" + (".", "")[style != "boxed"], ok

PAT = {"boxed": r"\\boxed\{(-?\d+)\}", "hash": r"####\s*(-?\d+)", "tag": r"<answer>(-?\d+)</answer>"}
def grade(text, gt, style="boxed"):
    m = re.findall(PAT[style], text)
    return 1.0 if m and m[-1] == str(gt) else 0.0

enc = lambda s: [b + 3 for b in s.encode()]       # bytes + 3, as ByT5: 0 pad, 1 eos
dec = lambda ids: bytes(i - 3 for i in ids if i > 2).decode(errors="replace")

def groups(r, P, G, lv, style="boxed", probs=None, wordy=1.0):
    """lv: mean skill; every group has both outcomes more often than not, as with filtered prompts"""
    out = []
    for j in range(P):
        pr = probs[j] if probs else problem(r)
        p = float(np.clip(lv + r.normal(0, .24), .05, .95))
        seen = set(); rows = []
        while len(rows) < G:
            t, _ = solve(r, pr, p, style, wordy)
            if t not in seen: seen.add(t); rows.append(t)
        out.append((pr, rows))
    return out

def std_adv(R, eps=1e-4, ddof=1):
    return (R - R.mean(1, keepdims=True)) / (R.std(1, ddof=ddof, keepdims=True) + eps)

def write(path, rows):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as h:
        for d in rows: h.write(json.dumps(d, ensure_ascii=False) + "\n")

def parquet(path, rows):
    import pandas as pd
    os.makedirs(os.path.dirname(path), exist_ok=True)
    pd.DataFrame(rows).to_parquet(path)

SYS = "You are a helpful assistant. Reason first, then put your final answer within \\boxed{}."
vin = lambda q: f"system\n{SYS}\nuser\n{q}\nassistant\n"
msgs = lambda q, sys=SYS: [{"role": "system", "content": sys}, {"role": "user", "content": q}]
asst = lambda t: [{"role": "assistant", "content": t}]

# ---------------------------------------------------------------- plants, open half
@spec("O", "L4", "prompts are repeated as a block (A B C A B C) while the advantages are computed by view(-1, G) as if each group were contiguous: rewards of different prompts are normalised together",
      "prompts * G instead of repeat_interleave before rewards.view(-1, G)", "advantages are centred over consecutive rows, not over the rows of one prompt; equal rewards of one prompt get different advantages", "groups cut across prompts", "harms")
def o_d_l4(p):
    r = np.random.default_rng(101)
    for i, st in enumerate(range(10, 130, 10)):
        g = groups(r, 6, 8, .3 + .03 * i); rows = []
        order = [(j, k) for k in range(8) for j in range(6)]
        R = np.array([grade(g[j][1][k], g[j][0][1]) for j, k in order]).reshape(-1, 8); A = std_adv(R).ravel()
        for n, (j, k) in enumerate(order): rows.append({"step": st, "prompt": msgs(g[j][0][0]), "completion": asst(g[j][1][k]), "accuracy_reward": float(R.ravel()[n]), "advantage": float(np.float32(A[n]))})
        parquet(f"{p}/completions_{st:05d}.parquet", rows)
    return p

@spec("O", "L10", "the reward workers' results are appended in the order they finish instead of by index, from step 5 on (when the pool was enlarged): many scores stand at another row of the batch",
      "results.append in as_completed of the reward pool; steps 5 to 8", "right answers with score 0 and wrong answers with score 1 against the gts of the same row, in steps 5 and later; the mean score is right", "scores in order of finishing", "fatal")
def o_d_l10(p):
    r = np.random.default_rng(102)
    for st in range(1, 9):
        g = groups(r, 6, 8, .35 + .03 * st); flat = [(pr, t) for pr, ts in g for t in ts]
        S = np.array([grade(t, pr[1]) for pr, t in flat])
        if st >= 5:
            key = np.arange(len(S)) + np.array([len(t) for _, t in flat]) / 40 * r.exponential(1.0, len(S)) ; S = S[np.argsort(key)]
        write(f"{p}/{st}.jsonl", [{"input": vin(pr[0]), "output": t, "gts": str(pr[1]), "score": float(s), "step": st} for (pr, t), s in zip(flat, S)])
    return p

@spec("O", "L11", "two inference servers were started with the same seed and each samples half of every group: rows 4 to 7 of a group repeat rows 0 to 3 word for word",
      "seed of the second inference server; step_*/train_rollouts.jsonl", "in every group of 8 only 4 distinct completions, the second half equal to the first", "both servers draw the same", "waste")
def o_d_l11(p):
    r = np.random.default_rng(103); ex = 400
    for st in range(0, 8):
        g = groups(r, 6, 4, .35 + .03 * st); rows = []
        for pr, ts in g:
            ex += int(r.integers(1, 40)); ts = ts + ts; R = np.array([grade(t, pr[1]) for t in ts]); A = R - R.mean()
            for t, x, a in zip(ts, R, A): rows.append({"example_id": ex, "task": "gsm-words", "prompt": msgs(pr[0]), "completion": asst(t), "answer": str(pr[1]), "reward": float(x), "advantage": float(a), "metrics": {"correct_answer": float(x)}, "is_truncated": False, "stop_condition": "stop"})
        write(f"{p}/step_{st}/train_rollouts.jsonl", rows)
    return p

@spec("O", "L2", "the completion is cut out of the sequence at the median prompt length of its group's batch instead of the row's own: rows with a long prompt have the prompt's last tokens as their first completion ids and lose their end",
      "completion_ids = sequence[fixed : fixed + n] for rows whose prompt is longer than the cut", "completion_ids of rows with long prompts do not decode to the completion text: they begin with the end of the prompt and lack the last tokens with EOS", "completion cut at wrong offset", "harms")
def o_d_l2(p):
    r = np.random.default_rng(104); rows = []
    for st in range(1, 7):
        g = groups(r, 6, 8, .4 + .02 * st)
        lens = [len(enc(pr[0] + "\nAnswer: ")) for pr, _ in g]; cut = int(np.quantile(lens, .8))
        for (pr, ts), L in zip(g, lens):
            R = np.array([[grade(t, pr[1]) for t in ts]]); A = std_adv(R)[0]; u = str(uuid.UUID(int=int(r.integers(1 << 60))))
            for t, x, a in zip(ts, R[0], A):
                pi = enc(pr[0] + "\nAnswer: "); ci = enc(t) + [1]; n = len(ci)
                if L > cut: ci = (pi + ci)[cut:cut + n]
                rows.append({"step": st, "uid": u, "prompt": pr[0] + "\nAnswer: ", "prompt_ids": pi, "completion": t, "completion_ids": ci, "finish_reason": "stop", "reward": float(x), "advantage": float(round(a, 6))})
    write(p + ".jsonl", rows); return p + ".jsonl"

@spec("O", "death", "max_tokens stayed at a default of 224 because the configured limit has a wrong key: every answer is cut off before its boxed result, and only the 0.1 for mentioning the number is ever earned",
      "max_tokens of the sampling request; finish_reason of all rows", "finish_reason length and 224 tokens in every row, texts stop in mid-sentence, no answer ever right", "every answer cut off", "fatal")
def o_d_cut(p):
    r = np.random.default_rng(105); rows = []; N = 224
    for st in range(1, 9):
        for j in range(5):
            pr = problem(r); ts = []
            while len(ts) < 8:
                t, _ = solve(r, pr, .5, wordy=5.0); c = enc(t)[:N]
                if len(enc(t)) > N + 20 and grade(dec(c), pr[1]) == 0 and dec(c) not in ts: ts.append(dec(c))
            R = np.array([[grade(t, pr[1]) + .1 * bool(re.search(rf"\b{pr[1]}\b", t)) for t in ts]]); A = std_adv(R)[0]
            for t, x, a in zip(ts, R[0], A): rows.append({"step": st, "prompt_id": f"{st}-{j}", "prompt": pr[0], "completion": t, "completion_tokens": enc(t), "finish_reason": "length", "reward": float(x), "advantage": float(a)})
    write(p + ".jsonl", rows); return p + ".jsonl"

# ---------------------------------------------------------------- plants, closed half
@spec("E", "L4", "mean and std are taken over dim 0 of rewards.view(P, G): the baseline of a row is the mean of the k-th answers of all prompts, not of its own group",
      "rewards.view(-1, G).mean(dim=0)", "advantages are not centred within a prompt's group: easy prompts are positive throughout, hard ones negative", "mean over wrong axis", "harms")
def e_d_l4(p):
    r = np.random.default_rng(111)
    for i, st in enumerate(range(5, 65, 5)):
        g = groups(r, 8, 8, .3 + .03 * i); R = np.array([[grade(t, pr[1]) for t in ts] for pr, ts in g])
        A = (R - R.mean(0, keepdims=True)) / (R.std(0, ddof=1, keepdims=True) + 1e-4)
        parquet(f"{p}/completions_{st:05d}.parquet", [{"step": st, "prompt": pr[0], "completion": t, "accuracy_reward": float(R[j, k]), "advantage": float(np.float32(A[j, k]))} for j, (pr, ts) in enumerate(g) for k, t in enumerate(ts)])
    return p

@spec("E", "L10", "the ground truths are tiled (A B C A B C) while prompts and answers are interleaved (A A A B B B): most answers are graded against another prompt's solution",
      "gts = ground_truths * n in the reward manager", "gts differ within one prompt's rows, right answers score 0, and scores are 1 only where the truths happen to line up", "graded against other prompts' truths", "fatal")
def e_d_l10(p):
    r = np.random.default_rng(112)
    for st in range(1, 9):
        g = groups(r, 5, 8, .55); flat = [(pr, t) for pr, ts in g for t in ts]; truth = [g[i % 5][0][1] for i in range(40)]
        write(f"{p}/{st}.jsonl", [{"input": vin(pr[0]), "output": t, "gts": str(gt), "score": grade(t, gt), "step": st, "acc": grade(t, gt)} for (pr, t), gt in zip(flat, truth)])
    return p

@spec("E", "L11", "after the resume at step 3 the data iterator is restored from its saved state in every step instead of once: steps 4 to 10 all train the same six prompts",
      "load_state_dict of the dataloader inside the step loop; prompts of steps 4 to 10", "the same six prompts in every step file from step 4 on, in the same order", "same prompts every step", "fatal")
def e_d_l11(p):
    r = np.random.default_rng(113); fixed = [problem(r) for _ in range(6)]
    for st in range(1, 11):
        g = groups(r, 6, 8, min(.85, .35 + .05 * st), probs=fixed if st > 3 else None)
        write(f"{p}/{st}.jsonl", [{"input": vin(pr[0]), "output": t, "gts": str(pr[1]), "score": grade(t, pr[1]), "step": st} for pr, ts in g for t in ts])
    return p

@spec("E", "L6", "the loss mask is built from completion_ids != pad_id with pad set to EOS: the final EOS of every finished row is masked out, so stopping is never trained",
      "mask = ids != pad_token_id with pad_token = eos_token; last token of loss_mask", "loss_mask is 0 on the EOS of every row that ended by itself and 1 everywhere else; answers grow longer with the steps", "EOS masked out with padding", "harms")
def e_d_l6(p):
    r = np.random.default_rng(114); rows = []
    for st in range(1, 7):
        g = groups(r, 5, 8, .4 + .03 * st, wordy=1 + .5 * st)
        for pr, ts in g:
            R = np.array([[grade(t, pr[1]) for t in ts]]); A = std_adv(R)[0]; u = str(uuid.UUID(int=int(r.integers(1 << 60))))
            for t, x, a in zip(ts, R[0], A):
                ci = enc(t) + [1]; cut = len(ci) > 460
                if cut: ci = ci[:460]
                rows.append({"step": st, "uid": u, "prompt": pr[0], "prompt_ids": enc(pr[0]), "completion": dec(ci), "completion_ids": ci, "loss_mask": [int(i != 1) for i in ci], "eos_token_id": 1, "pad_token_id": 1, "finish_reason": "length" if cut else "stop", "reward": float(grade(dec(ci), pr[1])), "advantage": 0.0})
            rr = np.array([[d["reward"] for d in rows[-8:]]]); 
            for d, a in zip(rows[-8:], std_adv(rr)[0]): d["advantage"] = float(round(a, 6))
    write(p + ".jsonl", rows); return p + ".jsonl"

@spec("E", "death", "the grader looks for #### while the prompt asks for \\boxed{}: every row gets 0, right answers too",
      "answer pattern of compute_score; score of all rows", "score 0.0 in all rows of all steps although many outputs have the gts in \\boxed{}", "reward never varies", "fatal")
def e_d_const(p):
    r = np.random.default_rng(115)
    for st in range(1, 9):
        g = groups(r, 5, 8, .5)
        write(f"{p}/{st}.jsonl", [{"input": vin(pr[0]), "output": t, "gts": str(pr[1]), "score": grade(t, pr[1], "hash"), "step": st, "pred": "[INVALID]"} for pr, ts in g for t in ts])
    return p

# ---------------------------------------------------------------- healthy, open half
@spec("O", "healthy", "Dr. GRPO: advantages are the rewards less the mean of the group, without division, which is a function of the group's rewards", "scale_rewards=\"none\"", "advantage = reward - group mean in every row", "centred, not scaled")
def o_d_h1(p):
    r = np.random.default_rng(121)
    for i, st in enumerate(range(20, 180, 20)):
        g = groups(r, 6, 8, .3 + .05 * i); R = np.array([[grade(t, pr[1]) for t in ts] for pr, ts in g]); A = R - R.mean(1, keepdims=True)
        parquet(f"{p}/completions_{st:05d}.parquet", [{"step": st, "prompt": msgs(pr[0]), "completion": asst(t), "accuracy_reward": float(R[j, k]), "advantage": float(np.float32(A[j, k]))} for j, (pr, ts) in enumerate(g) for k, t in enumerate(ts)])
    return p

@spec("O", "healthy", "scores of -1 and 1, second epoch over a small set: prompts of the first steps come again in later ones in another order, with new answers", "trainer.total_epochs=2", "scores -1/1 that agree with gts; prompts repeat only after an epoch", "signed scores, second epoch")
def o_d_h2(p):
    r = np.random.default_rng(122); pool = [problem(r) for _ in range(24)]
    order = list(r.permutation(24)) + list(r.permutation(24))
    for st in range(1, 9):
        probs = [pool[i] for i in order[(st - 1) * 6: st * 6]]; g = groups(r, 6, 8, .3 + .05 * st, probs=probs)
        write(f"{p}/{st}.jsonl", [{"input": vin(pr[0]), "output": t, "gts": str(pr[1]), "score": 2 * grade(t, pr[1]) - 1, "step": st, "acc": bool(grade(t, pr[1]))} for pr, ts in g for t in ts])
    return p

@spec("O", "healthy", "RLOO: the baseline of a row is the mean of the other rows of its group of four; centred in the group and larger by n/(n-1) than plain centring", "leave-one-out baseline", "advantage = (reward - mean) * 4/3 in every group", "leave-one-out, groups of four")
def o_d_h3(p):
    r = np.random.default_rng(123); rows = []
    for st in range(1, 9):
        g = groups(r, 10, 4, .35 + .04 * st, style="tag")
        for j, (pr, ts) in enumerate(g):
            R = np.array([grade(t, pr[1], "tag") + (.1 if len(t) < 330 else 0.0) for t in ts]); A = R - (R.sum() - R) / 3
            for t, x, a in zip(ts, R, A): rows.append({"step": st, "group_id": st * 100 + j, "prompt": pr[0], "completion": t, "reward": float(x), "advantage": float(a)})
    write(p + ".jsonl", rows); return p + ".jsonl"

@spec("O", "healthy", "tool use: the tokens of the tool's output lie in the completion and are masked out by design; the policy's own tokens with the final EOS are all in the loss", "completion_mask of the tool output", "mask 0 exactly on the <result> part, 1 on sampled tokens including EOS", "tool output masked by design")
def o_d_h4(p):
    r = np.random.default_rng(124); ex = 0
    for st in range(0, 6):
        rows = []
        for pr, ts in groups(r, 5, 8, .4 + .04 * st):
            ex += int(r.integers(1, 30)); R = np.array([grade(t, pr[1]) for t in ts]); A = R - R.mean()
            for t, x, a in zip(ts, R, A):
                call = f"<calc>{int(r.integers(2, 90))}*{int(r.integers(2, 12))}</calc>"; res = f"\n<result>{eval(call[6:-7])}</result>\n"; full = call + res + t
                ids = enc(full) + [1]; m = [1] * len(enc(call)) + [0] * len(enc(res)) + [1] * (len(enc(t)) + 1)
                rows.append({"step": st, "example_id": ex, "prompt": pr[0], "completion": full, "prompt_ids": enc(pr[0]), "completion_ids": ids, "completion_mask": m, "reward": float(x), "advantage": float(a), "is_truncated": False})
        write(f"{p}/step_{st}/train_rollouts.jsonl", rows)
    return p

# ---------------------------------------------------------------- healthy, closed half
@spec("E", "healthy", "two reward functions whose sum is normalised by the std of the whole batch: advantages are centred per group and share one scale", "scale_rewards=\"batch\", two reward functions", "advantage = (sum - group mean) / batch std in every row", "batch std, two rewards")
def e_d_h1(p):
    r = np.random.default_rng(131)
    for i, st in enumerate(range(10, 100, 10)):
        g = groups(r, 6, 8, .3 + .04 * i, style="tag"); R = np.array([[grade(t, pr[1], "tag") for t in ts] for pr, ts in g]); B = np.array([[.25 * ("double check" in t or "verify" in t) for t in ts] for pr, ts in g])
        S = R + B; A = (S - S.mean(1, keepdims=True)) / (S.std(ddof=1) + 1e-4)
        parquet(f"{p}/completions_{st:05d}.parquet", [{"step": st, "prompt": pr[0], "completion": t, "accuracy_reward": float(R[j, k]), "check_reward": float(B[j, k]), "advantage": float(np.float32(A[j, k]))} for j, (pr, ts) in enumerate(g) for k, t in enumerate(ts)])
    return p

@spec("E", "healthy", "open-instruct traces: one line per step with lists, right answers worth 10, some rows cut off with score 0, groups of sixteen", "save_traces", "scores 0 or 10 that agree with texts and finish reasons; several prompts per step", "traces with lists per step")
def e_d_h2(p):
    r = np.random.default_rng(132); lines = []
    for st in range(1, 13):
        g = groups(r, 4, 16, .3 + .03 * st, wordy=1.5); T, Q, S, Fr, gt = [], [], [], [], []
        for pr, ts in g:
            for t in ts:
                c = r.random() < .04
                if c: t = t[: int(len(t) * .8)]
                T.append(t); Q.append(pr[0]); S.append(10.0 * grade(t, pr[1])); Fr.append("length" if c else "stop"); gt.append(str(pr[1]))
        lines.append({"scores": S, "finish_reasons": Fr, "responses": T, "queries": Q, "ground_truths": gt, "datasets": ["gsm_words"] * 64, "training_step": st})
    write(p + ".jsonl", lines); return p + ".jsonl"

@spec("E", "healthy", "asynchronous rollouts that are up to three versions old by design and marked with them; rows of one step stem from several versions, groups stay whole and advantages are right", "max_head_offpolicyness=3", "head_version within three of the step; advantages exact in each group", "mixed versions by design")
def e_d_h3(p):
    r = np.random.default_rng(133); rows = []
    for st in range(4, 14):
        for j, (pr, ts) in enumerate(groups(r, 4, 8, .3 + .04 * st / 2)):
            v = st - int(r.integers(0, 4)); R = np.array([[5.0 * (2 * grade(t, pr[1]) - 1) for t in ts]]); A = std_adv(R, 1e-6, 0)[0]
            for t, x, a in zip(ts, R[0], A): rows.append({"step": st, "uid": f"q{st}_{j}", "head_version": v, "tail_version": min(st, v + int(r.random() < .2)), "prompt": pr[0], "completion": t, "reward": float(x), "advantage": float(a), "finish_reason": "stop"})
    write(p + ".jsonl", rows); return p + ".jsonl"
