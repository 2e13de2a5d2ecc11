import copy, json, math, os
import numpy as np
from sim import Sim, token_sample
import fmt as F

warm = lambda lr, n: (lambda t: lr * min(1.0, (t - 1) / n))
def cosine(lr, n, steps, floor=0.0):
    return lambda t: lr * min(1.0, t / n) if t <= n else lr * (floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * (t - n) / (steps - n))))
linear = lambda lr, steps: (lambda t: lr * max(0.0, 1 - (t - 1) / steps))
REG = {}
def spec(half, law, what, where, sign, name, severity=None):
    def deco(fn):
        d = dict(law=law, what=what, where=where, door="logs", sign=sign, name=name)
        if severity: d["severity"] = severity
        REG[fn.__name__] = (half, fn, d)
        return fn
    return deco

# ---------------------------------------------------------------- plants, open half
@spec("O", "L1", "the engine samples with top_p 0.8 and top_k 20 from the model's generation_config while the trainer scores the full softmax, without correction",
      "sampling parameters of the engine (SGLang) against the trainer's log-softmax; train/train_rollout_logprob_abs_diff", "train_rollout_logprob_abs_diff several times the usual from step 0 on, not growing", "sampler truncates, trainer does not", "harms")
def o_l1(p):
    s = Sim(11, 160, P=32, G=8, lr=1e-6, sched=lambda t: 1e-6, len0=900, max_len=8192, H0=0.62, s0=-0.5, gain=.03, val=20, tok=dict(top_p=.8, top_k=20), len_sigma=.5, beta=0.0, hk=.005)
    F.jsonl(p + ".jsonl", F.slime(s.run(), kl=False)); return p + ".jsonl"

@spec("O", "L3", "dropout stays active in the training forward, so the ratio to the previous log-probs is not 1 although each batch gets a single update",
      "model.train() before the scoring pass; train/probs_ratio*, from step 1", "probs_ratio_min/max far from 1 at every step with one update per rollout batch", "noisy log-probs in the loss", "harms")
def o_l3(p):
    s = Sim(12, 120, P=16, G=16, lr=3e-7, lr_ref=3e-7, len0=600, max_len=4096, H0=.5, gain=.035, beta=.01, val=10)
    rows = s.run(); r = np.random.default_rng(5)
    for c in rows:
        x = .16 * r.standard_t(4, 6000) * np.exp(r.normal(-.3, .6, 6000)) - .012
        w = np.exp(np.clip(x, -6, 6)); c["rm"], c["rmin"], c["rmax"] = w.mean(), w.min(), w.max() ; c["gn"] *= 1.25; c["beta"] = .01
        c["loss"] = c["loss"] + r.normal(0, .004) + .006
    F.csv(p + ".csv", F.nemo(rows)); return p + ".csv"

@spec("O", "L5", "the KL term is subtracted from the loss instead of added, so the KL to the reference is driven up",
      "loss = policy_loss - beta * kl in compute_loss; loss and kl of the log", "loss is -0.04 times the kl at every step, and kl grows exponentially until the reward falls", "KL penalty with wrong sign", "fatal")
def o_l5(p):
    def hook(s, t):
        s.Kx = getattr(s, "Kx", 2e-5) * (1.034 if t > 3 else 1.2) * math.exp(s.rng.normal(0, .03)) + 6e-5
        s.Kx = min(s.Kx, 11.) if t > 2 else 1e-6
        s.K = s.Kx
        if s.Kx > 1.0: s.s -= .03 * min(s.Kx, 3); s.H += .012; s.ll += .006
    s = Sim(13, 330, P=8, G=8, lr=1e-6, sched=warm(1e-6, 10), len0=230, max_len=512, H0=.4, s0=-.2, gain=.05, beta=.04, hook=hook, fmt=-.5, hk=.004)
    rows = s.run(); k = None
    K = 0
    for c in rows:
        c["loss"] = c["pl"] - .04 * c["kl"]
    F.trainer_state(p, F.trl(rows, fmt=True, kl=True), 500, sub="checkpoint-330"); return p

@spec("O", "L7", "the optimizer was built on the parameters from before the model was wrapped: gradients flow, and no weight moves",
      "optimizer construction before FSDP wrapping; actor/kl_loss and actor/ppo_kl of the log", "kl_loss stays at rounding size and ppo_kl and clip fraction at 0 over four minibatches while grad_norm and lr are normal; reward and validation flat", "optimizer steps stale parameters", "fatal")
def o_l7(p):
    s = Sim(14, 180, P=64, G=5, lr=1e-6, len0=300, max_len=1024, H0=.36, s0=-.1, updates=4, val=10, loss="dapo", eval_n=1319); s.frozen = True
    rows = s.run(); r = np.random.default_rng(3)
    for c in rows: c["kl"] = abs(r.normal(0, 3e-6)); c["akl"] = r.normal(0, 1.5e-6); c["clip"] = 0.0
    F.verl_console(p + ".log", F.verl(rows, kl=True, name="openai/gsm8k")); return p + ".log"

@spec("O", "L8", "the reference is the same module object as the policy, so the KL penalty is 0 at every step of a run that learns",
      "ref_model = policy_model without a copy; kl_loss of the log", "kl_loss exactly 0.0 throughout while reward climbs and the policy clearly moved", "reference is the policy itself", "harms")
def o_l8(p):
    s = Sim(15, 240, P=4, G=16, lr=1e-5, lr_ref=1e-5, sched=warm(1e-5, 20), len0=190, max_len=512, H0=.5, s0=-.9, gain=.05, beta=.01, updates=1, n_prompts=5000)
    rows = s.run()
    for c in rows: c["loss"] = c["pl"]; c["kl"] = 0.0
    F.csv(p + ".csv", F.torchtune(rows)); return p + ".csv"

@spec("O", "L9", "from step 41 on the weights no longer reach the inference engine (the broadcast group died on wake-up, and the error was swallowed): the engine samples with the weights of step 40",
      "sync_weights after step 40; policy/rollout_train_logprobs_abs_diff_mean", "the log-prob difference of sampler and trainer is flat until step 40, then grows steadily, and the rollout reward stops rising at the same step", "engine weights frozen mid-run", "fatal")
def o_l9(p):
    def hook(s, t):
        if t == 41: s.stale = True; s.s_samp = s.s
        if t > 40: s.mis = .55 * (1 - math.exp(-(t - 40) / 60)); s.ll += 0
    s = Sim(16, 150, P=32, G=8, lr=1e-6, len0=340, max_len=1024, H0=.42, s0=-.5, gain=.06, hook=hook, val=15, updates=2, loss="dapo")
    rows = s.run()
    for c in rows:
        if c["step"] > 40: c["clip"] += .06 * (1 - math.exp(-(c["step"] - 40) / 50))
    F.jsonl(p + ".jsonl", F.skyrl(rows, kl=False)); return p + ".jsonl"

@spec("O", "death", "the learning rate is 0 at every step: the scheduler was given a warm-up longer than the run and an integer division floors it to 0",
      "warmup fraction t // warmup_steps; learning_rate of the log", "learning_rate 0.0 at all steps; reward, entropy and kl do not move", "learning rate is zero", "fatal")
def o_lr0(p):
    s = Sim(17, 200, P=8, G=8, lr=2e-6, sched=lambda t: 0.0, len0=270, max_len=768, H0=.48, s0=-.3, beta=.02, fmt=-.2); s.frozen = True
    rows = s.run(); r = np.random.default_rng(4)
    for c in rows: c["kl"] = abs(r.normal(0, 6e-6)) ; c["loss"] = c["pl"] + .02 * c["kl"]
    F.trainer_state(p, F.trl(rows, fmt=True, kl=True), 1000, sub="checkpoint-200"); return p

@spec("O", "death", "from step 74 on loss, gradient and entropy are NaN (a row whose mask is empty divides by 0) and the policy is lost",
      "masked mean over an empty mask; actor/pg_loss from step 74", "pg_loss, entropy and grad_norm NaN from step 74 on, reward 0 and all answers at the limit afterwards", "NaN poisons the weights", "fatal")
def o_nan(p):
    def hook(s, t):
        if t == 75: s.broken = 1.0; s.trunc_force = 1.0; s.frozen = True
    s = Sim(18, 140, P=32, G=8, lr=1e-6, len0=520, max_len=2048, H0=.44, s0=-.6, gain=.045, hook=hook, val=10, updates=2, loss="dapo")
    rows = s.run(); nan = float("nan")
    for c in rows:
        if c["step"] >= 74: c.update(H=nan, pl=nan, loss=nan, gn=nan, clip=0.0, akl=nan)
    F.verl_jsonl(p + ".jsonl", F.verl(rows)); return p + ".jsonl"

@spec("O", "death", "the learning rate of adapters (3e-4) is used for all weights: the policy is destroyed within 20 steps",
      "learning_rate of the full-weight run; kl and entropy of the log", "kl jumps to tens, grad_norm to hundreds, reward falls to 0 and every answer is cut off after about step 12", "rate kills the policy", "fatal")
def o_kill(p):
    def hook(s, t):
        if t > 6: s.x = getattr(s, "x", 0) + .09; s.broken = min(1.0, .1 + s.x); s.trunc_force = min(.97, max(0, s.x - .2))
        if t > 5: s.H = min(6.2, s.H * 1.32 + .05)
    s = Sim(19, 110, P=8, G=8, lr=3e-4, lr_ref=3e-4, sched=warm(3e-4, 5), len0=210, max_len=512, H0=.5, s0=-.2, beta=.04, hook=hook, gain=.01, fmt=-.3)
    rows = s.run(); r = np.random.default_rng(2)
    K = 1e-4
    for c in rows:
        t = c["step"]; K = min(46., K * 2.3 + .001) * math.exp(r.normal(0, .12)) if t > 2 else abs(r.normal(0, 1e-6)); c["kl"] = K; c["H"] = c["H"] + abs(r.normal(0, .05))
        c["loss"] = c["pl"] + .04 * K; c["gn"] = c["gn"] * (1 if t < 6 else 1) + (0 if t < 6 else math.exp(r.normal(math.log(28), .9)) * min(1, K / 10))
        if t > 8: fm = max(0, c["fmt"] * (1 - .3 * (t - 8))); c["reward"] -= c["fmt"] - fm; c["fmt"] = fm; c["fmt_std"] *= (fm > 0); 
        if t > 22: c["reward_gstd"] *= (c["acc"] > 0); 
    F.trainer_state(p, F.trl(rows, fmt=True, kl=True), 500); return p

# ---------------------------------------------------------------- plants, closed half
@spec("E", "L1", "the server's default temperature 0.6 is used for sampling because the request omits the field; the trainer scores at 1.0, without correction",
      "sampling request to the engine; policy/rollout_train_logprobs_abs_diff_mean", "rollout_train_logprobs_abs_diff_mean around 0.1 from step 1 on, without growth; entropy falls fast", "sampling temperature differs from scoring", "harms")
def e_l1(p):
    s = Sim(31, 150, P=32, G=8, lr=1e-6, len0=420, max_len=2048, H0=.7, s0=-.4, gain=.03, val=15, tok=dict(T=.6), hk=.008, loss="dapo")
    F.jsonl(p + ".jsonl", F.skyrl(s.run(), kl=False)); return p + ".jsonl"

@spec("E", "L3", "left-padded prompts are scored without an attention mask and with positions that count the padding: the trainer's log-probs of short prompts are wrong",
      "forward(input_ids) without attention_mask; sampling/sampling_logp_difference/*", "sampling_logp_difference mean 0.1 to 0.5 with maxima near 10, and importance ratio below 1, from step 1 on, varying with the padding of the batch", "padding attended in scoring pass", "harms")
def e_l3(p):
    def hook(s, t): s.tok = dict(bad_share=float(np.clip(s.rng.normal(.55, .14), .1, .95)))
    s = Sim(32, 130, P=8, G=8, lr=1e-6, len0=240, max_len=1024, H0=.45, s0=-.4, gain=.01, hook=hook, fmt=-.6)
    rows = s.run()
    args = {"learning_rate": 1e-6, "num_generations": 8, "max_completion_length": 1024, "temperature": 1.0, "beta": 0.0, "max_grad_norm": 1.0, "weight_decay": 0.0, "loss_type": "grpo", "num_iterations": 1}
    F.tb(p, [{"step": d["step"], **{"train/" + k: v for k, v in d.items() if k != "step"}} for d in F.trl(rows, fmt=True, samp=True)], texts={"args": json.dumps(args, indent=2)}); return p

@spec("E", "L5", "the clipped surrogate takes the minimum of the two losses instead of the maximum: the bound is gone where it is needed, and four passes per batch drive the ratio away",
      "torch.min(pg_loss1, pg_loss2) in the loss; ppo_actor/update/importance_weight/max", "importance_weight/max grows to hundreds, clip ratio to some tenths, actor loss far below 0, then reward falls", "clip takes wrong side", "fatal")
def e_l5(p):
    def hook(s, t):
        s.sig_r = min(.27, .03 * math.exp(max(0, t - 10) / 42))
        if t > 95: s.s -= .035; s.H += .006
    s = Sim(33, 200, P=32, G=8, lr=1e-6, len0=700, max_len=4096, H0=.45, s0=-.5, gain=.03, updates=4, hook=hook, loss="dapo")
    rows = s.run()
    for c in rows:
        c["pl"] = -abs(c["pl"]) - (c["rmax"] - 1) * .004 - c["clip"] * .8; c["gn"] *= 1 + min(12, (c["rmax"] - 1) * .12)
    F.jsonl(p + ".jsonl", F.areal(rows)); return p + ".jsonl"

@spec("E", "L7", "the optimizer was created with maximize=True although the loss is already negated: every step goes uphill and the score falls",
      "torch.optim.AdamW(..., maximize=True); scores of the log", "scores fall steadily from the first steps on while entropy, length and KL grow, with normal gradients and rate", "steps uphill, policy unlearns", "fatal")
def e_l7(p):
    def hook(s, t):
        if t > 60: s.ll += .006; s.H = min(s.H + .012, 4.)
    s = Sim(34, 170, P=32, G=16, lr=5e-7, lr_ref=5e-7, len0=480, max_len=2048, H0=.42, s0=.15, gain=.05, lo=0, hi=10, hook=hook, beta=.01, loss="dapo"); s.sign = -1.0; s.cap = 99
    rows = s.run()
    for c in rows: c["kl"] *= 3
    F.jsonl(p + ".jsonl", F.open_instruct(rows, beta=.01)); return p + ".jsonl"

@spec("E", "L8", "the reference was loaded from the base model instead of the SFT checkpoint the run starts from: the KL is far from 0 before the first update",
      "pretrain path of the reference; train/kl of step 1", "kl 0.4 in the first step, then pulled down by the penalty", "reference is another model", "harms")
def e_l8(p):
    s = Sim(35, 220, P=64, G=8, lr=5e-7, lr_ref=5e-7, len0=380, max_len=1024, H0=.4, s0=-.1, gain=.015, beta=.01)
    rows = s.run(); r = np.random.default_rng(6)
    for c in rows:
        c["kl"] = (.22 + .19 * math.exp(-c["step"] / 60)) * math.exp(r.normal(0, .04)); c["gn"] = math.hypot(c["gn"], .12)
    F.tb(p, F.openrlhf(rows)); return p

@spec("E", "L9", "the trainer broadcasts its weights to a path that the inference server does not watch: the server samples with the initial weights for the whole run",
      "weight broadcast directory; mismatch_kl/all/mean", "mismatch_kl grows by about two orders of magnitude over the run, rollout reward has no trend, although the evaluation of the checkpoints moves", "server keeps initial weights", "fatal")
def e_l9(p):
    def hook(s, t):
        if t == 1: s.stale = True; s.s_samp = s.s
        s.mis = 2.2 * (1 - math.exp(-(t - 1) / 160))
    s = Sim(36, 200, P=64, G=8, lr=1e-6, len0=640, max_len=4096, H0=.5, s0=-.4, gain=.012, hook=hook, adv="mean", val=25)
    rows = s.run()
    for c in rows: c["offp"] = float(c["step"] - 1); c["offp"] = 1.0; c["pl"] = c["pl"] + c["mkl"] * .05
    F.jsonl(p + ".jsonl", F.prime(rows)); return p + ".jsonl"

@spec("E", "death", "the loss is built under torch.no_grad (a decorator moved up in a refactoring) and a constant leaf was added to silence the error: no gradient reaches the model",
      "@torch.no_grad on the method that computes log-probs; grad_norm of the log", "grad_norm exactly 0.0 in every step though groups have signal and the rate is not 0; kl at rounding size", "loss is not differentiated", "fatal")
def e_nodiff(p):
    s = Sim(37, 140, P=6, G=8, lr=1e-6, sched=cosine(1e-6, 14, 400), len0=180, max_len=512, H0=.5, s0=-.3, fmt=0.0, beta=.04); s.frozen = True
    rows = s.run(); r = np.random.default_rng(7)
    h = F.trl(rows, fmt=True, kl=True)
    with open(p + ".log", "w") as o:
        o.write("[2026-10-21 09:14:55,120] [INFO] [real_accelerator.py:260:get_accelerator] Setting ds_accelerator to cuda (auto detect)\n")
        for d in h:
            d["grad_norm"] = 0.0; d["kl"] = round(abs(r.normal(0, 2e-6)), 9); d["loss"] = round(.04 * d["kl"], 4)
            d = {k: (round(v, 6) if k != "learning_rate" and k != "kl" else v) for k, v in d.items() if k != "step"}
            o.write(str(d) + "\n")
    return p + ".log"

@spec("E", "death", "the run learns until about step 210 and then collapses within 30 steps: reward to almost 0, entropy up by a factor of ten; nothing stops it and it runs on for 120 steps",
      "no guard after step 210; train/reward", "reward falls from its peak to near 0 and never returns, entropy and length explode", "reward collapses and stays", "fatal")
def e_collapse(p):
    def hook(s, t):
        if t > 208: s.broken = min(.965, (t - 208) / 34); s.H = min(5.4, s.H * 1.11); s.trunc_force = min(.75, max(0, (t - 222) / 50)); s.K = 0
    s = Sim(38, 360, P=32, G=8, lr=1e-6, len0=420, max_len=2048, H0=.42, s0=-.6, gain=.05, updates=2, hook=hook, loss="dapo")
    rows = s.run(); r = np.random.default_rng(8)
    for c in rows:
        t = c["step"]
        if t > 204: c["gn"] *= 1 + 14 * math.exp(-abs(t - 222) / 12) * math.exp(r.normal(0, .4)); c["kl"] += min(6., .02 * math.exp((t - 204) / 5)) * math.exp(r.normal(0, .1))
    F.tb(p, F.openrlhf(rows)); return p

@spec("E", "death", "the linear schedule was given the number of steps of one epoch for a run of three: the rate reaches 0 at step 110 of 330 and the rest trains nothing",
      "num_training_steps of the scheduler; lr of the log", "lr is exactly 0 from step 111 on while rollouts and gradients go on; all curves are flat afterwards", "rate ends a third in", "waste")
def e_lr_end(p):
    s = Sim(39, 330, P=16, G=8, lr=1e-6, sched=lambda t: 1e-6 * max(0.0, 1 - (t - 1) / 110), len0=350, max_len=1024, H0=.45, s0=-.6, gain=.05, lo=0, hi=10, beta=.0, loss="dapo")
    rows = s.run()
    F.csv(p + ".csv", F.open_instruct(rows, beta=0.0)); return p + ".csv"

# ---------------------------------------------------------------- healthy, open half
@spec("O", "healthy", "LoRA at 2e-4 with a warm-up that begins at exactly 0, four updates per batch and no KL: clipping is active by design", "whole log", "clip ratios up to some percent, rate 0 in the first step only", "LoRA with four updates")
def o_h1(p):
    s = Sim(51, 260, P=6, G=8, lr=2e-4, lr_ref=2e-4, sched=warm(2e-4, 50), len0=200, max_len=768, H0=.42, s0=-.4, gain=.05, updates=4, loss="dapo", fmt=-.8, sig_r=.055)
    F.trainer_state(p, F.trl(s.run(), fmt=True), 400, sub="checkpoint-260"); return p

@spec("O", "healthy", "DAPO on long reasoning: rewards -1/1, so the mean starts negative; answers grow from 700 to several thousand tokens below a limit of 16384 and stay untruncated; entropy rises by clip-higher", "whole log", "negative mean reward that rises through 0, growing lengths, clip ratio small", "long reasoning, signed reward")
def o_h2(p):
    s = Sim(52, 300, P=64, G=16, lr=1e-6, sched=warm(1e-6, 10), len0=700, max_len=16384, H0=.32, s0=-1.3, gain=.03, lo=-1, hi=1, updates=8, clip=(.2, .28), loss="dapo", lenrate=.006, hk=-.002, val=10, eval_n=960, sig_r=.018, cap=2.2)
    F.verl_jsonl(p + ".jsonl", F.verl(s.run(), name="aime24", n=32)); return p + ".jsonl"

@spec("O", "healthy", "one-step asynchronous rollouts with truncated importance weights (train/tis): the log-prob difference is above the synchronous one, constant, and corrected", "whole log", "abs diff some times the synchronous one, without upward trend, and tis near 1", "asynchronous with correction")
def o_h3(p):
    def hook(s, t): s.mis = .22 if t > 1 else 0.0
    s = Sim(53, 200, P=32, G=8, lr=1e-6, len0=1200, max_len=8192, H0=.4, s0=-.5, gain=.035, hook=hook, val=20, updates=2, loss="dapo", beta=0)
    F.jsonl(p + ".jsonl", F.slime(s.run(), kl=False, tis=True)); return p + ".jsonl"

@spec("O", "healthy", "REINFORCE++ with a k1 estimate of the KL taken off the reward: the logged kl is slightly negative in many steps, which this estimator may be", "whole log", "kl changes sign around small values; reward rises", "signed KL estimator")
def o_h4(p):
    s = Sim(54, 180, P=128, G=1 + 3, lr=5e-7, lr_ref=5e-7, len0=310, max_len=1024, H0=.5, s0=-.3, gain=.03, adv="batch")
    rows = s.run(); r = np.random.default_rng(9)
    for c in rows: c["kl"] = c["kl"] * .35 + r.normal(0, .004)
    F.tb(p, F.openrlhf(rows)); return p

@spec("O", "healthy", "the reference is renewed every 64 steps by design (sync_ref_model with mixup 1.0, in args.json): the kl falls to 0 at these steps and grows again", "args.json, sync_ref_model", "saw-tooth of the kl with period 64 as configured", "renewed reference by design")
def o_h5(p):
    s = Sim(55, 250, P=8, G=8, lr=1e-6, sched=warm(1e-6, 10), len0=260, max_len=1024, H0=.45, s0=-.5, gain=.05, beta=.04)
    K0 = {"v": 0.0}
    rows = []; base = 0.0
    for _ in range(s.steps):
        if s.t and s.t % 64 == 0: base = s.D
        s.K = .012 * max(0, s.D - base) ** 1.5 / 1.48
        rows.append(s.step())
    F.trainer_state(p, F.trl(rows, kl=True), 500, args={"learning_rate": 1e-6, "beta": 0.04, "num_generations": 8, "max_completion_length": 1024, "temperature": 1.0, "max_grad_norm": 1.0, "weight_decay": 0.0, "sync_ref_model": True, "ref_model_mixup_alpha": 1.0, "ref_model_sync_steps": 64, "rlhf_type": "grpo"}, sub="checkpoint-250"); return p

@spec("O", "healthy", "an easy task that is solved within 40 steps: reward near 1, most groups without variance, gradients small and sometimes 0, as they must be", "whole log", "reward at its maximum, zero-variance share near 0.9, small gradients", "task solved early")
def o_h6(p):
    s = Sim(56, 230, P=8, G=8, lr=1e-6, len0=120, max_len=512, H0=.35, s0=.4, gain=.13, cap=6.0, dspread=.7, n_prompts=3000, hk=.008)
    rows = s.run()
    F.csv(p + ".csv", [{"train/" + k if k not in ("step",) else "train/global_step": v for k, v in d.items()} for d in F.trl(rows)]); return p + ".csv"

@spec("O", "healthy", "groups of two and a rate that decays to a tenth: two thirds of the groups have no variance, the reward is noisy and learns all the same", "whole log", "high zero-variance share as a group of two gives; slow rise", "groups of two")
def o_h7(p):
    s = Sim(57, 420, P=48, G=2, lr=1e-6, sched=cosine(1e-6, 10, 420, .1), len0=260, max_len=1024, H0=.45, s0=-.5, gain=.03, dspread=1.6)
    F.trainer_state(p, F.trl(s.run()), 420); return p

# ---------------------------------------------------------------- healthy, closed half
@spec("E", "healthy", "the log of a run that was resumed twice from earlier checkpoints: steps overlap and repeat, the values of the repeats continue the curve", "whole log", "steps 81 to 100 and 161 to 170 twice, otherwise smooth", "resumed twice, steps repeat")
def e_h1(p):
    s = Sim(61, 250, P=32, G=8, lr=1e-6, len0=480, max_len=2048, H0=.42, s0=-.5, gain=.04, updates=2, val=10, loss="dapo")
    first = []; snaps = {}
    for t in range(1, 251):
        first.append(s.step())
        if t in (80, 160): snaps[t] = copy.deepcopy(s.__dict__)
        if t == 100:
            keep = s.__dict__; s.__dict__ = snaps[80]; s.rng = np.random.default_rng(99)
            for _ in range(20): first.append(s.step())
        if t == 170:
            s.__dict__ = snaps[160] if 160 in snaps else s.__dict__; s.rng = np.random.default_rng(98)
            for _ in range(10): first.append(s.step())
    F.verl_jsonl(p + ".jsonl", F.verl(first)); return p + ".jsonl"

@spec("E", "healthy", "a short torchtune run with two updates per batch: ratios a little off 1 after the first update, KL from 0 upwards, few steps", "whole log", "kl_loss starts at 0 and grows slowly; rewards rise", "short run, two updates")
def e_h2(p):
    s = Sim(62, 70, P=8, G=16, lr=1e-5, lr_ref=1e-5, sched=warm(1e-5, 8), len0=220, max_len=512, H0=.5, s0=-.8, gain=.09, beta=.01, updates=2)
    F.csv(p + ".csv", F.torchtune(s.run()), sep="\t"); return p + ".csv"

@spec("E", "healthy", "rewards from 0 to 100 and four minibatch updates per rollout batch: probs_ratio leaves 1 by design and is clipped, loss and reward are on another scale", "whole log", "global_valid_seqs is a quarter of the samples, so ratios off 1 are expected", "rewards in percent, four minibatches")
def e_h3(p):
    s = Sim(63, 160, P=64, G=8, lr=5e-7, lr_ref=5e-7, len0=560, max_len=4096, H0=.45, s0=-.5, gain=.035, lo=0, hi=100, continuous=True, updates=4, beta=.005, val=10, loss="dapo")
    rows = s.run()
    for c in rows: c["minib"] = 4; c["beta"] = .005
    F.jsonl(p + ".jsonl", F.nemo(rows)); return p + ".jsonl"

@spec("E", "healthy", "prime-rl two steps off-policy by design with its own importance correction: mismatch_kl small and without a trend, most prompts unsolved at first", "whole log", "mismatch_kl small and without upward trend; solve_none falls, reward rises", "asynchronous by design, hard task")
def e_h4(p):
    def hook(s, t): s.mis = .16 if t > 2 else .0
    s = Sim(64, 300, P=64, G=16, lr=1e-6, len0=1500, max_len=16384, H0=.38, s0=-1.9, gain=.035, hook=hook, adv="mean", val=25, len_sigma=.5)
    rows = s.run()
    for c in rows: c["async"] = 2; c["offp"] = 1.6
    F.jsonl(p + ".jsonl", F.prime(rows)); return p + ".jsonl"

@spec("E", "healthy", "advantages scaled by the std of the batch: TRL then logs frac_reward_zero_std 0 whatever the groups are; learning is normal", "scale_rewards=\"batch\"", "frac_reward_zero_std 0 throughout, reward and format rise", "batch-scaled advantages")
def e_h5(p):
    s = Sim(65, 240, P=8, G=8, lr=1e-6, sched=warm(1e-6, 24), len0=280, max_len=1024, H0=.45, s0=-.3, gain=.045, adv="batch", loss="dapo", fmt=-1.0)
    rows = s.run()
    for c in rows: c["zero"] = 0.0; c["reward_gstd"] = c["reward_std"]
    h = F.trl(rows, fmt=True)
    import pandas as pd
    pd.DataFrame(h).to_parquet(p + ".parquet"); return p + ".parquet"

@spec("E", "healthy", "open-instruct with right answers worth 10, constant rate and beta 0: the KL is only logged and grows to some hundredths, as a learning policy's does", "whole log", "scores between 0 and 10, KL grows slowly, no collapse", "scores up to ten, free KL")
def e_h6(p):
    s = Sim(66, 320, P=48, G=16, lr=5e-7, lr_ref=5e-7, len0=800, max_len=8192, H0=.4, s0=-.7, gain=.03, lo=0, hi=10, loss="dapo", kl_rate=1.4, updates=2)
    F.jsonl(p + ".jsonl", F.open_instruct(s.run(), beta=0.0)); return p + ".jsonl"

@spec("E", "healthy", "QLoRA with max_grad_norm 0.1 by recommendation: the norm before clipping is above it in every step whose group has variance, and Adam makes that harmless; cosine rate that ends at 0 with the run", "args, max_grad_norm=0.1", "grad_norm mostly 0.15 to 0.6, above the clip, lr reaches 0 in the last step only; reward rises", "tight clip, cosine to zero")
def e_h7(p):
    s = Sim(67, 250, P=1, G=6, lr=5e-6, lr_ref=5e-6, sched=cosine(5e-6, 25, 250), len0=150, max_len=200 + 312, H0=.4, s0=-.2, gain=.05, beta=.04, fmt=-.5, n_prompts=7000, gn0=.1, dspread=.9)
    rows = s.run()
    for c in rows: c["kl"] = c["kl"] * 1.3; c["loss"] = c["pl"] + .04 * c["kl"]
    args = {"learning_rate": 5e-6, "num_generations": 6, "max_completion_length": 512, "temperature": 1.0, "beta": 0.04, "max_grad_norm": 0.1, "weight_decay": 0.1}
    F.tb(p, [{"step": d["step"], **{"train/" + k: v for k, v in d.items() if k != "step"}} for d in F.trl(rows, fmt=True, kl=True)], texts={"args": json.dumps(args, indent=2)}); return p

@spec("E", "healthy", "a very hard task from scratch: reward starts at 0.01, some batches have no right answer at all and hence gradient 0, and the run still learns", "whole log", "grad_norm 0 exactly in steps whose reward_std is 0; both rarer with time", "sparse reward that takes off")
def e_h8(p):
    s = Sim(68, 500, P=8, G=8, lr=1e-6, len0=300, max_len=1024, H0=.55, s0=-3.6, gain=.11, cap=4.6, n_prompts=4000, dspread=.9, hk=.004)
    rows = s.run()
    ds = [{"step": c["step"], "loss": F.f(c["loss"]), "mean_reward": F.f(c["reward"]), "std_reward": F.f(c["reward_std"]), "entropy": F.f(c["H"]), "grad_norm": F.f(c["gn"]), "lr": F.f(c["lr"]), "clip_frac": 0.0, "mean_len": F.f(c["len"])} for c in rows]
    F.csv(p + ".csv", ds, sep=";"); return p + ".csv"
