"""A GRPO step of its own, for tests of the doctor: a tiny policy with true distributions, real sampling, plain math.

Nothing here comes from assay: a mistake that the doctor shares with the trainer would not be seen otherwise.
Shape legend: B rows, T completion tokens, P prompt tokens, V vocabulary, S = P + T.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

Array = np.ndarray
V, PAD, EOS, OTHER_EOS, FIRST = 24, 0, 1, 2, 3
KINDS = 5  # of prompts: each has its own bias


@dataclass(frozen=True)
class Case:
    """One healthy way to train. Every combination is meant by somebody."""

    seed: int = 0
    groups: int = 4
    size: int = 4
    unequal: bool = False
    shuffled: bool = False
    names: bool = False  # group ids are strings
    limit: int = 12  # tokens of a completion
    ending: float = 1.0  # logit of EOS: -20 never ends, 20 ends at once
    temperature: float = 1.0
    top_k: int = 0
    support_kept: bool = False
    sharpness: float = 1.0
    objective: str = "grpo"
    clip: tuple[float, float] = (0.2, 0.2)
    dual_clip: float = 0.0
    delta: float = 0.0
    advantage: str = "group"  # group process ppo whitened clipped by_length nemo max_rl raw baseline_whitened
    std: str = "sample"
    baseline: str = "mean"
    scale: str = "group"
    epsilon: float = 1e-4
    kl_coef: float = 0.0
    kl_estimator: str = "k3"
    kl_gradient: str = "naive"
    kl_placement: str = "loss"
    reference: str = "different"  # equal (step 1) different renewed
    update: int = 0
    drift: float = 0.02
    noise: str = "float32"  # float32 rounded16 engine16
    lag: int = 0
    correction: str = "off"  # off token sequence geometric
    old_is_sampler: bool = False
    rewards: str = "binary"  # binary noisy solved hopeless partial
    reward_scale: float = 1.0
    reward_shift: float = 0.0
    unscored: bool = False
    left_padded: bool = True
    pad_is_eos: bool = False
    two_eos: bool = False
    stop_strings: bool = False
    tools: bool = False
    mask_truncated: bool = False
    empty_row: bool = False
    whole_sequences: bool = False
    part: str = "whole"  # whole counted uncounted
    entropy_coef: float = 0.0

    def but(self, **changes: Any) -> Case:
        return replace(self, **changes)


class Policy:
    """Logits of the next token from the one before, the kind of prompt and the parity of the place."""

    def __init__(self, random: np.random.Generator, sharpness: float, ending: float, *, two_eos: bool) -> None:
        self.by_token = sharpness * random.standard_normal((V, V))
        self.by_prompt = sharpness * random.standard_normal((KINDS, V))
        self.by_place = 0.3 * sharpness * random.standard_normal((7, V))
        self.by_prompt[:, [PAD, OTHER_EOS]] = -1e9
        self.by_prompt[:, EOS] = ending
        if two_eos:
            self.by_prompt[:, OTHER_EOS] = ending - 0.5

    def moved(self, random: np.random.Generator, size: float) -> Policy:
        other = object.__new__(Policy)
        other.by_token = self.by_token + size * random.standard_normal(self.by_token.shape)
        other.by_prompt = self.by_prompt + size * random.standard_normal(self.by_prompt.shape)
        other.by_place = self.by_place
        return other

    def logits(self, kind: Array, before: Array, place: Array | int) -> Array:
        return self.by_token[before] + self.by_prompt[kind] + self.by_place[np.asarray(place) % 7]


def log_softmax(logits: Array) -> Array:
    top = logits.max(axis=-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=-1, keepdims=True))


def cut_to(logits: Array, top_k: int) -> Array:
    if not top_k:
        return logits
    least = np.sort(logits, axis=-1)[..., -top_k][..., None]
    return np.where(logits >= least, logits, -np.inf)


def to_bfloat16(values: Array) -> Array:
    return torch.tensor(np.asarray(values), dtype=torch.float32).bfloat16().double().numpy()


@dataclass
class Sampled:
    kind: Array
    prompts: list[list[int]]
    ids: Array
    tokens: Array
    lengths: Array
    finished: Array
    forced: Array


def sample(case: Case, policy: Policy, random: np.random.Generator) -> Sampled:
    sizes = [case.size] * case.groups
    if case.unequal:
        sizes = [int(random.integers(2, case.size + 3)) for _ in sizes]
    ids = np.repeat(np.arange(case.groups), sizes)
    if case.shuffled:
        ids = ids[random.permutation(len(ids))]
    kinds = random.integers(0, KINDS, size=case.groups)
    of_group = [random.integers(FIRST, V, size=random.integers(3, 7)).tolist() for _ in range(case.groups)]
    rows, width = len(ids), case.limit
    tokens = np.full((rows, width), EOS if case.pad_is_eos else PAD)
    forced = np.zeros((rows, width), dtype=bool)
    lengths, finished = np.zeros(rows, dtype=int), np.zeros(rows, dtype=bool)
    before = np.array([of_group[one][-1] for one in ids])
    ends = [EOS, OTHER_EOS] if case.two_eos else [EOS]
    talks = random.integers(2, 6, size=rows) if case.tools and width > 8 else np.full(rows, -9)
    for at in range(width):
        logits = cut_to(policy.logits(kinds[ids], before, at) / case.temperature, case.top_k)
        chances = np.exp(log_softmax(logits))
        drawn = (chances.cumsum(axis=1) > random.random((rows, 1)) * chances.sum(axis=1, keepdims=True)).argmax(axis=1)
        told = (at >= talks) & (at < talks + 2)
        drawn = np.where(told, random.integers(FIRST, V, size=rows), drawn)
        if case.tools:  # the policy's turn ends before the tool speaks, and not earlier
            drawn = np.where((at < talks + 2) & np.isin(drawn, ends), random.integers(FIRST, V, size=rows), drawn)
            drawn = np.where(at == talks - 1, EOS, drawn)
        tokens[~finished, at] = drawn[~finished]
        forced[~finished, at] = (told | (case.tools & (at == talks - 1)))[~finished]
        lengths[~finished] = at + 1
        stopped = np.isin(drawn, ends) & (at >= talks + 2)
        if case.stop_strings:
            stopped |= (drawn % 7 == 3) & (at > 1) & (at >= talks + 2)
        finished |= stopped
        before = np.where(finished, before, drawn)
    return Sampled(kinds[ids], [of_group[one] for one in ids], ids, tokens, lengths, finished, forced)


def score(case: Case, policy: Policy, rows: Sampled, temperature: float, *, kept: bool) -> Array:
    """Log-probs of the sampled tokens; float32."""
    before = np.concatenate([np.array([one[-1] for one in rows.prompts])[:, None], rows.tokens[:, :-1]], axis=1)
    place = np.broadcast_to(np.arange(rows.tokens.shape[1]), rows.tokens.shape)
    kind = np.broadcast_to(rows.kind[:, None], rows.tokens.shape)
    logits = policy.logits(kind, before, place) / temperature
    all_ = log_softmax(logits)
    if kept and case.top_k:
        # renormalised over what the sampler could choose from, plus the token itself where the policy has moved
        own = np.take_along_axis(logits, rows.tokens[..., None], axis=-1)
        within = cut_to(logits, case.top_k)
        within = np.where(logits == own, own, within)
        all_ = log_softmax(within)
    return np.take_along_axis(all_, rows.tokens[..., None], axis=-1)[..., 0].astype(np.float32).astype(np.float64)


def entropies(policy: Policy, rows: Sampled, temperature: float) -> Array:
    before = np.concatenate([np.array([one[-1] for one in rows.prompts])[:, None], rows.tokens[:, :-1]], axis=1)
    place = np.broadcast_to(np.arange(rows.tokens.shape[1]), rows.tokens.shape)
    kind = np.broadcast_to(rows.kind[:, None], rows.tokens.shape)
    all_ = log_softmax(policy.logits(kind, before, place) / temperature)
    return -(np.exp(all_) * np.maximum(all_, -1e5)).sum(axis=-1)


def reward_rows(case: Case, rows: Sampled, random: np.random.Generator) -> Array:
    sums = np.array([int(row[:length].sum()) for row, length in zip(rows.tokens, rows.lengths, strict=True)])
    found = {
        "binary": (sums % 3 == 0).astype(float),
        "noisy": random.standard_normal(len(sums)),
        "solved": np.ones(len(sums)),
        "hopeless": np.zeros(len(sums)),
        "partial": (sums % 11) / 10.0,
    }[case.rewards]
    found = found * case.reward_scale + case.reward_shift
    if case.unscored:
        found = np.where(random.random(len(found)) < 0.2, np.nan, found)
    return np.asarray(found, dtype=np.float32).astype(np.float64)


def spread(values: Array, std: str) -> float:
    if std == "none":
        return 1.0
    return float(values.std(ddof=1 if std == "sample" else 0)) if len(values) > 1 else 0.0


def advantages_of(case: Case, rewards: Array, ids: Array, mask: Array) -> Array:
    scored = ~np.isnan(rewards)
    found = np.zeros(len(rewards))
    everyone = rewards[scored] if scored.any() else np.zeros(2)
    for group in np.unique(ids):
        rows = np.flatnonzero((ids == group) & scored)
        own = rewards[rows]
        if len(own) < 2 or np.ptp(own) == 0:
            continue
        if case.advantage == "nemo":  # the std of the others too
            others = [np.delete(own, at) for at in range(len(own))]
            stds = np.array([one.std(ddof=1) if len(one) > 1 else 0.0 for one in others])
            centred = own - np.array([one.mean() for one in others])
            found[rows] = np.where(stds > 0, centred / (stds + 1e-6), centred)
            continue
        centred = own - own.mean()
        if case.baseline == "leave_one_out":
            centred = centred * len(own) / (len(own) - 1)
        if case.advantage == "max_rl":
            found[rows] = centred / (own.mean() + 1e-6)
            continue
        divisor = spread(own if case.scale == "group" else everyone, case.std)
        found[rows] = centred / (divisor + (case.epsilon if case.std != "none" else 0.0))
    if case.advantage == "whitened":  # REINFORCE++: over the batch
        found = np.where(scored, (rewards - everyone.mean()) / (everyone.std(ddof=1) + 1e-8), 0.0)
    if case.advantage == "baseline_whitened":  # REINFORCE++ with a baseline: group mean, then whitened over tokens
        centred = np.zeros(len(rewards))
        for group in np.unique(ids):
            rows = np.flatnonzero((ids == group) & scored)
            centred[rows] = rewards[rows] - rewards[rows].mean() if len(rows) else 0.0
        tokens = np.broadcast_to(centred[:, None], mask.shape)[mask] if mask.any() else centred
        found = (centred - tokens.mean()) / (tokens.std() + 1e-8)
    if case.advantage == "raw":
        found = np.where(scored, rewards, 0.0)
    if case.advantage == "clipped":
        found = found.clip(-0.9, 0.9)
    if case.advantage == "by_length":
        found = found / np.maximum(mask.sum(axis=1), 1)
    return found.astype(np.float32).astype(np.float64)


def loss_of(case: Case, given: dict[str, Array], counts: tuple[int, int]) -> dict[str, Any]:
    """The loss by torch, and its gradient by autograd; `counts`: rows and loss tokens of the whole update."""
    mask = torch.tensor(given["mask"])
    new = torch.tensor(given["new"], dtype=torch.float32, requires_grad=True)
    old, ref, weight = (torch.tensor(given[name], dtype=torch.float32) for name in ("old", "ref", "weight"))
    gain = torch.tensor(given["advantages"], dtype=torch.float32)
    gain = gain if gain.ndim == 2 else gain[:, None].expand(mask.shape)
    log_ratio = torch.where(mask, new - old, torch.zeros(()))
    lengths = mask.sum(dim=1, keepdim=True).clamp(min=1)
    if case.objective == "gspo":
        log_ratio = (log_ratio.sum(dim=1, keepdim=True) / lengths).expand(mask.shape)
    ratio = log_ratio.exp()
    low, high = 1 - case.clip[0], 1 + case.clip[1]
    clipped = mask & (((ratio < low) & (gain < 0)) | ((ratio > high) & (gain > 0)))
    if case.objective == "cispo":
        token = -ratio.detach().clamp(max=5.0) * gain * new
        clipped = mask & (ratio > 5.0)
    elif case.objective == "sapo":
        heat = torch.where(gain > 0, 1.0, 1.05)
        token = -torch.sigmoid(heat * (ratio - 1)) * 4 / heat * gain
        clipped = torch.zeros_like(mask)
    else:
        capped = ratio.clamp(max=case.delta) if case.delta else ratio
        best = torch.minimum(capped * gain, ratio.clamp(low, high) * gain)
        if case.dual_clip:
            best = torch.where(gain < 0, torch.maximum(best, case.dual_clip * gain), best)
        token = -best
    token = token * weight
    far = torch.where(mask, new - ref, torch.zeros(()))
    kl = {"k1": far, "k2": far**2 / 2, "k3": torch.exp(-far) + far - 1}[case.kl_estimator]
    if case.kl_gradient == "unbiased":
        kl = kl * ratio
    in_loss = case.kl_coef if case.kl_placement == "loss" else 0.0
    rows, tokens = counts
    weights = (
        mask
        / {
            **dict.fromkeys(("grpo", "gspo", "sapo"), lengths * rows),
            **dict.fromkeys(("bnpo", "dapo", "cispo"), tokens),
            "dr_grpo": rows * case.limit,
        }[case.objective]
    )
    policy = torch.where(mask, weights * token, torch.zeros(())).sum()
    penalty = in_loss * torch.where(mask, weights * kl, torch.zeros(())).sum()
    bonus = -case.entropy_coef * float(given["entropy"][given["mask"]].sum()) / max(tokens, 1)
    loss = policy + penalty + bonus
    loss.backward()
    found: dict[str, Any] = {
        "ratio": ratio.detach().double().numpy()[:, 0] if case.objective == "gspo" else ratio.detach().double().numpy(),
        "clipped": clipped.numpy(),
        "token_loss": torch.where(mask, token + in_loss * kl, torch.zeros(())).detach().double().numpy(),
        "gradients": new.grad.double().numpy(),
        "loss": loss.item(),
        "policy_loss": policy.item(),
        "clipped_share": float(clipped.sum() / mask.sum().clamp(min=1)),
    }
    found |= {f"loss_{how}": loss.item() for how in ("again", "padded", "permuted", "split", "perturbed")}
    found |= {f"gradients_{how}": found["gradients"] for how in ("split", "perturbed")}
    if in_loss:
        inside = kl.detach()[mask].double()
        found |= {"kl": torch.where(mask, kl, torch.zeros(())).detach().double().numpy(), "kl_loss": penalty.item()}
        found["kl_mean"] = float(inside.mean()) if len(inside) else 0.0
    return found


def correction_of(case: Case, old: Array, sampler: Array, mask: Array) -> Array:
    if case.correction == "off":
        return np.ones(mask.shape)
    log_weight = np.where(mask & np.isfinite(sampler), old - sampler, 0.0)
    if case.correction != "token":
        log_weight = np.broadcast_to(log_weight.sum(axis=1, keepdims=True), mask.shape)
    if case.correction == "geometric":
        log_weight = log_weight / np.maximum(mask.sum(axis=1, keepdims=True), 1)
    return np.minimum(np.exp(log_weight), 2.0)
