"""
## What it checks
Sampled tokens are draws from the distribution that is trained. For a draw, log p(token) is on average minus the entropy
of p. The check adds log p(token) + entropy over all sampled tokens: it is 0 within the noise if the sampler and the
trainer mean the same distribution. It needs no log-probs of the sampler.
Where the whole distribution was seen, each id is also counted at each place against its probability there, and known
other ways to draw (a temperature, top-k, top-p, min-p, greedy, exploration, penalties, ids that are banned, answers
that are drawn again until they end) are compared by their likelihood: the one that explains the tokens best is named.

## Why it hurts
A sampler with older weights, another prompt, another temperature, top-p or a penalty draws from another distribution.
The policy gradient is then that of another policy, and nothing crashes.

## How to fix it
Compare what the sampler and the trainer are given: weights, prompt, temperature, top-p, top-k, penalties. Answers that
are likelier than they should be point to a sharper sampler; rarer ones to old weights or another prompt.

    # before: the engine's own default cuts off the tail that the trainer counts
    engine.generate(prompts, SamplingParams(temperature=1.0, top_p=0.5))
    # after
    engine.generate(prompts, SamplingParams(temperature=1.0, top_p=1.0))

## When it is wrong
Where sampling is truncated on purpose and the trainer does not renormalise (SAMP02 says so), or where answers come from
another policy on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, healthy_curves, of_batch
from assay.doctor.facts.calibration import calibration_of
from assay.doctor.facts.ends import ends_at_the_limit, is_of_all_rows, pool_ends
from assay.doctor.facts.logprobs import completion_places
from assay.programs.run.watched import WatchedRun
from assay.record.batch import Array
from assay.verdict import (
    Confidence,
    Fact,
    Missing,
    Severity,
    Verdict,
    finding,
    healthy,
    not_applicable,
    not_enough_data,
    seen_directly,
)

TOKENS = 100  # fewer say nothing
TOKENS_WITHOUT_VARIANCE = 400
UNSURE = 0.05  # nats: below it the entropies hold no randomness to look at
BOUND = 4.5  # standard deviations, with room for rare tokens: chance leaves this less than once in 20,000 checks
SURE = 6.0
STEPS_OF_ACTIONS = 2
FEWEST_REPLACED, LEAST_REPLACED = 8, 0.01  # of the trained actions
SAME_WEIGHTS = 1e-4  # nats between old and new before any update
NATS = 12.0  # of evidence, after all that was tried: chance leaves this less than once in 100,000 checks
STEPS = 5  # whose metrics are pooled
BOUND_OF_CURVES = 6.0
LEAST_MEAN = 0.01  # nats: below it the difference does no harm
MOST_PLACES = 64  # in a group, which are looked at one by one
BOUND_WITHOUT_VARIANCE = 8.0  # where the spread is estimated from the tokens themselves, which skew fools


class Draws(NamedTuple):
    """Of the sampled tokens of a batch that can be judged, N of them."""

    surprise_N: Array  # log p + entropy
    variance_N: Array  # what it is under p; its square where that is not known
    is_variance_known: bool
    place_N: Array  # of the row in its group

    @property
    def deviations(self) -> float:
        """Of the sum from 0. A single rare token may weigh as much as a hundred common ones, so that the sum is not
        normal: the bound of Bernstein leaves room for the largest surprise."""
        total = float(self.surprise_N.sum())
        largest = float((np.sign(total) * self.surprise_N).max(initial=0.0))
        spread = float(self.variance_N.sum()) + largest * abs(total) / 3
        return total / float(np.sqrt(max(spread, 1e-12)))


def check_batch(batch: Batch) -> Verdict:
    return _by_calibration([batch]) or _judge(sampled_draws(batch), batch.step)


def check_batches(batches: Sequence[Batch]) -> Verdict:
    """All steps together: what is within the noise of each step may not be within that of the run."""
    by_step: dict[int | None, Draws] = {}
    reasons = []
    for batch in batches:
        try:
            by_step.setdefault(batch.step, sampled_draws(batch))
        except Missing as missing:
            reasons.append(missing)
    if (verdict := _by_calibration(batches) or _by_ends(batches)) is not None:
        return verdict
    known = [draws for draws in by_step.values() if draws.is_variance_known]
    if not known:
        raise reasons[0] if reasons else Missing("plain_variance")
    return _by_place(known) or _judge(pool(known), None, f" of {len(known)} steps")


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """Actions that were put in place of drawn ones, and are scored as if the policy had drawn them."""
    counts = [update.replaced for update in run.updates if update.replaced is not None]
    if not counts and run.updates:
        yield not_enough_data("actions that stand where others were drawn")
    others, of = sum(count for count, _ in counts), sum(of for _, of in counts)
    if others < max(FEWEST_REPLACED, LEAST_REPLACED * of) or sum(count > 0 for count, _ in counts) < STEPS_OF_ACTIONS:
        return
    update = next(update for update in run.updates if update.replaced is not None)
    yield finding(
        f"{others} of {of} trained actions are not those that were drawn at their state: something else was put in "
        "their place (exploration at random, a rule), and the loss scores them as if the policy had drawn them",
        Fact("trained actions that nothing drew", others, 0),
        confidence=Confidence.POSSIBLE,  # exploration may be meant, however biased
        fix="Score what really chose the action: the mixture of policy and exploration, in old and in new. Or train "
        "the drawn actions alone.",
        places=(update.pieces[0].new.place,),
    )


def _by_calibration(batches: Sequence[Batch]) -> Verdict | None:
    """A finding where another way to draw explains the tokens better; None where none does, or it cannot be known."""
    fresh: dict[int | None, Batch] = {}
    for batch in batches:
        if why_not_fresh(batch) is None and batch.settings.get("zero_variance", "keep") == "keep":
            fresh.setdefault(batch.step, batch)
    ends = {int(end) for batch in fresh.values() for end in np.atleast_1d(batch.settings.get("eos_ids", ()))}
    known = [batch for batch in fresh.values() if batch.get("drawn_counts") is not None]
    calibration = calibration_of(known, ends)
    if calibration is None or calibration.tokens < TOKENS:
        return None
    best = calibration.explanations()[0]
    if best.evidence < NATS:
        return None
    return finding(
        f"the sampled tokens of {len(known)} step{'s' * (len(known) > 1)} are not draws from the distribution that is "
        f"trained: {best.words}",
        Fact("log-likelihood of it over that of the scored distribution, in nats", best.evidence, NATS),
        Fact("tokens", calibration.tokens),
        # rows that were chosen after they were drawn look the same
        confidence=Confidence.LIKELY if _are_fresh(known) else Confidence.POSSIBLE,
    )


def _are_fresh(batches: Sequence[Batch]) -> bool:
    """Where a policy over actions is trained, old log-probs of several steps must say so: a batch may be used again."""
    if all(batch.get("prompt_tokens") is not None for batch in batches):
        return True
    return len(batches) >= STEPS_OF_ACTIONS and all(map(_are_of_these_weights, batches))


def _are_of_these_weights(batch: Batch) -> bool:
    old_BT, new_BT, mask_BT = (batch.get(name) for name in ("old_logprobs", "new_logprobs", "mask"))
    if old_BT is None or new_BT is None or mask_BT is None:
        return False
    return bool(np.abs(old_BT - new_BT)[mask_BT].max(initial=0.0) <= SAME_WEIGHTS)


def _by_ends(batches: Sequence[Batch]) -> Verdict | None:
    """A finding where fewer answers are cut off by the limit than the ends of the others say."""
    by_step = {batch.step: batch for batch in reversed(batches) if is_of_all_rows(batch)}
    known = [own for batch in by_step.values() if (own := ends_at_the_limit(batch)) is not None]
    ends = pool_ends(known) if known else None
    if ends is None or ends.evidence < NATS:
        return None
    return finding(
        f"answers that reach the token limit end there too often: {ends.cut_off} of {ends.rows} are cut off, where "
        f"{ends.expected:.1f} are expected: answers that do not end are drawn again or left out (rejection sampling), "
        "or an end is added",
        Fact("evidence against chance, in nats", ends.evidence, NATS),
        confidence=Confidence.LIKELY,
    )


def pool(parts: Sequence[Draws]) -> Draws:
    surprises, variances, known, places = zip(*parts, strict=True)
    return Draws(np.concatenate(surprises), np.concatenate(variances), all(known), np.concatenate(places))


def _by_place(parts: Sequence[Draws]) -> Verdict | None:
    """A finding where the rows at one place of every group, the first for instance, are not draws."""
    pooled = pool(parts)
    places = np.unique(pooled.place_N)
    if not 1 < len(places) <= MOST_PLACES:
        return None
    parts_of = {}
    for place in places.tolist():
        there_N = pooled.place_N == place
        parts_of[place] = Draws(pooled.surprise_N[there_N], pooled.variance_N[there_N], True, pooled.place_N[there_N])
    limit = BOUND + len(places) ** 0.25  # one of many is further off by chance
    off = [place for place, own in parts_of.items() if len(own.surprise_N) >= TOKENS and abs(own.deviations) > limit]
    if not off or len(off) > len(places) / 2:
        return None
    return _judge(parts_of[off[0]], None, f" in row {off[0]} of every group")


def check_curves(curves: Curves) -> Verdict:
    """Of every step and all its tokens, with the spread that these have themselves."""
    if curves.settings.get("top_k"):
        return not_applicable("the entropy is of all tokens, and sampling is among some")
    if curves.settings.get("mask_truncated") or curves.settings.get("zero_variance", "keep") != "keep":
        return not_applicable("rows are left out of the loss by what was sampled, so that the rest are not mere draws")
    mean_N, error_N = curves.need("surprise_mean", "surprise_error")
    if curves.has("tokens_generated") and curves.has("tokens_in_loss"):
        left_out_N = curves.column("tokens_generated") - curves.column("tokens_in_loss")
        if np.nansum(left_out_N) > 0:
            return not_applicable(
                f"{np.nansum(left_out_N):.0f} sampled tokens are not in the loss, so that the rest are not mere draws"
            )
    if curves.has("correction_ess") and curves.settings.get("correction", "off") != "off":
        return not_applicable("importance weights correct for what sampled")
    known_N = np.isfinite(mean_N) & np.isfinite(error_N) & (error_N > 0)
    if known_N.sum() < STEPS:
        return not_enough_data(f"surprise_mean of {STEPS} steps")
    # by tokens, not by how sure a step looks: rare tokens raise the error and lower the mean together
    tokens_N = curves.need("tokens_in_loss")[0][known_N] if curves.has("tokens_in_loss") else np.ones(known_N.sum())
    mean = float((tokens_N * mean_N[known_N]).sum() / tokens_N.sum())
    spread = float(np.sqrt(np.square(tokens_N * error_N[known_N]).sum()) / tokens_N.sum())
    deviations = mean / max(spread, 1e-12)
    facts = (
        Fact("standard deviations of log p + entropy from 0", deviations, BOUND_OF_CURVES),
        Fact("its mean over the tokens of all steps, in nats", mean, LEAST_MEAN),
    )
    if abs(deviations) <= BOUND_OF_CURVES or abs(mean) < LEAST_MEAN:
        return healthy(
            f"the tokens of {int(known_N.sum())} steps look like draws of the policy that is trained", *facts
        )
    kind, cause = _kind_of(deviations)
    return seen_directly(
        f"the sampled tokens of {int(known_N.sum())} steps are {kind} than draws from the distribution that is "
        f"trained: {cause}",
        *facts,
        confidence=Confidence.LIKELY,
    )


def sampled_draws(batch: Batch) -> Draws:
    """Raises Missing where they cannot be judged, and says why."""
    if (reason := why_not_fresh(batch)) is not None:
        raise reason
    if batch.get("plain_entropy") is not None:
        names = ("plain_logprobs", "plain_entropy")
    elif batch.get("entropy") is not None:
        names = ("new_logprobs", "entropy")
    else:
        raise Missing("plain_entropy", "entropy")
    logprobs_BT, entropy_BT, _ = batch.need(*names, "tokens")
    variance_BT = batch.get("plain_variance")
    inside_BT = completion_places(batch) & np.isfinite(logprobs_BT) & np.isfinite(entropy_BT) & (entropy_BT > UNSURE)
    forced_BT = batch.get("forced")
    if forced_BT is not None:
        inside_BT &= ~forced_BT
    surprise_N = (logprobs_BT + entropy_BT)[inside_BT]
    place_B = _places_in_groups(batch, len(inside_BT))
    place_N = np.broadcast_to(place_B[:, None], inside_BT.shape)[inside_BT]
    variance_N = surprise_N**2 if variance_BT is None else variance_BT[inside_BT]
    return Draws(surprise_N, variance_N, variance_BT is not None, place_N)


def why_not_fresh(batch: Batch) -> Missing | None:
    """None where the tokens are of the weights that are trained, as far as the record says."""
    versions_B, version = batch.get("sampler_versions"), batch.numbers.get("policy_version")
    if batch.numbers.get("update") is None:
        return Missing("update")
    if batch.numbers["update"] != 0:
        return Missing("the first update of the rollouts: the weights have moved since these tokens were sampled")
    if versions_B is not None and version is not None and (versions_B != version).any():
        return Missing("tokens of the weights that are trained: the record says that earlier ones sampled these")
    return None


def _places_in_groups(batch: Batch, rows: int) -> Array:
    """How many rows of its group come before each row; all 0 where groups are not known."""
    groups_B = batch.get("group_ids")
    seen: dict[object, int] = {}
    places = []
    for group in [None] * rows if groups_B is None else groups_B.tolist():
        places.append(0 if group is None else seen.get(group, 0))
        seen[group] = seen.get(group, 0) + 1
    return np.array(places)


def _judge(draws: Draws, step: int | None, of: str = "") -> Verdict:
    count, needed = len(draws.surprise_N), TOKENS if draws.is_variance_known else TOKENS_WITHOUT_VARIANCE
    if count < needed:
        return not_enough_data(f"{needed} sampled tokens with some randomness; {count} are here")
    deviations, bound = draws.deviations, BOUND if draws.is_variance_known else BOUND_WITHOUT_VARIANCE
    fact = Fact("standard deviations of log p + entropy from 0", deviations, bound, step)
    mean = Fact("its mean over sampled tokens, in nats", float(draws.surprise_N.mean()))
    if abs(deviations) <= bound:
        return healthy(f"{count} sampled tokens{of} look like draws from the distribution that is trained", fact, mean)
    kind, cause = _kind_of(deviations)
    return finding(
        f"the sampled tokens{of} are {kind} than draws from the distribution that is trained: {cause}",
        fact,
        mean,
        confidence=Confidence.PROVEN if draws.is_variance_known and abs(deviations) > SURE else Confidence.LIKELY,
    )


def _kind_of(deviations: float) -> tuple[str, str]:
    if deviations > 0:
        return (
            "likelier",
            "the sampler's distribution is sharper (a lower temperature, top-p, top-k, min-p, greedy), or answers "
            "are chosen after they were drawn (those that do not end are drawn again, the best are kept)",
        )
    return "rarer", "the sampler has other weights, another prompt, a higher temperature or a penalty"


def _drawn_batch(sharper: float) -> Batch:
    """Tokens drawn from softmax(sharper * logits), scored under softmax(logits)."""
    random = np.random.default_rng(3)
    batch = healthy_batch()
    inside_BT = batch.arrays["mask"]
    logits_BTV = random.standard_normal((*inside_BT.shape, 8)) * 1.5
    scored_BTV, drawn_BTV = (_log_softmax(logits_BTV * factor) for factor in (1.0, sharper))
    chosen_BT = (random.random(inside_BT.shape)[..., None] > np.exp(drawn_BTV).cumsum(axis=2)[..., :-1]).sum(axis=2)
    logprobs_BT = np.take_along_axis(scored_BTV, chosen_BT[..., None], axis=2)[..., 0]
    entropy_BT = -(np.exp(scored_BTV) * scored_BTV).sum(axis=2)
    variance_BT = (np.exp(scored_BTV) * scored_BTV**2).sum(axis=2) - entropy_BT**2
    inside = {"plain_logprobs": logprobs_BT, "plain_entropy": entropy_BT, "plain_variance": variance_BT}
    return edit_batch(batch, **{name: np.where(inside_BT, values_BT, 0.0) for name, values_BT in inside.items()})


def _log_softmax(logits_BTV: np.ndarray) -> np.ndarray:
    shifted_BTV = logits_BTV - logits_BTV.max(axis=2, keepdims=True)
    return np.asarray(shifted_BTV - np.log(np.exp(shifted_BTV).sum(axis=2, keepdims=True)))


def sick() -> Evidence:
    curves = healthy_curves(surprise_mean=0.2, surprise_error=0.05)
    return replace(of_batch(_drawn_batch(sharper=3.0)), curves=curves)


def well() -> Evidence:
    curves = healthy_curves(surprise_mean=0.0, surprise_error=0.05)
    return replace(of_batch(_drawn_batch(sharper=1.0)), curves=curves)


ILLNESS = illness(
    __name__,
    code="LAW01",
    name="law_of_sampling",
    severity=Severity.HARMFUL,
    summary="sampled tokens are not draws from the distribution that is trained",
    fix="Give sampler and trainer the same weights, prompt, temperature, top-p, top-k and penalties.",
    symptoms=("sampler and trainer disagree", "samples do not come from the policy"),
    sick=sick,
    well=well,
    explained_by=frozenset({"SAMP", "SYNC", "ALGN", "RAT01", "RAT05", "MODE", "NUM", "LAW02", "LAW03"}),
)
