"""All the math of GRPO: rewards -> advantages, log-probs + advantages -> loss. Pure functions of tensors.

Shape legend: P prompts, G rollouts per group, K reward components or tokens of a support, S process steps, B rows,
T completion tokens, V vocabulary. Policies: `new` is being trained, `old` sampled, `ref` is frozen, `sampler` is old
as the engine reported it. `mask_BT` is a bool tensor, True on tokens in the loss; what stands under False never
matters, NaN included. Every loss is a sum over tokens whose weights come from counts over the *whole* optimizer update,
so summing it over micro-batches gives the same loss and gradient however the batch is cut.

Only tensor methods are used: the module imports without torch. Papers: GRPO = DeepSeekMath (arXiv 2402.03300),
DAPO = 2503.14476, Dr. GRPO = 2503.20783, GSPO = 2507.18071, CISPO = MiniMax-M1 2506.13585, SAPO = 2511.20347,
GDPO = 2601.05242, RLOO = 2402.14740, dual clip = 1912.09729, two-sided delta = INTELLECT-2 2505.07291,
IcePop/TIS/MIS = the importance weights old/sampler against engine mismatch, KL k1 k2 k3 = J. Schulman 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from assay.config.sections import LossConfig
    from assay.types import Totals

LOG_RATIO_LIMIT = 20.0  # e^20 = 5e8: far beyond any clip bound, far below the overflow of float32 (e^88)
REWARD_LIMIT = 1e15  # the squares of 1e8 such rewards still add up to a float32 (3e38)
SLOPE_STEP = 1e-6  # of the ratio, for a central difference in float64: off by 1e-10

# the choices there are; the config and the doctor ask for them here
BASELINES, STDS, SCALES = ("mean", "leave_one_out"), ("sample", "population", "none"), ("group", "batch")
LEVELS, AGGREGATIONS = ("token", "sequence"), ("sequence_mean", "token_mean", "rollout_token_mean", "constant")
CORRECTIONS, CORRECTION_MODES = ("token", "sequence", "geometric"), ("truncate", "mask")


# ---------------------------------------------------------------- advantages


def group_advantages(
    rewards_PG: Tensor, *, baseline: str = "mean", std: str = "sample", scale: str = "group", epsilon: float = 1e-4
) -> Tensor:
    """A = (r - baseline) / (std + epsilon); DeepSeekMath 4.1.2 by the "sample" or "population" std, Dr. GRPO by "none".

    A NaN reward is a rollout that could not be scored: it leaves baseline and std, and its advantage is 0.
    scale="batch" divides by the std of all rewards; baseline="leave_one_out" subtracts the mean of the others (RLOO).

    >>> import torch
    >>> group_advantages(torch.tensor([[1.0, 0.0, 0.0, 1.0]]), std="none").tolist()
    [[0.5, -0.5, -0.5, 0.5]]
    """
    _check_choice("baseline", baseline, BASELINES)
    _check_choice("scale", scale, SCALES)
    _refuse_unusable_rewards(rewards_PG)
    scaled_by = rewards_PG if scale == "group" else rewards_PG.reshape(1, -1)
    advantages_PG = _divided_by_std(_centred(rewards_PG, baseline), scaled_by, std, epsilon)
    return advantages_PG.where(~rewards_PG.isnan(), 0.0)


def gdpo_advantages(rewards_PGK: Tensor, weights_K: Tensor, *, std: str = "sample", epsilon: float = 1e-4) -> Tensor:
    """GDPO: z-score each reward within its group, add them up by weight, z-score the sum over the batch.

    A component that is NaN counts as its group's mean; a rollout whose components are all NaN gets advantage 0.
    """
    unscored_PG = rewards_PGK.isnan().all(dim=2)
    summed_PG = rewards_PGK.new_zeros(rewards_PGK.shape[:2])
    for component_PG, weight in zip(rewards_PGK.unbind(dim=2), weights_K, strict=True):
        summed_PG = summed_PG + weight * group_advantages(component_PG, std=std, epsilon=epsilon)
    summed_1N = summed_PG.where(~unscored_PG, float("nan")).reshape(1, -1)
    advantages_1N = _divided_by_std(_centred(summed_1N, "mean"), summed_1N, std, epsilon)
    return advantages_1N.reshape(summed_PG.shape).where(~unscored_PG, 0.0)


def process_advantages(
    step_rewards_PGS: Tensor, step_ends_PGS: Tensor, num_tokens: int, *, std: str = "sample", epsilon: float = 1e-4
) -> Tensor:
    """GRPO with process rewards (DeepSeekMath 4.1.3): z-score all step rewards of a group together; the advantage
    of token t is the sum of the z-scores of the steps that end at t or later. A NaN step does not exist.

    `step_ends_PGS` holds the index of each step's last token. Returns advantages_PGT.
    """
    groups, size, steps = step_rewards_PGS.shape
    _refuse_unusable_rewards(step_rewards_PGS)
    flat = step_rewards_PGS.reshape(groups, size * steps)
    scores = _divided_by_std(_centred(flat, "mean"), flat, std, epsilon)
    scores_PGS1 = scores.where(~flat.isnan(), 0.0).reshape(groups, size, steps, 1)
    token_T = step_ends_PGS.new_ones(num_tokens).cumsum(0) - 1
    return (scores_PGS1 * (step_ends_PGS.unsqueeze(3) >= token_T)).sum(dim=2)


def overlong_penalty(length_B: Tensor, max_tokens: int, penalty_tokens: int) -> Tensor:
    """DAPO eq. 13: 0 up to max_tokens - penalty_tokens, then linear down to -1 at max_tokens."""
    return -((length_B - (max_tokens - penalty_tokens)) / penalty_tokens).clamp(0.0, 1.0)


def _refuse_unusable_rewards(rewards_PG: Tensor) -> None:
    if rewards_PG.shape[1] < 2:
        raise ValueError(
            "a group of 1 has nobody to be compared with: its advantage would always be 0 (or its raw reward); "
            "use group_size >= 2"
        )
    if (rewards_PG.abs() > REWARD_LIMIT).any():
        raise ValueError(
            f"a reward is infinite or beyond {REWARD_LIMIT:g}: the std of its group would overflow and turn the "
            "group's advantages into 0 or NaN; bound the reward, or leave the rollout unscored"
        )


def _check_choice(name: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} = {value!r} is not one of {', '.join(choices)}")


def _centred(rewards_PG: Tensor, baseline: str) -> Tensor:
    """r - mean over the scored rollouts, exactly 0 where they are all equal (a float mean may be off by one bit)."""
    centred_PG = rewards_PG - rewards_PG.nanmean(dim=1, keepdim=True)
    if baseline == "leave_one_out":
        # r_i - mean of the others = (r_i - mean) * n / (n - 1); the 0 / 0 of a single score is replaced below
        scored_P1 = (~rewards_PG.isnan()).sum(dim=1, keepdim=True)
        centred_PG = centred_PG * scored_P1 / (scored_P1 - 1)
    highest_P1 = rewards_PG.where(~rewards_PG.isnan(), -float("inf")).amax(dim=1, keepdim=True)
    lowest_P1 = rewards_PG.where(~rewards_PG.isnan(), float("inf")).amin(dim=1, keepdim=True)
    return centred_PG.where(highest_P1 > lowest_P1, 0.0)


def _divided_by_std(centred_PG: Tensor, rewards_PG: Tensor, std: str, epsilon: float) -> Tensor:
    _check_choice("std", std, STDS)
    if std == "none":
        return centred_PG
    spread_P1 = _std(rewards_PG, std)
    # where nothing varies, centred is 0 and must stay 0, for epsilon = 0 and for a single score too
    return centred_PG / (spread_P1 + epsilon).where(spread_P1 > 0, 1.0)


def _std(rewards_PG: Tensor, kind: str) -> Tensor:
    """Std of the scored rollouts, over n - 1 for "sample", n for "population"; 0 or NaN for fewer than two."""
    squares_P1 = _centred(rewards_PG, "mean").square().nansum(dim=1, keepdim=True)
    scored_P1 = (~rewards_PG.isnan()).sum(dim=1, keepdim=True)
    return (squares_P1 / (scored_P1 - (1 if kind == "sample" else 0))).sqrt()


# ---------------------------------------------------------------- log-probs


def token_logprobs(logits_BTV: Tensor, targets_BT: Tensor, temperature: float) -> Tensor:
    """log softmax(logits / temperature) at the sampled tokens, in float32: the distribution that was sampled from."""
    scaled_BTV = logits_BTV.float() / temperature
    return scaled_BTV.gather(2, targets_BT.unsqueeze(2)).squeeze(2) - scaled_BTV.logsumexp(dim=2)


def token_entropy(logits_BTV: Tensor, temperature: float) -> Tensor:
    """H = logsumexp(z) - sum_v p_v z_v with z = logits / temperature, in float32."""
    # a token ruled out by a logit of -inf has p z = 0 * -inf = NaN; with a finite floor it adds 0
    scaled_BTV = (logits_BTV.float() / temperature).clamp(min=-1e30)
    return scaled_BTV.logsumexp(dim=2) - (scaled_BTV.softmax(dim=2) * scaled_BTV).sum(dim=2)


def restricted(logits_BTV: Tensor, support_BTK: Tensor) -> Tensor:
    """The logits, -inf outside of the tokens that could have been sampled; naming a token twice does no harm."""
    allowed_BTV = logits_BTV.new_zeros(logits_BTV.shape).bool().scatter(2, support_BTK, True)
    return logits_BTV.masked_fill(~allowed_BTV, -float("inf"))


def importance_ratio(new_BT: Tensor, old_BT: Tensor, mask_BT: Tensor, level: str = "token") -> Tensor:
    """new / old. "token": exp(new - old), 1 under the mask. "sequence": exp(mean over the row's tokens of new - old),
    GSPO eq. 7, the same number on the whole row, masked tokens included, with the gradient through the mean."""
    _check_choice("level", level, LEVELS)
    log_ratio_BT = (new_BT - old_BT).where(mask_BT, 0.0)
    if level == "sequence":
        lengths_B1 = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
        log_ratio_BT = (log_ratio_BT.sum(dim=1, keepdim=True) / lengths_B1).expand_as(log_ratio_BT)
    return log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


# ---------------------------------------------------------------- KL and engine mismatch


KL_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {  # of d = new - ref
    "k1": lambda d_BT: d_BT,
    "k2": lambda d_BT: d_BT.square() / 2,
    "k3": lambda d_BT: (-d_BT).expm1() + d_BT,  # exp(-d) - 1 + d, never negative
}


def kl_estimate(new_BT: Tensor, ref_BT: Tensor, estimator: str = "k3") -> Tensor:
    """KL(new || ref) per token from new's own samples (Schulman)."""
    _check_choice("estimator", estimator, KL_ESTIMATORS)
    return KL_ESTIMATORS[estimator]((new_BT - ref_BT).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def sequence_kl(old_BT: Tensor, ref_BT: Tensor, mask_BT: Tensor, estimator: str = "k1") -> Tensor:
    """KL of a whole completion, for kl_placement = "reward": the sum over its tokens; reward - coef * this.

    The gradient of E[k] with k a constant is that of the KL for k1 only."""
    return kl_estimate(old_BT, ref_BT, estimator).where(mask_BT, 0.0).sum(dim=1)


def mismatch_weights(old_BT: Tensor, sampler_BT: Tensor, mask_BT: Tensor, settings: LossConfig) -> Tensor:
    """Importance weight rho = old / sampler, without gradient, against an engine that computes other log-probs.

    correction: "token" rho_t; "sequence" the product over the row; "geometric" its length-th root.
    correction_mode: "truncate" clamps to the bounds (TIS); "mask" zeroes what is outside (MIS; IcePop for tokens).
    A sampler log-prob that is NaN was not reported: its weight is 1. Under the mask the weight is 1.
    """
    level, low, high = settings.correction, settings.correction_low, settings.correction_high
    _check_choice("loss.correction", level, CORRECTIONS)
    _check_choice("loss.correction_mode", settings.correction_mode, CORRECTION_MODES)
    log_weight_BT = (old_BT - sampler_BT).where(mask_BT & ~sampler_BT.isnan(), 0.0)
    if level in ("sequence", "geometric"):
        log_weight_B1 = log_weight_BT.sum(dim=1, keepdim=True)
        if level == "geometric":
            log_weight_B1 = log_weight_B1 / mask_BT.sum(dim=1, keepdim=True)
        log_weight_BT = log_weight_B1.expand_as(log_weight_BT)
    weight_BT = log_weight_BT.detach().exp()
    if settings.correction_mode == "truncate":
        weight_BT = weight_BT.clamp(low, high)
    else:
        weight_BT = weight_BT.where((weight_BT >= low) & (weight_BT <= high), 0.0)
    return weight_BT.where(mask_BT, 1.0)  # also the 0 / 0 of a row without tokens


# ---------------------------------------------------------------- objectives

Term = Callable[["Tensor", "Tensor", "Tensor", "LossConfig"], "tuple[Tensor, Tensor]"]


@dataclass(frozen=True)
class Objective:
    """A loss of the GRPO family, and all that the config, the trainer and the doctor have to know of it."""

    term: Term  # (ratio_BT, advantages_BT, new_BT, settings) -> (loss_BT, clipped_BT)
    level: str  # of the ratio, see LEVELS
    aggregation: str  # see token_weights
    settings: tuple[str, ...] = ()  # of LossConfig, that the term reads
    clips: bool = False  # it is min(r A, clip(r) A) with the bounds clip_low and clip_high
    bounds_ratio: bool = False  # no ratio, however large, makes a large loss; a clip does not bound it where A < 0
    detached: bool = False  # the ratio is a weight without gradient; the loss is a weight times new

    def slope(self, ratio_BT: Tensor, advantages_BT: Tensor, settings: LossConfig) -> Tensor:
        """d loss / d log-ratio of each token; d loss / d new where the ratio is detached. For float64."""
        one_BT = advantages_BT.new_ones(advantages_BT.shape)
        low_BT, here_BT, high_BT = (
            self.term(ratio_BT + step, advantages_BT, one_BT, settings)[0] for step in (-SLOPE_STEP, 0.0, SLOPE_STEP)
        )
        return here_BT if self.detached else (high_BT - low_BT) / (2 * SLOPE_STEP) * ratio_BT


OBJECTIVES: dict[str, Objective] = {}


def objective(name: str, **facts: Any) -> Callable[[Term], Term]:
    """Registers a per-token loss under a name, with the facts of an Objective; nothing else names the objectives."""

    def register(term: Term) -> Term:
        OBJECTIVES[name] = Objective(term, **facts)
        return term

    return register


_CLIP: dict[str, Any] = {"clips": True, "settings": ("clip_low", "clip_high", "dual_clip", "delta")}


@objective("gspo", level="sequence", aggregation="sequence_mean", **_CLIP)
@objective("dapo", level="token", aggregation="rollout_token_mean", **_CLIP)
@objective("dr_grpo", level="token", aggregation="constant", **_CLIP)
@objective("bnpo", level="token", aggregation="token_mean", **_CLIP)
@objective("grpo", level="token", aggregation="sequence_mean", **_CLIP)
def clipped_surrogate(
    ratio_BT: Tensor, advantages_BT: Tensor, new_BT: Tensor, settings: LossConfig
) -> tuple[Tensor, Tensor]:
    """-min(r A, clip(r, 1 - low, 1 + high) A); low < high is clip-higher. delta caps r in the first arm only; dual
    clip c bounds the objective from below by c A where A < 0."""
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    capped_BT = ratio_BT.clamp(max=settings.delta) if settings.delta else ratio_BT
    # not clamp: since torch 2.15 its gradient at a bound is 0, and a bound can be 1, the ratio of every first update
    bounded_BT = ratio_BT.masked_fill(ratio_BT < low, low).masked_fill(ratio_BT > high, high)
    objective_BT = (capped_BT * advantages_BT).minimum(bounded_BT * advantages_BT)
    if settings.dual_clip:
        floored_BT = objective_BT.maximum(settings.dual_clip * advantages_BT)
        objective_BT = floored_BT.where(advantages_BT < 0, objective_BT)
    clipped_BT = ((ratio_BT < low) & (advantages_BT < 0)) | ((ratio_BT > high) & (advantages_BT > 0))
    return -objective_BT, clipped_BT


@objective(
    "cispo", level="token", aggregation="rollout_token_mean", bounds_ratio=True, detached=True, settings=("cispo_max",)
)
def cispo(ratio_BT: Tensor, advantages_BT: Tensor, new_BT: Tensor, settings: LossConfig) -> tuple[Tensor, Tensor]:
    """-sg(min(r, cap)) A log new: every token keeps a gradient, its weight is bounded. The cap is absolute."""
    weight_BT = ratio_BT.detach().clamp(max=settings.cispo_max)
    return -weight_BT * advantages_BT * new_BT, ratio_BT > settings.cispo_max


@objective(
    "sapo", level="token", aggregation="sequence_mean", bounds_ratio=True, settings=("sapo_positive", "sapo_negative")
)
def sapo(ratio_BT: Tensor, advantages_BT: Tensor, new_BT: Tensor, settings: LossConfig) -> tuple[Tensor, Tensor]:
    """-(4 / tau) sigmoid(tau (r - 1)) A, tau by the sign of A: a soft gate in the place of the clip."""
    positive = advantages_BT.new_tensor(settings.sapo_positive)
    temperature_BT = positive.where(advantages_BT > 0, settings.sapo_negative)
    gate_BT = (temperature_BT * (ratio_BT - 1)).sigmoid() * 4 / temperature_BT
    return -gate_BT * advantages_BT, ratio_BT.isnan()  # nothing is ever clipped


def token_weights(mask_BT: Tensor, aggregation: str, totals: Totals) -> Tensor:
    """The weight of each token in the loss, from counts over the whole optimizer update.

    sequence_mean:      1 / (sequences * tokens of its row)    GRPO eq. 3; a fully masked row counts as a sequence
    token_mean:         1 / loss tokens of this update         BNPO
    rollout_token_mean: 1 / (loss tokens of the rollout batch / its updates)    DAPO eq. 8
    constant:           1 / (sequences * max_tokens)           Dr. GRPO
    """
    _check_choice("aggregation", aggregation, AGGREGATIONS)
    denominators: dict[str, float | Tensor] = {
        "sequence_mean": mask_BT.sum(dim=1, keepdim=True).clamp(min=1) * totals.sequences,
        "token_mean": max(totals.tokens, 1),
        "rollout_token_mean": max(totals.share_of_rollout_tokens, 1.0),
        "constant": totals.sequences * totals.max_tokens,
    }
    return mask_BT / denominators[aggregation]


# ---------------------------------------------------------------- the loss


@dataclass(frozen=True)
class Loss:
    """A micro-batch's share of the loss of its update, its parts, and the per-token facts worth recording."""

    total: Tensor  # the one value with a gradient
    policy: Tensor
    kl: Tensor
    entropy: Tensor
    ratio_BT: Tensor
    clipped_BT: Tensor  # bool, only on loss tokens
    weight_BT: Tensor  # importance weight old / sampler, 1 if the correction is off


def policy_loss(
    *,
    new_BT: Tensor,
    old_BT: Tensor,
    advantages_BT: Tensor,
    mask_BT: Tensor,
    totals: Totals,
    settings: LossConfig,
    sampler_BT: Tensor | None = None,
    ref_BT: Tensor | None = None,
    entropy_BT: Tensor | None = None,
) -> Loss:
    """sum over tokens of weight * (mismatch * objective + kl_coef * KL) - entropy_coef * mean entropy.

    The KL is added after the mismatch weight, as in TRL. kl_gradient = "unbiased" multiplies the KL by the ratio:
    grad E_old[r k] = grad E_new[k], whereas the gradient of k alone drops the part where the samples move. Exact for
    a token given its prefix; k2 is the exception: E_new[k2] is not the KL, and the gradient of k2 alone is the KL's
    where new = old. gspo's ratio is its sequence's, so that the equality is only near (TRL does the same).
    """
    _check_choice("loss.objective", settings.objective, OBJECTIVES)
    if min(new_BT.dtype.itemsize, old_BT.dtype.itemsize) < 4:
        raise ValueError(
            f"log-probs in {new_BT.dtype} and {old_BT.dtype} keep 3 digits, too few for a ratio; "
            "compute them in float32, as token_logprobs does"
        )
    chosen = OBJECTIVES[settings.objective]
    # what stands under the mask may be anything: replaced before any arithmetic, since NaN * 0 is NaN
    new_BT, old_BT, advantages_BT = (x.where(mask_BT, 0.0) for x in (new_BT, old_BT, advantages_BT))
    ratio_BT = importance_ratio(new_BT, old_BT, mask_BT, chosen.level)
    loss_BT, clipped_BT = chosen.term(ratio_BT, advantages_BT, new_BT, settings)
    weights_BT = token_weights(mask_BT.to(new_BT.dtype), chosen.aggregation, totals)

    mismatch_BT = ratio_BT.new_ones(ratio_BT.shape)
    if settings.correction != "off":
        if sampler_BT is None:
            raise ValueError("loss.correction needs the sampler's log-probs; this batch has none")
        mismatch_BT = mismatch_weights(old_BT, sampler_BT, mask_BT, settings)
    policy = (weights_BT * mismatch_BT * loss_BT).sum()

    kl = policy.new_zeros(())
    if settings.kl_coef and settings.kl_placement == "loss":
        if ref_BT is None:
            raise ValueError("loss.kl_coef > 0 needs the reference's log-probs; this batch has none")
        kl_BT = kl_estimate(new_BT, ref_BT.where(mask_BT, 0.0), settings.kl_estimator)
        if settings.kl_gradient == "unbiased":
            kl_BT = kl_BT * ratio_BT
        kl = settings.kl_coef * (weights_BT * kl_BT).sum()

    entropy = policy.new_zeros(())
    if settings.entropy_coef:
        if entropy_BT is None:
            raise ValueError("loss.entropy_coef > 0 needs the entropies; this batch has none")
        mean_weights_BT = token_weights(mask_BT.to(new_BT.dtype), "token_mean", totals)
        entropy = -settings.entropy_coef * (mean_weights_BT * entropy_BT.where(mask_BT, 0.0)).sum()

    return Loss(
        total=policy + kl + entropy,
        policy=policy.detach(),
        kl=kl.detach(),
        entropy=entropy.detach(),
        ratio_BT=ratio_BT.detach(),
        clipped_BT=clipped_BT & mask_BT,
        weight_BT=mismatch_BT,
    )
