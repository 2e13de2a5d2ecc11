"""Writes the logs of this folder. One simulator of a GRPO run (prompts of different difficulty, groups, lengths, drift of
the policy), and a writer per trainer. `python make.py` needs numpy, pyarrow, tensorboard."""
import csv, json, math, os, random, shutil
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sig = lambda x: 1 / (1 + np.exp(-x))


class Sim:
    def __init__(self, seed, steps, B=32, G=8, skill=-0.6, pace=0.03, L0=420, max_len=2048, grow=0.0, H0=0.62, Hmin=0.16,
                 kl_scale=0.02, g0=0.22, lr=1e-6, schedule=None, spread=1.2, reward=None, moving=None, clip0=0.0015):
        self.__dict__.update(locals())
        self.rng = np.random.default_rng(seed)
        self.d = self.rng.normal(0, spread, 600)
        self.s, self.dist, self.walk, self.ar, self.glen = skill, 0.0, 0.0, 0.0, 0.0

    def rate(self, t):
        return 1.0 if self.schedule is None else self.schedule(t)

    def __iter__(self):
        for t in range(1, self.steps + 1):
            yield self.step(t)

    def step(self, t):
        r = self.rng
        f = self.rate(t)
        idx = r.choice(len(self.d), self.B, replace=False)
        d = self.d[idx]
        p = sig(1.15 * (self.s - d) + r.normal(0, 0.25, self.B))
        R = (r.random((self.B, self.G)) < p[:, None]).astype(float)
        L = self.L0 * math.exp(self.glen)
        lens = L * np.exp(r.normal(0, 0.38, R.shape) + 0.14 * d[:, None] + 0.12 * (1 - R))
        cut = lens >= self.max_len
        R[cut] = 0.0
        lens = np.maximum(np.where(cut, self.max_len, lens), 5).round()
        score = R if self.reward is None else self.reward(R, lens, r)
        gs = score.std(1, ddof=1)
        inform = R.std(1, ddof=1).mean()
        self.ar = 0.6 * self.ar + r.normal(0, 0.010)
        H = self.Hmin + (self.H0 - self.Hmin) * math.exp(-1.1 * self.dist)
        kl = self.kl_scale * (self.dist ** 2 + 0.25 * self.walk)
        adv = (score - score.mean(1, keepdims=True)) / (gs[:, None] + 1e-6)
        out = dict(
            t=t, R=R, score=score, reward=score.mean(), reward_std=score.std(ddof=1), group_std=gs.mean(),
            rmin=score.min(), rmax=score.max(), zero=float((gs < 1e-8).mean()),
            none=float((R.sum(1) == 0).mean()), every=float((R.sum(1) == self.G).mean()),
            length=lens.mean(), lmax=lens.max(), lmin=lens.min(), cut=float(cut.mean()),
            term=lens[~cut].mean() if (~cut).any() else 0.0,
            H=max(0.01, H * (1 + self.ar)), kl=kl * math.exp(r.normal(0, 0.07)) if t > 1 else 0.0,
            gnorm=self.g0 * (0.25 + inform / 0.4) * math.exp(r.normal(0, 0.13)) * (3.0 if r.random() < 0.008 else 1),
            lr=self.lr * f, clip=self.clip0 * max(f, 0) * math.exp(r.normal(0, 0.3)) if t > 0 else 0.0,
            pg=r.normal(-0.002, 0.008), amin=adv.min(), amax=adv.max(), amean=adv.mean(), inform=inform,
            plen=r.normal(118, 4), sec=L * 0.06 * math.exp(r.normal(0, 0.08)) + 20, dist=self.dist)
        if self.moving is None or self.moving(t):
            self.s += self.pace * f * (inform / 0.4) * (1 + 0.25 * r.normal())
            self.dist += self.pace * f * 0.35 * (0.4 + inform / 0.4)
            self.walk += self.pace * f
            self.glen += self.grow * f * (1 + 0.5 * r.normal())
        return out


def warm(n, total=None, kind="constant"):
    def f(t):
        if t <= n:
            return t / n
        if kind == "constant":
            return 1.0
        x = (t - 1 - n) / max(total - 1 - n, 1)
        return 1 - x if kind == "linear" else 0.5 * (1 + math.cos(math.pi * x))
    return f


def path(name):
    return os.path.join(HERE, name)


def jsonl(name, rows):
    os.makedirs(os.path.dirname(path(name)) or ".", exist_ok=True)
    with open(path(name), "w") as f:
        for r in rows:
            f.write(json.dumps(r) + "\n")


fl = float


# ---- writers -------------------------------------------------------------------------------------------------------
def trl_row(o, beta, t, steps):
    o["clip"] = 0.0  # one update per generation
    row = {
        "clip_ratio/high_max": round(4 * o["clip"], 8), "clip_ratio/high_mean": o["clip"] * 0.55, "clip_ratio/low_mean": o["clip"] * 0.45,
        "clip_ratio/low_min": 0.0, "clip_ratio/region_mean": o["clip"],
        "completions/clipped_ratio": fl(o["cut"]), "completions/max_length": fl(o["lmax"]), "completions/mean_length": fl(o["length"]),
        "completions/min_length": fl(o["lmin"]), "completions/mean_terminated_length": fl(o["term"]),
        "entropy": fl(o["H"]), "epoch": round(t / 180, 4), "frac_reward_zero_std": o["zero"], "grad_norm": fl(o["gnorm"]),
        "learning_rate": o["lr"], "loss": round(fl(o["pg"] + beta * o["kl"]), 4), "num_tokens": fl(t * 300000), "reward": fl(o["reward"]),
        "reward_std": fl(o["reward_std"]), "rewards/accuracy_reward/mean": fl(o["reward"]), "rewards/accuracy_reward/std": fl(o["reward_std"]),
        "step": t, "step_time": fl(o["sec"])}
    if beta:
        row["kl"] = fl(o["kl"])
    return row


def trl_state(folder, rows, steps, args=None):
    os.makedirs(path(folder), exist_ok=True)
    state = {"best_metric": None, "best_model_checkpoint": None, "epoch": rows[-1]["epoch"], "eval_steps": 500, "global_step": rows[-1]["step"],
             "is_hyper_param_search": False, "is_local_process_zero": True, "is_world_process_zero": True, "log_history": rows,
             "logging_steps": 1, "max_steps": steps, "num_input_tokens_seen": int(rows[-1]["num_tokens"]), "num_train_epochs": 2,
             "save_steps": 100, "total_flos": 0.0, "train_batch_size": 16, "trial_name": None, "trial_params": None}
    with open(path(folder + "/trainer_state.json"), "w") as f:
        json.dump(state, f, indent=2)
    if args:
        with open(path(folder + "/args.json"), "w") as f:
            json.dump(args, f, indent=1)


def verl(o, kl=True, val=None, **more):
    row = {
        "global_seqlen/mean": o["length"] * 32 + 4000, "actor/entropy": o["H"], "actor/pg_loss": o["pg"], "actor/pg_clipfrac": o["clip"],
        "actor/ppo_kl": o["k1"] if "k1" in o else 0.0, "actor/pg_clipfrac_lower": 0.0, "actor/grad_norm": o["gnorm"], "actor/lr": o["lr"],
        "critic/score/mean": o["reward"], "critic/score/max": o["rmax"], "critic/score/min": o["rmin"],
        "critic/rewards/mean": o["reward"], "critic/rewards/max": o["rmax"], "critic/rewards/min": o["rmin"],
        "critic/advantages/mean": o["amean"], "critic/advantages/max": o["amax"], "critic/advantages/min": o["amin"],
        "response_length/mean": o["length"], "response_length/max": o["lmax"], "response_length/min": o["lmin"],
        "response_length/clip_ratio": o["cut"], "prompt_length/mean": o["plen"], "prompt_length/max": o["plen"] + 90,
        "timing_s/gen": o["sec"] * 0.6, "timing_s/update_actor": o["sec"] * 0.3, "timing_s/step": o["sec"],
        "perf/throughput": o["length"] * 256 / o["sec"], "training/global_step": o["t"], "training/epoch": o["t"] // 58}
    if kl:
        row["actor/kl_loss"], row["actor/kl_coef"] = o["kl"], 0.001
    if val is not None:
        row["val-core/openai/gsm8k/acc/mean@1"] = val
    row.update(more)
    return {k: fl(v) for k, v in row.items()}


def skyrl(o, diff, loss=None, **more):
    row = {"policy/final_loss": o["pg"] + 0.001 * o["kl"], "policy/policy_loss": o["pg"], "policy/policy_kl": o["kl"],
           "policy/policy_entropy": o["H"], "policy/ppo_clip_ratio": o["clip"], "policy/raw_grad_norm": o["gnorm"],
           "policy/policy_lr": o["lr"], "reward/avg_raw_reward": o["reward"], "reward/avg_pass_at_8": 1 - o["none"],
           "loss/avg_final_rewards": o["reward"], "generate/avg_num_tokens": o["length"], "generate/max_num_tokens": o["lmax"],
           "generate/min_num_tokens": o["lmin"], "policy/rollout_train_logprobs_abs_diff_mean": diff,
           "policy/rollout_train_logprobs_abs_diff_max": diff * 60, "trainer/global_step": o["t"], "trainer/epoch": o["t"] // 58,
           "timing/step": o["sec"]}
    row.update(more)
    return {k: fl(v) for k, v in row.items()}


# ---- rollouts ------------------------------------------------------------------------------------------------------
NAMES = "Ada Ben Cleo Dov Eve Finn Gus Hana Ivo June Kai Lea Max Nora Omar Pia".split()
THINGS = "apples pens coins stamps shells marbles cards nuts books beads".split()


def question(r):
    a, b, c = r.randint(12, 90), r.randint(3, 40), r.randint(2, 9)
    n, m = r.sample(NAMES, 2)
    th = r.choice(THINGS)
    kind = r.randrange(3) if a * c > b + 5 else r.randrange(2)
    if kind == 0:
        return f"{n} has {a} {th} and buys {c} bags of {b} {th} each. How many {th} does {n} have now?", a + b * c
    if kind == 1:
        return f"{n} had {a + b} {th}, gave {b} to {m} and then found {c} more. How many {th} does {n} have?", a + c
    return f"{n} and {m} collect {th}. {n} finds {a}, {m} finds {b} fewer than {c} times as many. How many did {m} find?", a * c - b


OPEN = ["Let me work through this.", "First I write down what is known.", "Okay, step by step.", "We need the final count.", "So,", "Let us see.",
        "I will go through the numbers.", "To begin with, look at what is given.", "Reading the question again:", "Hmm, let me think."]
MID = ["That means I combine the amounts one after the other", "Adding up carefully gives me the next amount", "So the running total changes here",
       "Taking the two numbers together I get a partial result", "Then the remaining part has to be put in as well", "I check this once more against the text",
       "Multiplying comes before adding, so I do that first", "Nothing else is given away or lost after that", "The order does not matter at this point"]
LAST = ["Therefore the answer is \\boxed{%s}.", "So the final answer is \\boxed{%s}.", "This gives \\boxed{%s}", "Hence, \\boxed{%s}.", "Final result: \\boxed{%s}"]


def solution(r, gold, right):
    ans = gold if right else gold + r.choice([-10, -9, -3, -2, -1, 1, 2, 3, 5, 10, 11])
    body = [r.choice(OPEN)]
    for _ in range(r.randint(1, 4)):
        body.append(r.choice(MID) + f" ({r.randint(2, 99)} {r.choice('+-*')} {r.randint(2, 40)}).")
    return " ".join(body) + " " + r.choice(LAST) % ans, ans


def batch(r, step, n_prompts, G, skill):
    """Groups of rows with texts; the share of right answers follows the prompt's difficulty."""
    groups = []
    for g in range(n_prompts):
        q, gold = question(r)
        p = 1 / (1 + math.exp(-(skill + r.gauss(0, 1.3))))
        rows = []
        for _ in range(G):
            right = r.random() < p
            text, ans = solution(r, gold, right)
            cut = r.random() < 0.05
            if cut:
                text, right = text[: int(len(text) * r.uniform(0.5, 0.75))], False
            rows.append(dict(q=q, gold=gold, text=text, right=float(right), cut=cut, g=g, step=step))
        groups.append(rows)
    return groups


# ---- specimens -----------------------------------------------------------------------------------------------------
KEYS = [f"q{i:02d}" for i in range(1, 15)] + [f"k{i:02d}" for i in range(1, 12)]
random.Random(4242).shuffle(KEYS)
NUM = {k: f"a{i + 1:02d}" for i, k in enumerate(KEYS)}
MADE = {}


def named(key, ext=""):
    MADE[key] = NUM[key] + ext
    return MADE[key]


def q01():
    rows = []
    for o in Sim(101, 220, B=16, G=8, pace=0.02, lr=2e-6, schedule=warm(10), L0=310, max_len=1024, kl_scale=0.05):
        row = trl_row(o, 0.04, o["t"], 220)
        if o["t"] == 136:
            row["grad_norm"] = 41.7
        if o["t"] >= 137:
            row["loss"] = 0.0
            for k in ("grad_norm", "kl", "entropy"):
                row[k] = float("nan")
            for k in ("clip_ratio/high_max", "clip_ratio/high_mean", "clip_ratio/low_mean", "clip_ratio/region_mean"):
                row[k] = 0.0
        if o["t"] >= 138:
            for k in ("reward", "reward_std", "rewards/accuracy_reward/mean", "rewards/accuracy_reward/std"):
                row[k] = 0.0
            row.update({"completions/clipped_ratio": 1.0, "completions/max_length": 1024.0, "completions/mean_length": 1024.0,
                        "completions/min_length": 1024.0, "completions/mean_terminated_length": 0.0, "frac_reward_zero_std": 1.0})
        rows.append(row)
    trl_state(named("q01"), rows, 220)


def q02():
    r = np.random.default_rng(5)
    with open(path(named("q02", ".log")), "w") as f:
        f.write("(TaskRunner pid=18221) Total training steps: 140\n")
        for o in Sim(102, 140, B=32, G=8, skill=-0.3, lr=0.0, moving=lambda t: False, L0=260, max_len=1024, clip0=0.0):
            o["clip"], o["k1"], o["kl"] = 0.0, r.normal(0, 2e-6), abs(r.normal(4.1e-4, 3e-5))
            row = verl(o)
            f.write(f"(TaskRunner pid=18221) step:{o['t']} - " + " - ".join(f"{k}:{v!r}" for k, v in row.items()) + "\n")


def q03():
    rows = []
    r = np.random.default_rng(6)
    sim = Sim(103, 170, B=32, G=8, pace=0.09, lr=5e-5, L0=350, max_len=1536, kl_scale=0.04, clip0=0.02, g0=0.6)
    for o in sim:
        t = o["t"]
        x = max(0.0, (t - 78) / 22)
        hurt = 1 / (1 + math.exp(-4 * (x - 1))) if x > 0 else 0.0
        reward = o["reward"] * (1 - hurt) + 0.003 * hurt * r.random()
        length = o["length"] * (1 - hurt) + hurt * (1536 - 9 * r.random())
        rows.append({
            "policy_loss": o["pg"] + hurt * r.normal(0, 0.3), "actor_lr": o["lr"], "actor_grad_norm": o["gnorm"] * (1 + 18 * hurt * r.random()),
            "ppo_clip_ratio": min(0.55, o["clip"] * 2 + 0.35 * hurt * r.random()), "ppo_kl": abs(r.normal(0.004, 0.002)) + hurt * abs(r.normal(0.2, 0.1)),
            "entropy_loss": o["H"] + hurt * (5.5 + r.normal(0, 0.4)), "kl": o["kl"] + 0.004 * abs(r.normal()) + 6.5 * hurt * (1 + 0.1 * r.normal()),
            "reward": reward, "return": reward, "response_length": length, "total_length": length + o["plen"],
            "truncated": o["cut"] * (1 - hurt) + hurt * (1 - 0.02 * r.random()), "timing/make_experience": o["sec"], "global_step": t})
    jsonl(named("q03", ".jsonl"), [{k: fl(v) if k != "global_step" else v for k, v in x.items()} for x in rows])


def q04():
    r = np.random.default_rng(7)
    rows, dist0 = [], None
    for o in Sim(104, 260, B=32, G=8, pace=0.022, lr=1e-6, L0=500, max_len=3000,
                 schedule=lambda t: 1.0):
        diff = 0.0112 * math.exp(r.normal(0, 0.05))
        if o["t"] > 96:
            dist0 = o["dist"] if dist0 is None else dist0
            gone = o["dist"] - dist0
            diff = math.hypot(diff, 0.16 * gone) * math.exp(r.normal(0, 0.04))
            # answers come from the weights of step 96: what is measured of them stands still
            o["reward"] = last["reward"] + r.normal(0, 0.02)
            o["length"], o["none"] = last["length"] * math.exp(r.normal(0, 0.02)), last["none"]
        else:
            last = o
        rows.append(skyrl(o, diff))
    jsonl(named("q04", ".jsonl"), rows)


def q05():
    r = np.random.default_rng(8)
    rows = []
    for o in Sim(105, 180, B=32, G=8, pace=0.02, lr=1e-6, H0=0.55, Hmin=0.2, L0=900, max_len=8192):
        d = 0.30 * o["H"] * math.exp(r.normal(0, 0.03))
        rows.append({k: fl(v) for k, v in {
            "rollout/step": o["t"], "rollout/raw_reward": o["reward"], "rollout/rewards": r.normal(0, 1e-8), "rollout/response_len/mean": o["length"],
            "rollout/response_len/max": o["lmax"], "rollout/response_len/min": o["lmin"], "rollout/truncated_ratio": o["cut"],
            "rollout/log_probs": -o["H"] * 0.62, "rollout/rollout_log_probs": -o["H"] * 0.37, "train/loss": o["pg"] + 1e-3 * o["kl"], "train/pg_loss": o["pg"],
            "train/entropy_loss": o["H"], "train/pg_clipfrac": 0.0, "train/ppo_kl": 0.0, "train/kl_loss": o["kl"], "train/grad_norm": o["gnorm"],
            "train/lr-pg_0": o["lr"], "train/train_rollout_logprob_abs_diff": d, "train/step": o["t"], "perf/rollout_time": o["sec"]}.items()})
    jsonl(named("q05", ".jsonl"), rows)


def q06():
    rows, base = [], 0.0
    r = np.random.default_rng(9)
    for o in Sim(106, 400, B=16, G=8, pace=0.016, lr=1e-6, kl_scale=0.11, L0=280, max_len=768):
        if (o["t"] - 1) % 100 == 0:
            base = o["dist"]
        o["kl"] = 0.0 if (o["t"] - 1) % 100 == 0 else 0.11 * ((o["dist"] - base) ** 2 + 0.004 * ((o["t"] - 1) % 100) * 0.25) * math.exp(r.normal(0, 0.07))
        rows.append(trl_row(o, 0.04, o["t"], 400))
    trl_state(named("q06"), rows, 400, {"learning_rate": 1e-6, "beta": 0.04, "num_generations": 8, "max_completion_length": 768, "temperature": 1.0,
                                         "sync_ref_model": False, "max_grad_norm": 1.0, "weight_decay": 0.0, "num_iterations": 1, "steps_per_generation": 1})


def torchtune(folder, sim, sign, seed):
    from torch.utils.tensorboard import SummaryWriter
    w = SummaryWriter(path(folder))
    r = np.random.default_rng(seed)
    for o in sim:
        kl = o["kl"]
        if sign < 0:
            kl = o["kl"] + 0.004 * math.expm1(min(o["t"] / 31, 6.5)) * math.exp(r.normal(0, 0.06))
        vals = {"loss": o["pg"] + sign * 0.02 * kl, "policy_loss": o["pg"], "kl_loss": kl, "clipfrac": o["clip"], "ratios": 1 + r.normal(0, 4e-4) * o["lr"] / 1e-6,
                "approx_policy_kl": abs(r.normal(3e-4, 1e-4)) * (o["lr"] / 1e-6) ** 2, "rewards": o["reward"], "successes": o["reward"], "response_lengths": o["length"],
                "num_stop_tokens": (1 - o["cut"]) * 64, "lr": o["lr"], "grad_norm": o["gnorm"], "tokens_per_second_per_gpu": 900 + r.normal(0, 20)}
        for k, v in vals.items():
            w.add_scalar(k, float(v), o["t"])
    w.close()


def q07():
    torchtune(named("q07"), Sim(107, 190, B=16, G=8, pace=0.02, lr=1e-6, kl_scale=0.03, L0=300, max_len=512), -1, 10)


def q08():
    r = np.random.default_rng(11)
    rows = []
    for o in Sim(108, 160, B=32, G=8, pace=0.018, lr=1e-6, L0=330, max_len=1024, skill=-0.2):
        o["k1"] = 0.115 * o["H"] * math.exp(r.normal(0, 0.05))
        o["clip"] = 0.085 * o["H"] / 0.5 * math.exp(r.normal(0, 0.06))
        o["pg"] = 0.012 + r.normal(0, 0.008)
        rows.append({"step": o["t"], "data": verl(o, **({"val-core/openai/gsm8k/acc/mean@1": min(0.95, o["reward"] + 0.05)} if o["t"] % 20 == 0 else {}))})
    jsonl(named("q08", ".jsonl"), rows)


def q09():
    r = np.random.default_rng(12)
    rows = []
    for o in Sim(109, 320, B=32, G=16, pace=0.02, lr=3e-7, moving=lambda t: t <= 118, kl_scale=0.02, L0=700, max_len=4096, skill=-1.0):
        rows.append({k: fl(v) for k, v in {
            "train/loss": o["pg"] + 0.01 * o["kl"], "train/grad_norm": o["gnorm"], "train/lr": o["lr"], "train/wd": 0.01, "train/kl_penalty": o["kl"],
            "train/approx_entropy": o["H"], "train/probs_ratio": 1 + r.normal(0, 3e-5), "train/probs_ratio_min": 1 - abs(r.normal(0.01, 0.003)),
            "train/probs_ratio_max": 1 + abs(r.normal(0.012, 0.003)), "train/token_mult_prob_error": 1.012 + r.normal(0, 6e-4), "train/gen_kl_error": 4e-4 + r.normal(0, 3e-5),
            "train/sampling_importance_ratio": 1 + r.normal(0, 3e-4), "train/reward": o["reward"], "train/mean_total_reward": o["reward"], "train/min_total_reward": o["rmin"],
            "train/max_total_reward": o["rmax"], "train/mean_gen_tokens_per_sample": o["length"], "train/max_gen_tokens_per_sample": o["lmax"],
            "train/truncation_rate": o["cut"], "train/num_valid_samples": 512, "step": o["t"]}.items()})
    jsonl(named("q09", ".jsonl"), rows)


def prime_rollouts(folder, seed, steps, wrong):
    r = random.Random(seed)
    for step in steps:
        rows, before = [], None
        groups = batch(r, step, 8, 8, -0.4 + 0.05 * step)
        for g, grp in enumerate(groups):
            mean = sum(x["right"] for x in grp) / len(grp)
            base = before if wrong and g == len(groups) - 1 else mean
            before = mean
            for x in grp:
                rows.append({"step": step, "example_id": step * 100 + g, "task": "math", "prompt": [{"role": "user", "content": x["q"]}],
                             "completion": [{"role": "assistant", "content": x["text"]}], "answer": str(x["gold"]), "reward": x["right"],
                             "advantage": x["right"] - base, "is_truncated": x["cut"], "completion_len": len(x["text"]) // 4})
        jsonl(f"{folder}/step_{step}/train_rollouts.jsonl", rows)


def q10():
    prime_rollouts(named("q10"), 13, range(0, 24, 2), True)


def verl_rollouts(folder, seed, n, bad_from, short=False):
    r = random.Random(seed)
    for step in range(1, n + 1):
        rows = [x for grp in batch(r, step, 12, 5, -0.2 + 0.06 * step) for x in grp]
        if short:
            for x in rows:
                if r.random() < 0.25 and not x["cut"]:
                    x["text"] = "\\boxed{%d}" % (x["gold"] if x["right"] else x["gold"] + r.choice([-1, 1, 2]))
        scores = [x["right"] for x in rows]
        if bad_from and step >= bad_from:
            scores = scores[-1:] + scores[:-1]
        jsonl(f"{folder}/{step}.jsonl", [
            {"input": f"<|im_start|>user\n{x['q']} Put the answer in \\boxed{{}}.<|im_end|>\n<|im_start|>assistant\n", "output": x["text"], "gts": str(x["gold"]),
             "score": s, "step": step, "acc": s} for x, s in zip(rows, scores)])


def q11():
    verl_rollouts(named("q11"), 14, 12, 5)


def q12():
    import pyarrow as pa, pyarrow.parquet as pq
    r = random.Random(15)
    folder = named("q12")
    os.makedirs(path(folder), exist_ok=True)
    for step in range(1, 16):
        cols = {"step": [], "prompt": [], "completion": [], "accuracy_reward": [], "advantage": []}
        for grp in batch(r, step, 6, 8, -0.3 + 0.05 * step):
            for i in range(4, 8):
                grp[i] = grp[i - 4]
            v = np.array([x["right"] for x in grp])
            a = (v - v.mean()) / (v.std(ddof=1) + 1e-4)
            for x, adv in zip(grp, a):
                for k, val in zip(cols, (str(step), x["q"], x["text"], x["right"], float(adv))):
                    cols[k].append(val)
        pq.write_table(pa.table(cols), path(f"{folder}/completions_{step:05d}.parquet"))


def ids_rows(seed, steps, kind):
    r = random.Random(seed)
    rows = []
    for step in range(steps):
        for g, grp in enumerate(batch(r, step, 6, 6, -0.2 + 0.05 * step)):
            v = np.array([x["right"] for x in grp])
            for x, adv in zip(grp, v - v.mean()):
                p, c = list(x["q"].encode()), list(x["text"].encode())
                if not x["cut"]:
                    c = c + [256]
                mask = [1] * len(c)
                if kind == "shift" and len(p) >= 96:
                    c = p[-2:] + c
                    mask = [1] * len(c)
                if kind == "eos" and not x["cut"]:
                    mask[-1] = 0
                rows.append({"step": step, "group_id": f"{step}-{g}", "prompt": x["q"], "completion": x["text"], "prompt_ids": p, "completion_ids": c,
                             "loss_mask": mask, "reward": x["right"], "advantage": float(adv), "finish_reason": "length" if x["cut"] else "stop",
                             "ground_truth": str(x["gold"])})
    return rows


def q13():
    jsonl(named("q13", ".jsonl"), ids_rows(16, 8, "shift"))


def q14():
    jsonl(named("q14", ".jsonl"), ids_rows(17, 8, "eos"))


# ---- sound -------------------------------------------------------------------------------------------------------
def k01():
    rows = [trl_row(o, 0.0, o["t"], 300) for o in Sim(201, 300, B=16, G=8, skill=0.4, pace=0.055, lr=2e-6, L0=240, max_len=1024, spread=0.8,
                                                       schedule=warm(15, 300, "linear"))]
    trl_state(named("k01"), rows, 300)


def k02():
    r = np.random.default_rng(21)
    rows = []
    for o in Sim(202, 240, B=64, G=8, pace=0.018, lr=1e-6, L0=800, max_len=8192):
        lag = min(o["t"] - 1, 4)
        o["k1"] = r.normal(0, 2e-4)
        k3 = (0.0007 + 0.00035 * lag) * math.exp(r.normal(0, 0.06))
        rows.append({"step": o["t"], "data": verl(o, kl=False, **{
            "rollout_corr/rollout_is_mean": 1 - 0.4 * k3 + r.normal(0, 2e-4), "rollout_corr/rollout_is_max": 2.0, "rollout_corr/rollout_is_min": 0.02,
            "rollout_corr/k3_kl": k3, "rollout_corr/kl": k3 * 0.97, "training/rollout_probs_diff_mean": 0.004 + 0.0011 * lag + abs(r.normal(0, 2e-4)),
            "training/rollout_probs_diff_max": 0.7 + 0.2 * r.random()})})
    jsonl(named("k02", ".jsonl"), rows)


def k03():
    r = np.random.default_rng(22)
    score = lambda R, L, g: -3.2 + 2.6 * R + g.normal(0, 0.9, R.shape) - 0.0004 * L
    with open(path(named("k03", ".csv")), "w", newline="") as f:
        w = None
        for o in Sim(203, 200, B=32, G=4, pace=0.02, lr=5e-7, reward=score, L0=380, max_len=1024, schedule=warm(6)):
            row = {"global_step": o["t"], "policy_loss": o["pg"], "actor_lr": o["lr"], "actor_grad_norm": o["gnorm"] * 2.2, "ppo_clip_ratio": o["clip"], "ppo_kl": r.normal(1e-4, 2e-4) * o["lr"] / 5e-7,
                   "kl": o["kl"] + r.normal(0, 0.0012), "entropy_loss": o["H"], "reward": o["reward"], "return": o["reward"], "response_length": o["length"],
                   "total_length": o["length"] + o["plen"], "truncated": o["cut"], "timing/make_experience": o["sec"]}
            if w is None:
                w = csv.DictWriter(f, list(row))
                w.writeheader()
            w.writerow({k: fl(v) if k != "global_step" else v for k, v in row.items()})


def k04():
    r = np.random.default_rng(23)
    rows = []
    for o in Sim(204, 280, B=32, G=16, pace=0.017, lr=3e-6, L0=1200, max_len=8192, skill=-0.9):
        lag = min(o["t"] - 1, 6) / 6
        rows.append({k: fl(v) for k, v in {
            "step": o["t"], "loss/mean": o["pg"] * 0.1, "loss/std": 0.02 + 0.003 * r.random(), "entropy/mean": o["H"], "mismatch_kl/mean": (0.0009 + 0.0016 * lag) * math.exp(r.normal(0, 0.09)),
            "mismatch_kl/max": 3 + r.random(), "optim/grad_norm": o["gnorm"] * 0.3, "optim/lr": o["lr"], "reward/mean": o["reward"], "reward/std": o["reward_std"],
            "decode_len/mean": o["length"], "is_truncated/mean": o["cut"], "batch/solve_none": o["none"], "batch/solve_all": o["every"],
            "batch/effective_batch_size": 1 - o["none"] - o["every"], "batch/async_level": min(o["t"] - 1, 6), "perf/throughput": 8000 + r.normal(0, 300)}.items()})
    jsonl(named("k04") + "/metrics.jsonl", rows)


def k05():
    r = np.random.default_rng(24)
    rows = []
    for o in Sim(205, 400, B=48, G=8, pace=0.013, lr=5e-7, L0=900, max_len=8192, grow=0.0024, reward=lambda R, L, g: 10.0 * R, skill=-1.1):
        rows.append({k: fl(v) for k, v in {
            "training_step": o["t"], "episode": o["t"] * 384, "scores": o["reward"], "objective/kl3_avg": o["kl"], "objective/kl_avg": o["kl"] + r.normal(0, 0.0004), "policy/entropy_avg": o["H"],
            "policy/clipfrac_avg": o["clip"], "policy/approxkl_avg": abs(r.normal(2e-4, 5e-5)), "loss/policy_avg": o["pg"], "loss/kl_avg": 0.01 * o["kl"], "loss/total_avg": o["pg"] + 0.01 * o["kl"],
            "val/ratio": 1 + r.normal(0, 2e-4), "val/ratio_var": abs(r.normal(1e-5, 3e-6)), "val/stop_rate": 1 - o["cut"], "val/sequence_lengths": o["length"], "val/sequence_lengths_max": o["lmax"],
            "val/sequence_lengths_min": o["lmin"], "optim/grad_norm": o["gnorm"], "lr": o["lr"], "debug/vllm_vs_local_logprob_diff_mean": 0.009 * math.exp(r.normal(0, 0.05)),
            "debug/vllm_vs_local_logprob_diff_max": 1.2 + 0.4 * r.random(), "time/total": o["sec"]}.items()})
    jsonl(named("k05", ".jsonl"), rows)


def k06():
    r = np.random.default_rng(25)
    rows = []
    for o in Sim(206, 150, B=32, G=8, pace=0.016, lr=1e-6, H0=0.24, Hmin=0.15, L0=2600, max_len=16384, skill=0.1):
        d = 0.024 * math.exp(r.normal(0, 0.05))
        rows.append({k: fl(v) for k, v in {
            "rollout/step": o["t"], "rollout/raw_reward": o["reward"], "rollout/response_len/mean": o["length"], "rollout/response_len/max": o["lmax"], "rollout/truncated_ratio": o["cut"],
            "train/loss": o["pg"], "train/pg_loss": o["pg"], "train/entropy_loss": o["H"], "train/pg_clipfrac": o["clip"], "train/ppo_kl": r.normal(0, 1e-4), "train/grad_norm": o["gnorm"] * 0.5,
            "train/lr-pg_0": o["lr"], "train/train_rollout_logprob_abs_diff": d, "train/tis": 1 - 0.02 * d + r.normal(0, 2e-4), "train/tis_clipfrac": 0.002 * math.exp(r.normal(0, 0.2)),
            "train/step": o["t"], "perf/rollout_time": o["sec"]}.items()})
    jsonl(named("k06", ".jsonl"), rows)


def k07():
    torchtune(named("k07"), Sim(207, 200, B=16, G=8, pace=0.022, lr=1e-6, kl_scale=0.03, L0=280, max_len=512, schedule=warm(10, 200, "cosine")), 1, 26)


def k08():
    prime_rollouts(named("k08"), 27, range(0, 20, 2), False)


def k09():
    verl_rollouts(named("k09"), 28, 10, None, short=True)


def k10():
    r = np.random.default_rng(29)
    rows, base = [], 0.0
    for o in Sim(210, 360, B=16, G=8, pace=0.016, lr=1e-6, L0=300, max_len=1024):
        if o["t"] > 1 and (o["t"] - 1) % 64 == 0:
            base = 0.4 * base + 0.6 * o["dist"]
        o["kl"] = 0.0 if o["t"] == 1 else 0.1 * ((o["dist"] - base) ** 2 + 0.0009 * min(o["t"], 40) / 40) * math.exp(r.normal(0, 0.07))
        rows.append(trl_row(o, 0.04, o["t"], 360))
    trl_state(named("k10"), rows, 360, {"learning_rate": 1e-6, "beta": 0.04, "num_generations": 8, "max_completion_length": 1024, "temperature": 1.0, "sync_ref_model": True,
                                         "ref_model_sync_steps": 64, "ref_model_mixup_alpha": 0.6, "max_grad_norm": 1.0, "weight_decay": 0.0, "num_iterations": 1, "steps_per_generation": 1})


def k11():
    r = np.random.default_rng(30)
    rows = []
    for o in Sim(211, 180, B=32, G=4, pace=0.018, lr=2e-6, L0=600, max_len=4096, reward=lambda R, L, g: 10.0 * R - 5.0):
        lag = min(o["t"] - 1, 3)
        rows.append({k: fl(v) for k, v in {
            "global_step": o["t"], "ppo_actor/update/actor_loss/avg": o["pg"], "ppo_actor/task_reward/avg": o["reward"], "ppo_actor/task_reward/max": o["rmax"], "ppo_actor/task_reward/min": o["rmin"],
            "ppo_actor/update/entropy/avg": o["H"], "ppo_actor/update/clip_ratio/avg": 0.0006 * lag + o["clip"] * 0.3, "ppo_actor/update/importance_weight/avg": 1 + r.normal(0, 6e-5),
            "ppo_actor/update/importance_weight/min": 0.7 + 0.06 * r.random(), "ppo_actor/update/importance_weight/max": 1.3 + 0.15 * r.random(),
            "ppo_actor/update/behave_imp_weight/avg": 1 + r.normal(0, 4e-4), "ppo_actor/update/grad_norm": o["gnorm"], "ppo_actor/update/lr": o["lr"], "rollout/reward": o["reward"],
            "ppo_actor/seq_len/avg": o["length"] + o["plen"], "timeperf/rollout": o["sec"]}.items()})
    again = [dict(x) for x in rows[90:100]]
    for x in again:
        x["ppo_actor/update/grad_norm"] *= math.exp(r.normal(0, 0.1))
        x["ppo_actor/update/actor_loss/avg"] += r.normal(0, 0.002)
    jsonl(named("k11", ".jsonl"), rows[:100] + again + rows[100:])


if __name__ == "__main__":
    for k in KEYS:
        for old in os.listdir(HERE):
            if old.split(".")[0] == NUM[k]:
                shutil.rmtree(path(old)) if os.path.isdir(path(old)) else os.remove(path(old))
        globals()[k]()
    print(MADE)
