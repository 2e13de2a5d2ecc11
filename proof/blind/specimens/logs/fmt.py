"""Names and files as the trainers write them."""
import json, math, os
import numpy as np

def f(x):
    return float(x)

def trl(rows, fmt=False, kl=False, clip=True, samp=False, zero=True, max_steps=None, func="accuracy_reward", policy_loss=False):
    out = []
    for c in rows:
        d = {"loss": f(c["loss"]), "grad_norm": f(c["gn"]), "learning_rate": f(c["lr"]), "num_tokens": f(c["tokens"]),
             "completions/mean_length": f(c["len"]), "completions/min_length": f(c["lmin"]), "completions/max_length": f(c["lmax"]), "completions/clipped_ratio": f(c["trunc"]),
             "completions/mean_terminated_length": f(c["tmean"]), "completions/min_terminated_length": f(c["tmin"]), "completions/max_terminated_length": f(c["tmax"]),
             f"rewards/{func}/mean": f(c["acc"]), f"rewards/{func}/std": f(c["acc_std"])}
        if fmt: d.update({"rewards/format_reward/mean": f(c["fmt"]), "rewards/format_reward/std": f(c["fmt_std"])})
        d.update({"reward": f(c["reward"]), "reward_std": f(c["reward_gstd"])})
        if zero: d["frac_reward_zero_std"] = f(c["zero"])
        if samp: d.update({"sampling/sampling_logp_difference/mean": f(c["mm"]), "sampling/sampling_logp_difference/max": f(c["mx"]), "sampling/importance_sampling_ratio/min": f(c["ismin"]),
                           "sampling/importance_sampling_ratio/mean": f(c["isr"]), "sampling/importance_sampling_ratio/max": f(c["ismax"])})
        if kl: d["kl"] = f(c["kl"])
        d["entropy"] = f(c["H"])
        if clip: d.update({"clip_ratio/low_mean": f(c["clip_low"]), "clip_ratio/low_min": f(c["clip_low"] * .4), "clip_ratio/high_mean": f(c["clip_high"]), "clip_ratio/high_max": f(c["clip_high"] * 1.7), "clip_ratio/region_mean": f(c["clip"])})
        d.update({"epoch": round(c["step"] * 0.0021, 4), "step": c["step"]})
        out.append(d)
    return out

def trainer_state(folder, hist, max_steps, args=None, sub=None):
    p = os.path.join(folder, sub) if sub else folder
    os.makedirs(p, exist_ok=True)
    st = {"best_global_step": None, "best_metric": None, "best_model_checkpoint": None, "epoch": hist[-1]["epoch"], "eval_steps": 500, "global_step": hist[-1]["step"], "is_hyper_param_search": False,
          "is_local_process_zero": True, "is_world_process_zero": True, "log_history": hist, "logging_steps": 1, "max_steps": max_steps, "num_input_tokens_seen": int(hist[-1]["num_tokens"]),
          "num_train_epochs": 1, "save_steps": 100, "stateful_callbacks": {}, "total_flos": 0.0, "train_batch_size": 8, "trial_name": None, "trial_params": None}
    json.dump(st, open(os.path.join(p, "trainer_state.json"), "w"), indent=2)
    if args: json.dump(args, open(os.path.join(p, "args.json"), "w"), indent=2)

def verl(rows, kl=False, coef=0.001, corr=False, name="math_dapo", n=1, data=None, mml=None):
    out = []
    for c in rows:
        d = {"global_seqlen/mean": f(c["ntok"] / 8 + 9000), "actor/entropy": f(c["H"])}
        if kl: d.update({"actor/kl_loss": f(c["kl"]), "actor/kl_coef": coef})
        d.update({"actor/pg_loss": f(c["pl"]), "actor/pg_clipfrac": f(c["clip"]), "actor/ppo_kl": f(c["akl"]), "actor/pg_clipfrac_lower": 0.0, "actor/grad_norm": f(c["gn"]), "actor/lr": f(c["lr"]),
                  "training/global_step": c["step"], "training/epoch": 0,
                  "critic/score/mean": f(c["reward"]), "critic/score/max": f(c["reward_max"]), "critic/score/min": f(c["reward_min"]), "critic/rewards/mean": f(c["reward"]), "critic/rewards/max": f(c["reward_max"]), "critic/rewards/min": f(c["reward_min"]),
                  "critic/advantages/mean": f(c["amean"]), "critic/advantages/max": f(c["amax"]), "critic/advantages/min": f(c["amin"]), "critic/returns/mean": f(c["amean"]), "critic/returns/max": f(c["amax"]), "critic/returns/min": f(c["amin"]),
                  "response_length/mean": f(c["len"]), "response_length/max": f(c["lmax"]), "response_length/min": f(c["lmin"]), "response_length/clip_ratio": f(c["trunc"]),
                  "prompt_length/mean": f(c["plen"]), "prompt_length/max": 262.0, "prompt_length/min": 57.0, "prompt_length/clip_ratio": 0.0,
                  "timing_s/gen": f(c["sec"] * .55), "timing_s/update_actor": f(c["sec"] * .3), "timing_s/step": f(c["sec"]), "perf/throughput": f(c["ntok"] / c["sec"] / 8)})
        if corr: d.update({"rollout_corr/rollout_is_mean": f(c["isr"]), "rollout_corr/kl": f(c["mkl"]), "rollout_corr/rollout_is_max": f(c["ismax"]), "rollout_corr/rollout_is_min": f(c["ismin"])})
        if c.get("val") is not None: d[f"val-core/{name}/acc/mean@{n}"] = c["val"]
        out.append((c["step"], d))
    return out

def verl_jsonl(path, pairs):
    with open(path, "w") as h:
        for s, d in pairs: h.write(json.dumps({"step": s, "data": d}) + "\n")

def verl_console(path, pairs):
    with open(path, "w") as h:
        h.write("(TaskRunner pid=48213) Size of train dataloader: 232, Size of val dataloader: 1\n(TaskRunner pid=48213) Total training steps: 464\n")
        for s, d in pairs:
            h.write(f"(TaskRunner pid=48213) step:{s} - " + " - ".join(f"{k}:{v:.12g}" if isinstance(v, float) else f"{k}:{v}" for k, v in d.items()) + "\n")

def jsonl(path, ds):
    with open(path, "w") as h:
        for d in ds: h.write(json.dumps(d) + "\n")

def csv(path, ds, sep=",", prefix=None, step="Step"):
    keys = []
    for d in ds:
        for k in d:
            if k not in keys: keys.append(k)
    with open(path, "w") as h:
        h.write(sep.join('"%s"' % k if sep in k or " " in k else k for k in keys) + "\n")
        for d in ds: h.write(sep.join("" if d.get(k) is None else ("%r" % d[k]) for k in keys) + "\n")

def tb(folder, ds, stepkey="step", texts=None):
    from torch.utils.tensorboard import SummaryWriter
    os.makedirs(folder, exist_ok=True)
    w = SummaryWriter(folder)
    for k, v in (texts or {}).items(): w.add_text(k, v)
    for d in ds:
        for k, v in d.items():
            if k not in (stepkey, "epoch") and v is not None: w.add_scalar(k, v, d[stepkey])
    w.close()

def openrlhf(rows, kl=True, tens=True):
    pre = "train/" if tens else ""
    out = []
    for c in rows:
        d = {"policy_loss": f(c["pl"]), "actor_lr": f(c["lr"]), "ppo_clip_ratio": f(c["clip"]), "ppo_kl": f(c["akl"]), "actor_grad_norm": f(c["gn"]), "entropy_loss": f(c["H"]), "reward": f(c["reward"]), "return": f(c["amean"]),
             "response_length": f(c["len"]), "total_length": f(c["len"] + c["plen"]), "truncated": f(c["trunc"]), "vllm_kl": f(c["mkl"]), "group_reward_std": f(c["reward_gstd"])}
        if kl: d["kl"] = f(c["kl"])
        out.append({"step": c["step"], **{pre + k: v for k, v in d.items()}})
    return out

def prime(rows):
    out = []
    for c in rows:
        out.append({"step": c["step"], "loss/mean": f(c["pl"]), "loss/std": f(abs(c["pl"]) * 3 + .01), "optim/lr": f(c["lr"]), "optim/grad_norm": f(c["gn"]), "entropy/all/mean": f(c["H"]), "entropy/all/max": f(c["H"] * 8 + 2),
                    "mismatch_kl/all/mean": f(c["mkl"]), "mismatch_kl/all/max": f(c["mkl"] * 60 + c["mx"] * .2), "is_masked/mean": f(min(1, c["mkl"] * .4)), "reward/all/mean": f(c["reward"]), "reward/all/max": f(c["reward_max"]),
                    "decode_len/all/mean": f(c["len"]), "decode_len/all/max": f(c["lmax"]), "is_truncated/all/mean": f(c["trunc"]), "batch/solve_none": f(c["none"]), "batch/solve_all": f(c["all"]),
                    "batch/effective_batch_size": f(1 - c["zero"]), "progress/tokens": int(c["ntok"]), "progress/total_tokens": int(c["tokens"]), "time/step": f(c["sec"]), "scheduler/async_level": c.get("async", 1), "off_policy_level/all/mean": f(c.get("offp", .8))})
        if c.get("val") is not None: out[-1]["eval/math500/avg@1"] = c["val"]
    return out

def open_instruct(rows, kl=True, beta=0.0):
    out = []
    for c in rows:
        d = {"episode": c["step"] * c["rows"], "training_step": c["step"], "val/num_total_tokens": int(c["tokens"]), "epoch": c["step"] * c["rows"] / 60000, "tokens_per_second": f(c["ntok"] / c["sec"]),
             "scores": f(c["reward"]), "objective/verifiable_correct_rate": f((c["reward"]) / 10), "objective/verifiable_reward": f(c["reward"]), "real_batch_size_ratio": f(1 - c["zero"]), "packed_ratio": 0.31,
             "val/sequence_lengths": f(c["len"]), "val/sequence_lengths_min": f(c["lmin"]), "val/sequence_lengths_max": f(c["lmax"]), "val/sequence_lengths_unsolved": f(c["lbad"]), "val/sequence_lengths_solved": f(c["lgood"]),
             "val/stop_rate": f(1 - c["trunc"]), "val/advantages_mean": f(c["amean"]), "val/advantages_min": f(c["amin"]), "val/advantages_max": f(c["amax"]), "val/ratio": f(c["rm"]), "val/ratio_var": f((c["rmax"] - 1) ** 2 * .01),
             "loss/policy_avg": f(c["pl"]), "loss/total_avg": f(c["loss"]), "policy/clipfrac_avg": f(c["clip"]), "policy/entropy_avg": f(c["H"]), "optim/grad_norm": f(c["gn"]), "lr": f(c["lr"])}
        if kl: d.update({"objective/kl_avg": f(c["kl"] * 1.1), "objective/kl2_avg": f(c["kl"] * 1.05), "objective/kl3_avg": f(c["kl"]), "loss/kl_avg": f(beta * c["kl"])})
        out.append(d)
    return out

def nemo(rows, kl=True):
    out = []
    for c in rows:
        d = {"step": c["step"], "train/loss": f(c["loss"]), "train/grad_norm": f(c["gn"]), "train/lr": f(c["lr"]), "train/wd": 0.01, "train/reward": f(c["reward"]), "train/mean_prompt_length": f(c["plen"]), "train/probs_ratio": f(c["rm"]), "train/probs_ratio_min": f(c["rmin"]), "train/probs_ratio_max": f(c["rmax"]),
             "train/probs_ratio_clamped": f(np.clip(c["rm"], .8, 1.2)), "train/token_mult_prob_error": f(c["mpe"]), "train/gen_kl_error": f(c["mkl"]), "train/sampling_importance_ratio": f(c["isr"]), "train/approx_entropy": f(c["H"]), "train/mean_gen_tokens_per_sample": f(c["len"]),
             "train/max_gen_tokens_per_sample": f(c["lmax"]), "train/truncation_rate": f(c["trunc"]), "train/mean_total_reward": f(c["reward"]), "train/max_total_reward": f(c["reward_max"]), "train/min_total_reward": f(c["reward_min"]), "train/global_valid_seqs": float(c["rows"]) / c.get("minib", 1),
             "train/num_valid_samples": float(c["rows"]), "train/global_valid_toks": f(c["ntok"] / c.get("minib", 1)), "train/advantages/mean": f(c["amean"] * 0)}
        if kl: d["train/kl_penalty"] = f(c["kl"] * c.get("beta", 0.01))
        if c.get("val") is not None: d["validation/accuracy"] = c["val"]
        out.append(d)
    return out

def skyrl(rows, kl=True, corr=False):
    out = []
    for c in rows:
        d = {"step": c["step"], "trainer/global_step": c["step"], "trainer/epoch": 0, "policy/policy_loss": f(c["pl"]), "policy/final_loss": f(c["loss"]), "policy/policy_lr": f(c["lr"]), "policy/ppo_clip_ratio": f(c["clip"]), "policy/policy_entropy": f(c["H"]), "policy/response_length": f(c["lmax"]), "policy/raw_grad_norm": f(c["gn"]),
             "policy/rollout_train_logprobs_abs_diff_mean": f(c["mm"]), "policy/rollout_train_logprobs_abs_diff_std": f(c["mstd"]), "reward/avg_raw_reward": f(c["reward"]), "reward/avg_pass_at_8": f(1 - c["none"]), "loss/avg_final_rewards": f(c["reward"]), "loss/avg_raw_advantages": f(c["amean"]),
             "loss/avg_raw_advantages_abs": f(c["amax"] * .4), "generate/avg_num_tokens": f(c["len"]), "generate/max_num_tokens": f(c["lmax"]), "generate/min_num_tokens": f(c["lmin"]), "generate/avg_tokens_non_zero_rewards": f(c["lgood"]), "generate/avg_tokens_zero_rewards": f(c["lbad"]), "timing/step": f(c["sec"]), "timing/sync_weights": 2.1 + (c["step"] % 7) * .03}
        if kl: d["policy/policy_kl"] = f(c["kl"])
        if c.get("val") is not None: d["eval/all/avg_score"] = c["val"]
        out.append(d)
    return out

def slime(rows, kl=True, tis=False):
    out = []
    for c in rows:
        d = {"rollout/step": c["step"] - 1, "rollout/raw_reward": f(c["reward"]), "rollout/rewards": f(0.0), "rollout/truncated_ratio": f(c["trunc"]), "rollout/response_len/mean": f(c["len"]), "rollout/response_len/max": f(c["lmax"]), "rollout/response_len/min": f(c["lmin"]), "rollout/zero_std/count_0.0": int(c["none"] * c["rows"] / 8), "rollout/zero_std/count_1.0": int(c["all"] * c["rows"] / 8),
             "train/step": c["step"] - 1, "train/loss": f(c["loss"]), "train/pg_loss": f(c["pl"]), "train/entropy_loss": f(c["H"]), "train/pg_clipfrac": f(c["clip"]), "train/ppo_kl": f(c["akl"]), "train/train_rollout_logprob_abs_diff": f(c["mm"]), "train/grad_norm": f(c["gn"]), "train/lr-pg_0": f(c["lr"]), "perf/step_time": f(c["sec"])}
        if kl: d["train/kl_loss"] = f(c["kl"])
        if tis: d.update({"train/tis": f(c["isr"]), "train/ois": f(c["rm"]), "train/tis_clipfrac": f(c["mm"] * .08), "train/tis_abs": f(c["mm"] * 1.05)})
        if c.get("val") is not None: d["eval/aime24"] = c["val"]
        out.append(d)
    return out

def areal(rows, a="ppo_actor"):
    out = []
    for c in rows:
        out.append({"step": c["step"], "epoch": 0, f"{a}/task_reward/avg": f(c["reward"]), f"{a}/task_reward/max": f(c["reward_max"]), f"{a}/task_reward/min": f(c["reward_min"]), f"{a}/seq_len/avg": f(c["len"] + c["plen"]), f"{a}/correct_seq_len/avg": f(c["lgood"] + c["plen"]), f"{a}/incorrect_seq_len/avg": f(c["lbad"] + c["plen"]), f"{a}/no_eos_ratios/avg": f(c["trunc"]), f"{a}/advantages/avg": f(c["amean"]),
                    f"{a}/update/actor_loss/avg": f(c["pl"]), f"{a}/update/clip_ratio/avg": f(c["clip"]), f"{a}/update/entropy/avg": f(c["H"]), f"{a}/update/importance_weight/avg": f(c["rm"]), f"{a}/update/importance_weight/max": f(c["rmax"]), f"{a}/update/importance_weight/min": f(c["rmin"]), f"{a}/update/approx_kl/avg": f(c["akl"]),
                    f"{a}/update/grad_norm": f(c["gn"]), f"{a}/update/lr": f(c["lr"]), f"{a}/update/update_successful": 1.0, "rollout/reward": f(c["reward"]), "timeperf/train_step": f(c["sec"])})
    return out

def torchtune(rows):
    out = []
    for c in rows:
        out.append({"global_step": c["step"], "loss": f(c["loss"]), "policy_loss": f(c["pl"]), "kl_loss": f(c["kl"]), "clipfrac": f(c["clip"]), "ratios": f(c["rm"]), "approx_policy_kl": f(c["akl"]), "rewards": f(c["reward"]), "successes": f(c["acc"]), "response_lengths": f(c["len"]), "num_stop_tokens": int(round((1 - c["trunc"]) * c["rows"])), "grad_norm": f(c["gn"]), "lr": f(c["lr"]), "tokens_per_second_per_gpu": f(c["ntok"] / c["sec"])})
    return out
