"""A Case of tests/doctor/own_grpo_step.py -> what a trainer of that kind would hand to the doctor, by name.

Shape legend: B rows, T completion tokens, P prompt tokens, S = P + T.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from doctor.own_grpo_step import (
    EOS,
    FIRST,
    OTHER_EOS,
    PAD,
    Array,
    Case,
    Policy,
    Sampled,
    V,
    advantages_of,
    correction_of,
    entropies,
    loss_of,
    reward_rows,
    sample,
    score,
    to_bfloat16,
)

TEXTS = ("prompt", "completion", "prompt_id")
ROUNDING = 1e-6


def step_of(case: Case) -> dict[str, Any]:
    """All fields, numbers, settings and texts of one update."""
    random = np.random.default_rng(case.seed)
    reference = Policy(random, case.sharpness, case.ending, two_eos=case.two_eos)
    sampler = reference if case.reference == "equal" else reference.moved(random, 0.1)
    old = sampler.moved(random, 0.05 * case.lag) if case.lag else sampler
    new = old.moved(random, case.drift * case.update) if case.update else old
    rows = sample(case, sampler, random)
    width = case.limit if random.random() < 0.5 else max(int(rows.lengths.max()), 1)
    rows = Sampled(
        rows.kind, rows.prompts, rows.ids, rows.tokens[:, :width], rows.lengths, rows.finished, rows.forced[:, :width]
    )
    mask = (np.arange(width) < rows.lengths[:, None]) & ~rows.forced
    if case.mask_truncated:
        mask &= rows.finished[:, None]
    if case.empty_row:
        mask[0] = False
    logprobs = _logprobs(case, random, rows, mask, {"ref": reference, "sampler": sampler, "old": old, "new": new})
    rewards = reward_rows(case, rows, random)
    found: dict[str, Any] = {"rewards": rewards}
    total = rewards
    if case.kl_coef and case.kl_placement == "reward":
        far = np.where(mask, logprobs["old_logprobs"] - logprobs["ref_logprobs"], 0.0)
        total = rewards - case.kl_coef * far.sum(axis=1)
        found["rewards"] = total if case.seed % 2 else rewards
    found |= _advantages(case, random, total, rows, mask, logprobs)
    entropy = np.where(mask, entropies(new, rows, case.temperature), 0.0)
    kept = slice(0, len(rows.ids) if case.part == "whole" else (len(rows.ids) + 1) // 2)
    given = {
        "mask": mask[kept],
        "new": logprobs["new_logprobs"][kept],
        "old": logprobs["old_logprobs"][kept],
        "ref": logprobs["ref_logprobs"][kept],
        "weight": correction_of(case, logprobs["old_logprobs"], logprobs["sampler_logprobs"], mask)[kept],
        "advantages": found["advantages"][kept],
        "entropy": entropy[kept],
    }
    counts = (len(rows.ids), max(int(mask.sum()), 1))
    values = found | logprobs | {"entropy": entropy, "mask": mask} | _sampled(case, rows)
    if not case.kl_coef and random.random() < 0.5:
        values.pop("ref_logprobs"), values.pop("plain_ref_logprobs")
    values = {name: array[kept] for name, array in values.items()}
    values |= loss_of(case, given, counts)
    values |= _texts(rows, kept)
    values |= _numbers(case, values["rewards"]) | _settings(case, rows)
    if case.part == "counted":
        values |= {"sequences": counts[0], "loss_tokens": counts[1]}
    if case.part != "whole":
        values.pop("gradient_norm"), values.pop("reward_mean")
    return _as_whole_sequences(case, values, random) if case.whole_sequences else values


def _logprobs(
    case: Case, random: np.random.Generator, rows: Sampled, mask: Array, policies: dict[str, Policy]
) -> dict[str, Array]:
    def of(who: str, temperature: float = case.temperature, noise: float = 0.0) -> Array:
        exact = score(case, policies[who], rows, temperature, kept=case.support_kept or who == "sampler")
        return np.minimum(exact + noise * random.standard_normal(exact.shape), 0.0)

    found = {f"{who}_logprobs": of(who) for who in ("old", "new", "ref")}
    found["sampler_logprobs"] = of("sampler", noise=ROUNDING)
    if case.update == 0:
        found["new_logprobs"] = found["old_logprobs"]
    if case.reference == "renewed":
        found["ref_logprobs"] = found["old_logprobs"]
    if case.noise == "engine16":  # as bfloat16 engines differ: 0.03 on average, and now and then by 1
        noise = random.laplace(0.0, 0.03, size=mask.shape) + (random.random(mask.shape) < 1e-3) * random.choice([-1, 1])
        found["sampler_logprobs"] = np.minimum(found["sampler_logprobs"] + noise, 0.0)
    found["plain_logprobs"] = of("old", noise=ROUNDING)
    found["plain_raw_logprobs"] = of("old", temperature=1.0, noise=ROUNDING)
    found["plain_ref_logprobs"] = (
        of("ref", noise=ROUNDING) if case.reference != "renewed" else found["plain_logprobs"].copy()
    )
    if case.old_is_sampler:
        found["old_logprobs"] = found["sampler_logprobs"]
    if case.noise == "rounded16":
        found = {name: to_bfloat16(values) for name, values in found.items()}
    for how in ("again", "padded", "permuted", "alone"):
        found[f"scored_{how}"] = found["new_logprobs"] + ROUNDING * random.standard_normal(mask.shape)
    found["sampler_logprobs"] = np.where(rows.forced, np.nan, found["sampler_logprobs"])
    return found


def _advantages(
    case: Case, random: np.random.Generator, total: Array, rows: Sampled, mask: Array, logprobs: dict[str, Array]
) -> dict[str, Any]:
    if case.advantage == "process":  # two steps a row, each scored; a token is worth what comes after it
        halves = (np.arange(mask.shape[1]) < rows.lengths[:, None] // 2) & mask
        scores = np.where(np.isnan(total), 0.0, total)[:, None] + random.standard_normal((len(total), 2))
        for group in np.unique(rows.ids):
            own = rows.ids == group
            scores[own] = (scores[own] - scores[own].mean()) / (scores[own].std() + 1e-4)
        advantages = np.where(halves, scores.sum(axis=1)[:, None], scores[:, 1:])
        return {"advantages": np.where(mask, advantages, 0.0)}
    if case.advantage == "ppo":
        return _gae(case, random, np.nan_to_num(total), mask, logprobs)
    return {"advantages": advantages_of(case, total, rows.ids, mask)}


def _gae(
    case: Case, random: np.random.Generator, total: Array, mask: Array, logprobs: dict[str, Array]
) -> dict[str, Any]:
    """GAE with lambda 0.95, whitened over the loss tokens; the reward on the last one, less a KL on each."""
    values = np.where(mask, 0.3 * random.standard_normal(mask.shape), 0.0)
    laid = np.zeros(mask.shape)
    if case.kl_coef and case.kl_placement == "reward":
        laid = -case.kl_coef * np.where(mask, logprobs["old_logprobs"] - logprobs["ref_logprobs"], 0.0)
    raw = np.zeros(mask.shape)
    for row, inside in enumerate(mask):
        places = np.flatnonzero(inside)
        if not len(places):
            continue
        laid[row, places[-1]] += total[row]
        gained, following = 0.0, 0.0
        for at in places[::-1]:
            gained = laid[row, at] + following - values[row, at] + 0.95 * gained
            raw[row, at], following = gained, values[row, at]
    seen = raw[mask] if mask.any() else np.zeros(1)
    white = np.where(mask, (raw - seen.mean()) / (seen.std() + 1e-8), 0.0)
    return {
        "advantages": white,
        "raw_advantages": raw,
        "values": values,
        "returns": np.where(mask, raw + values, 0.0),
        "token_rewards": laid,
    }


def _sampled(case: Case, rows: Sampled) -> dict[str, Any]:
    pad = EOS if case.pad_is_eos else PAD
    longest = max(map(len, rows.prompts))
    prompts = np.full((len(rows.ids), longest), pad)
    real = np.zeros(prompts.shape, dtype=bool)
    for row, prompt in enumerate(rows.prompts):
        places = slice(longest - len(prompt), longest) if case.left_padded else slice(0, len(prompt))
        prompts[row, places], real[row, places] = prompt, True
    inside = np.arange(rows.tokens.shape[1]) < rows.lengths[:, None]
    attention = np.concatenate([real, inside], axis=1)
    ids = np.array([f"problem {one}" for one in rows.ids]) if case.names else rows.ids
    return {
        "tokens": rows.tokens,
        "sampled_tokens": rows.tokens,
        "prompt_tokens": prompts,
        "prompt_mask": real,
        "lengths": rows.lengths,
        "finished": rows.finished,
        "sampler_versions": np.full(len(rows.ids), _version(case) - case.update - case.lag),
        "input_ids": np.concatenate([prompts, rows.tokens], axis=1),
        "attention_mask": attention,
        "position_ids": np.maximum(attention.cumsum(axis=1) - 1, 0),
        "group_ids": ids,
        **({"forced": rows.forced} if case.tools else {}),
    }


def _version(case: Case) -> int:
    return case.update if case.reference == "equal" else 9 + case.update


def _numbers(case: Case, rewards: Array) -> dict[str, Any]:
    scored = rewards[~np.isnan(rewards)]
    return {
        "step": 1 if case.reference == "equal" else 5,
        "update": case.update,
        "policy_version": _version(case),
        "reward_mean": float(scored.mean()) if len(scored) else None,
        "gradient_norm": 0.4,
        "update_norm": 0.01,
        "tensors": 12,
        "tensors_changed": 12,
        "tensors_without_gradient": 0,
        "numbers_changed_share": 0.97,
        "dropout_modules": 0,
    }


def _settings(case: Case, rows: Sampled) -> dict[str, Any]:
    group = case.advantage in ("group", "clipped", "by_length")
    stated = {"baseline": case.baseline, "std": case.std, "scale": case.scale, "advantage_epsilon": case.epsilon}
    ends = {-1.0: -1.0, 1.0: 1.0}
    del ends
    return {
        **(stated if group else {}),
        "objective": case.objective,
        "clip_low": case.clip[0],
        "clip_high": case.clip[1],
        "dual_clip": case.dual_clip,
        "delta": case.delta,
        "cispo_max": 5.0,
        "kl_coef": case.kl_coef,
        "kl_placement": case.kl_placement,
        "kl_estimator": case.kl_estimator if case.kl_placement == "loss" else "k1",
        "kl_gradient": case.kl_gradient,
        "reference_every": 4 if case.reference == "renewed" else 0,
        "entropy_coef": case.entropy_coef,
        "correction": case.correction,
        "correction_mode": "truncate",
        "correction_high": 2.0,
        **({} if case.unequal else {"group_size": case.size}),
        "prompts": case.groups,
        "temperature": case.temperature,
        "top_k": case.top_k,
        "top_p": 1.0,
        "support_kept": case.support_kept,
        "max_tokens": case.limit,
        "mask_truncated": case.mask_truncated,
        "eos_ids": (EOS, OTHER_EOS) if case.two_eos else (EOS,),
        "pad_id": EOS if case.pad_is_eos else PAD,
        "updates_per_rollout": max(case.update + 1, 1),
        "learning_rate": 1e-5,
        "dtype": "float32" if case.noise == "float32" else "bfloat16",
        "process_rewards": case.advantage == "process",
        **({"max_reward": 1.0} if case.rewards == "solved" and case.reward_scale == 1.0 else {}),
        "trainer": "a test",
    }


def _texts(rows: Sampled, kept: slice) -> dict[str, Any]:
    return {
        "prompt": [" ".join(map(str, prompt)) for prompt in rows.prompts][kept],
        "completion": [" ".join(map(str, row[:length])) for row, length in zip(rows.tokens, rows.lengths, strict=True)][
            kept
        ],
        "prompt_id": [f"p{one}" for one in rows.ids][kept],
    }


def _as_whole_sequences(case: Case, values: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
    """tokens = prompt + completion, log-probs of all but the first: mask 0 on the prompt."""
    prompts = values["prompt_tokens"]
    rows, columns = prompts.shape
    width = values["tokens"].shape[1]
    found = dict(values)
    for name, array in values.items():
        if (
            not isinstance(array, np.ndarray)
            or array.shape != (rows, width)
            or name in ("prompt_tokens", "prompt_mask")
        ):
            continue
        if name in ("tokens", "sampled_tokens"):
            found[name] = np.concatenate([prompts, array], axis=1)
            continue
        head = np.zeros((rows, columns), dtype=array.dtype)
        if name.endswith("_logprobs") or name.startswith("scored"):
            head = -random.exponential(1.0, size=(rows, columns))
        if name == "forced":
            head = ~head
        whole = np.concatenate([head, array], axis=1)
        found[name] = whole if name in ("mask", "forced") else whole[:, 1:]
    found.pop("sampled_tokens")
    found.pop("lengths") if random.random() < 0.5 else None
    return found


__all__ = ["FIRST", "TEXTS", "Case", "V", "step_of"]
