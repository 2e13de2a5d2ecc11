"""
## What it checks
The reference is the policy as it was at the start, frozen. Before the first update of a run its log-probs must be
those of the policy: the KL is 0. Later it must not follow the policy: log-probs equal bit for bit, steps after the
start, mean that the reference is the policy itself. And where the reference scored the rows again one by one (no
padding, eval mode), the log-probs that went into the KL must agree with that.
In a log it must leave 0, and grow while the policy learns.

## Why it hurts
A reference that is the trained model itself gives a KL of 0 for ever: the penalty is switched off and no metric shows
it. A reference with other weights, active dropout, a forgotten adapter or another temperature pulls the policy towards
something that was never meant; the KL is positive before anything was learned, and part of the gradient goes there.

## How to fix it
Copy the model before training, freeze the copy and put it in eval mode. With adapters, switch them off for the
reference pass.

    # before: two names for one model
    reference = model
    # after
    reference = copy.deepcopy(model).eval().requires_grad_(False)

## When it is wrong
A reference that is deliberately another model than the start (a teacher, an earlier checkpoint) differs from the policy
at step 1. A reference that is renewed (reference_every) equals the policy right after; such runs are not judged by
equality. In bfloat16 two passes differ by a few hundredths.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import GRADIENTS, LOSSES, edit_batch, healthy_batch, healthy_curves
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.facts.logprobs import mean_distance
from assay.doctor.facts.rounding import limit_between_passes
from assay.doctor.facts.trend import reward_range
from assay.programs.edits import Spot
from assay.programs.facts.kinds import Kind
from assay.programs.facts.kl.reference import Doubt, doubts
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.kinds import above, chosen_ids, differences_in
from assay.programs.run.roles import Flow, LossPiece, flows
from assay.programs.run.sight import numbers_of, requires_grad
from assay.programs.run.watched import WatchedRun
from assay.record.batch import Array
from assay.verdict import (
    Confidence,
    Edit,
    Fact,
    Place,
    Severity,
    State,
    Verdict,
    finding,
    healthy,
    not_applicable,
    not_enough_data,
    seen_directly,
)

CERTAIN = -1e-3  # log-prob of a token that the policy is certain of: many policies agree on it to the last bit
SAME = 1e-3  # of log-probs: two passes of the same weights differ by less
TOKENS = 20  # fewer loss tokens have no mean, and may be equal by chance
SETTLED = 3  # steps: a warm-up may begin with a learning rate of 0, so that the first update moves nothing
FIRST_KL = 1e-2  # of a logged KL at step 1 with one update: bfloat16 rounding gives a tenth of it
SIGNAL = 0.25  # of the advantages that are not 0: a run with this much signal has moved its weights
MOVED = 10.0  # times what rounding leaves between two passes: a policy that moved this far is not the frozen one
MOVED_STEPS = 20  # steps with a gradient and a rate: after these a KL is not 0 to the last digit
# trainers that log a KL only where a reference is asked; others log a 0 without one
ASKS_ITS_REFERENCE = frozenset(("TRL", "verl", "slime", "torchtune"))
LEARNING = 40  # steps
LEARNED = 0.15  # of the range of rewards, last quarter over first
ONE_UPDATE = 2e-4  # nats per token: a policy that has learned as much is further from where it began
FOLLOWS = 2.0  # last quarter over first: a frozen reference is left further behind
FEWEST_UPDATES = 3  # in which a KL over the whole distribution is 0
ZERO_KL = 1e-9  # of a logged KL: what is left when both sides are the same numbers


def check_batch(batch: Batch) -> Verdict:
    if batch.settings.get("kl_coef") == 0 and batch.get("ref_logprobs") is None:
        return not_applicable("no reference: the KL coefficient is 0")
    mask_BT, ref_BT = batch.need("mask", "ref_logprobs")
    judged_BT = mask_BT & np.isfinite(ref_BT)
    if judged_BT.sum() < TOKENS:
        return not_enough_data(f"ref_logprobs of {TOKENS} loss tokens")
    checks = (_moves_along, _against_plain, _at_the_start, _itself)
    verdicts = [verdict for check in checks if (verdict := check(batch, judged_BT)) is not None]
    found = [verdict for verdict in verdicts if verdict.state is State.FINDING]
    if verdicts:
        return (found or verdicts)[0]
    return not_enough_data("plain_ref_logprobs, or new_logprobs of the first step or of a later one")


def check_curves(curves: Curves) -> Verdict:
    if curves.settings.get("kl_coef") == 0:
        return not_applicable("no reference: the KL coefficient is 0")
    (kl_N,) = curves.need("ref_kl")
    steps_N, applied_N = curves.steps, _or_one(curves, "updates_applied")
    if steps_N[0] <= 1 and applied_N[0] == 1 and kl_N[0] > FIRST_KL:
        return finding(
            f"the KL to the reference is {kl_N[0]:.2g} in the first update of the run, where it must be 0",
            Fact("ref_kl", float(kl_N[0]), FIRST_KL, curves.step_at(0)),
        )
    later_N = kl_N[(steps_N >= SETTLED) & np.isfinite(kl_N)]
    if len(later_N) < SETTLED or curves.settings.get("reference_every"):
        return not_enough_data(f"ref_kl of {2 * SETTLED - 1} steps with a reference that is not renewed")
    fact = Fact("largest ref_kl after the first steps", float(later_N.max()), ZERO_KL)
    is_still = curves.has("update_norm") and not float(np.nanmax(curves.need("update_norm")[0])) > 0
    if later_N.max() > ZERO_KL and (verdict := _follows_behind(curves, later_N)) is not None:
        return verdict
    if later_N.max() > ZERO_KL or is_still:
        return healthy("the KL to the reference leaves 0 as the policy learns", fact)
    message = (
        f"the KL to the reference is 0 in all {len(later_N)} steps after the first ones, although the weights move"
    )
    if curves.has("update_norm"):
        return finding(message, fact)
    pulled_N = (curves.column("gradient_norm") > 0) & ~(curves.column("learning_rate") == 0)
    if not np.any(later_N == 0.0) or pulled_N.sum() < MOVED_STEPS:
        return not_enough_data(f"update_norm, or gradient_norm of {MOVED_STEPS} steps with a learning rate")
    is_asked = curves.settings.get("trainer") in ASKS_ITS_REFERENCE or curves.settings.get("kl_coef", 0) > 0
    return seen_directly(
        f"{message}: the reference is the policy itself" + ("" if is_asked else ", or no reference is asked at all"),
        fact,
        Fact("steps with a gradient and a learning rate", int(pulled_N.sum()), MOVED_STEPS),
        confidence=Confidence.LIKELY if is_asked else Confidence.POSSIBLE,
    )


def _follows_behind(curves: Curves, kl_N: Array) -> Verdict | None:
    """A finding where the policy learns a lot and its KL to the reference stays as small as one update makes it."""
    if len(kl_N) < LEARNING or not curves.has("reward_mean") or curves.has("update_norm"):
        return None
    reward_N = curves.need("reward_mean")[0]
    reward_N = reward_N[np.isfinite(reward_N)]
    worst, best = reward_range(curves)
    quarter = len(kl_N) // 4
    first, last = float(np.median(kl_N[:quarter])), float(np.median(kl_N[-quarter:]))
    risen = float(np.median(reward_N[-quarter:]) - np.median(reward_N[:quarter])) if len(reward_N) > quarter else 0.0
    if not risen > LEARNED * (best - worst) or kl_N.max() > ONE_UPDATE or last > FOLLOWS * first:
        return None
    return seen_directly(
        f"the reward rises by {risen:.2g} while the KL to the reference stays at {last:.1g} from the first steps to "
        "the last: the reference follows the policy",
        Fact("ref_kl, first quarter", first),
        Fact("ref_kl, last quarter", last, FOLLOWS * first),
        Fact("largest ref_kl", float(kl_N.max()), ONE_UPDATE),
        confidence=Confidence.POSSIBLE if curves.settings.get("trainer") == "TRL" else Confidence.LIKELY,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    for doubt in doubts(program):
        if isinstance(doubt, Doubt):
            yield finding(doubt.what, confidence=doubt.confidence, places=doubt.places, why=doubt.why)
        else:
            yield healthy("the reference is a network of its own", places=(doubt,))


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    followed = [
        found for backward, flow in flows(run) for piece in backward.pieces for found in _follows(run, piece, flow)
    ]
    if all(is_same for is_same, _ in followed):  # a switch in the model may make another policy of the same weights
        yield from (verdict for _, verdict in followed)
    yield from _differences_of_zero(run)
    yield from _distributions_of_the_policy(run)


def _scoring_is_off(batch: Batch, judged_BT: Array) -> bool:
    """Whether the policy's own log-probs are off as well: then the reference is not to blame."""
    new_BT, plain_BT = batch.get("new_logprobs"), batch.get("plain_logprobs")
    if new_BT is None or plain_BT is None:
        return False
    return mean_distance(new_BT, plain_BT, judged_BT, TOKENS) > limit_between_passes(batch.settings)


def _against_plain(batch: Batch, judged_BT: Array) -> Verdict | None:
    ref_BT, plain_BT = batch.get("ref_logprobs"), batch.get("plain_ref_logprobs")
    if ref_BT is None or plain_BT is None or _scoring_is_off(batch, judged_BT):
        return None
    distance = mean_distance(ref_BT, plain_BT, judged_BT, TOKENS)
    if np.isnan(distance):
        return None
    fact = Fact(
        "mean |ref - plain log-probs of the reference|", distance, limit_between_passes(batch.settings), batch.step
    )
    if distance <= limit_between_passes(batch.settings):
        return healthy("the reference's log-probs are those it gives row by row", fact)
    return finding(
        f"the reference's log-probs in the KL are not those it gives row by row: {distance:.2g} off on average",
        fact,
        fix="Run the reference in eval mode, at the sampling temperature, on the same tokens and padding.",
    )


def _policy(batch: Batch) -> tuple[Array, str] | None:
    """The log-probs of the policy at this update, and their name; old are those that somebody says are the policy's."""
    for name, words in (("new_logprobs", "new"), ("plain_logprobs", "the policy's own")):
        if (values_BT := batch.get(name)) is not None:
            return values_BT, words
    return None


def _is_old(batch: Batch, judged_BT: Array) -> bool:
    """Whether the reference's log-probs are old, bit for bit."""
    old_BT, ref_BT = batch.get("old_logprobs"), batch.need("ref_logprobs")[0]
    return old_BT is not None and bool((old_BT == ref_BT)[judged_BT].all())


def _old_is_the_samplers(batch: Batch, judged_BT: Array) -> bool:
    """Whether the engine, which knows no reference, gives the log-probs of old as well."""
    old_BT, sampler_BT = batch.get("old_logprobs"), batch.get("sampler_logprobs")
    if old_BT is None or sampler_BT is None:
        return False
    return mean_distance(old_BT, sampler_BT, judged_BT, TOKENS) <= limit_between_passes(batch.settings)


def _moves_along(batch: Batch, judged_BT: Array) -> Verdict | None:
    """After an update that moved the policy, the reference, asked row by row, gives the policy's log-probs."""
    names = ("new_logprobs", "old_logprobs", "plain_logprobs", "plain_ref_logprobs")
    if any(batch.get(name) is None for name in names) or not batch.numbers.get("update"):
        return None
    if batch.settings.get("reference_every", 1) or batch.settings.get("dtype") != "float32":
        return None
    new_BT, old_BT, plain_BT, reference_BT = batch.need(*names)
    limit = limit_between_passes(batch.settings)
    apart, moved = mean_distance(reference_BT, plain_BT, judged_BT, TOKENS), mean_distance(new_BT, old_BT, judged_BT)
    if not (apart <= limit and moved > MOVED * limit) or _scoring_is_off(batch, judged_BT):
        return None
    return finding(
        f"the reference is the policy itself: this update moved the policy by {moved:.2g} per token, and the reference "
        f"now gives its log-probs ({apart:.2g} apart)",
        Fact("mean |reference - policy|, each asked row by row", apart, limit, batch.step),
        Fact("mean |new - old|", moved, MOVED * limit, batch.step),
    )


def _at_the_start(batch: Batch, judged_BT: Array) -> Verdict | None:
    policy = _policy(batch)
    if policy is None or batch.step != 1 or batch.numbers.get("update", 0) != 0 or _scoring_is_off(batch, judged_BT):
        return None
    policy_BT, name = policy
    distance = mean_distance(batch.need("ref_logprobs")[0], policy_BT, judged_BT, TOKENS)
    if np.isnan(distance):
        return None
    fact = Fact(f"mean |ref - {name}| before the first update", distance, limit_between_passes(batch.settings), 1)
    if distance <= limit_between_passes(batch.settings):
        return healthy("reference and policy agree before the first update", fact)
    untouched = batch.numbers.get("policy_version") == 0
    return finding(
        f"the reference differs from the policy before anything was learned: {distance:.2g} in log-prob on average",
        fact,
        confidence=Confidence.PROVEN if untouched else Confidence.LIKELY,
    )


def _itself(batch: Batch, judged_BT: Array) -> Verdict | None:
    """Only a reference that follows the policy is equal to it to the last bit. Equal to old alone it says nothing: old
    may have been taken from the reference."""
    version = batch.numbers.get("policy_version")
    policy = _policy(batch)
    if policy is None or batch.step is None or batch.step < 2 or batch.settings.get("reference_every"):
        return None
    if version == 0 or batch.numbers.get("update_norm") == 0 or batch.settings.get("learning_rate") == 0:
        return None
    ref_BT, policy_BT = batch.need("ref_logprobs")[0], policy[0]
    both_BT = judged_BT & np.isfinite(policy_BT) & (policy_BT < CERTAIN)
    if both_BT.sum() < TOKENS:
        return None
    largest = float(np.abs(ref_BT - policy_BT)[both_BT].max())
    fact = Fact("largest |ref - policy|", largest, step=batch.step)
    is_old = largest > 0.0 and _is_old(batch, both_BT)
    if is_old and not _old_is_the_samplers(batch, both_BT):
        return None  # it followed the policy up to this step, or old was taken from it: either is possible
    if largest > 0.0 and not is_old:
        return healthy("the reference does not follow the policy", fact)
    # weights stay where they are while no group has a signal; where many have one now, some had one before
    advantages = batch.get("advantages")
    signal = advantages is not None and float(np.mean(advantages != 0)) >= SIGNAL
    known = signal and version is not None and batch.settings.get("dtype") == "float32"
    sure = Confidence.PROVEN if known and batch.step >= SETTLED and not is_old else Confidence.LIKELY
    if "reference_every" not in batch.settings or batch.step < SETTLED:
        sure = Confidence.POSSIBLE  # it may have been renewed just now, or nothing has moved yet
    return finding(
        f"the reference is the policy itself: at step {batch.step} all {int(both_BT.sum())} loss tokens have the same "
        f"log-prob under both{' as it sampled' if is_old else ''}, bit for bit",
        fact,
        Fact("loss tokens with ref = policy", int(both_BT.sum()), step=batch.step),
        confidence=sure,
    )


def _or_one(curves: Curves, name: str) -> Array:
    return curves.need(name)[0] if curves.has(name) else np.ones(len(curves))


def _follows(run: WatchedRun, piece: LossPiece, flow: Flow) -> Iterator[tuple[bool, Verdict]]:
    """Beside old another set of log-probs of the same tokens by the very weights that are trained; and whether the two
    are the same, as far as is seen."""
    before = run.kinds.pass_of(piece.old_operand)
    if before is None or piece.product is None:
        return
    inside = {id(part) for part in above(piece.product)}
    for value, left, right in differences_in(flow.values):
        fixed = right if requires_grad(left) else left
        if id(value) in inside or not requires_grad(value) or requires_grad(fixed):
            continue
        forward = run.kinds.pass_of(fixed)
        if forward is None or forward in (before, piece.forward):  # lp - lp.detach() is of one pass
            continue
        if forward.weights != before.weights or forward.adapter_off:
            continue
        if forward.model == piece.forward.model and run.models[forward.model].is_trained:
            old, ref = numbers_of(piece.old_operand), numbers_of(fixed)
            is_same = old is None or ref is None or old.shape != ref.shape or np.allclose(old, ref, 0.0, SAME, True)
            verdict = finding(
                f"the reference in `{value.place.text}` is the policy itself: its log-probs come from a pass of the "
                "weights that are trained",
                places=(forward.value.place, value.place),
            )
            yield is_same, verdict


def _differences_of_zero(run: WatchedRun) -> Iterator[Verdict]:
    """The difference of two passes of the same weights over the same tokens: a KL to a reference that is the policy."""
    samplers = {id(draw.forward) for draw in run.samplings}
    pieces = [piece for backward in run.backwards for piece in backward.pieces]
    policies = {id(piece.forward) for piece in pieces}
    policies |= {id(run.kinds.pass_of(piece.old_operand)) for piece in pieces if piece.old_operand is not None}
    for value, left, right in differences_in(run.graph.values):
        if requires_grad(left) or requires_grad(right):
            continue
        mine, theirs = run.kinds.pass_of(left), run.kinds.pass_of(right)
        if mine is None or theirs is None or mine is theirs or id(mine) in samplers or id(theirs) in samplers:
            continue
        if {id(mine), id(theirs)} <= policies or _is_ratio(value):
            continue  # new - old, which is 0 before the first update of a rollout batch
        if mine.model != theirs.model or mine.weights != theirs.weights or mine.adapter_off or theirs.adapter_off:
            continue
        tokens, their_tokens = chosen_ids(left, run.kinds), chosen_ids(right, run.kinds)
        if tokens is None or their_tokens is None or not np.array_equal(tokens, their_tokens):
            continue
        numbers = numbers_of(value)
        if run.models[mine.model].is_trained and numbers is not None and not numbers.any():
            yield finding(
                f"`{value.place.text}` is the difference of two passes of the same weights, 0 everywhere: the "
                "reference is the policy itself",
                places=(value.place, theirs.value.place),
            )


def _distributions_of_the_policy(run: WatchedRun) -> Iterator[Verdict]:
    """The KL over all tokens or actions: the distribution without a gradient is the policy's own, bit for bit, in later
    updates of a rollout as well, when old is not any more."""
    same: dict[Place, list[tuple[bool, Value]]] = {}
    first = {id(backward): update.is_first for update in run.updates for backward in update.backwards}
    for backward, flow in flows(run):
        for value in flow.values:
            sides = [value.input, value.arguments.get("other")]
            mine = [side for side in sides if side is not None and run.kinds.of(side) is Kind.LOG_SOFTMAX]
            fixed = [side for side in mine if not requires_grad(side)]
            if value.op != "sub" or len(mine) != 2 or len(fixed) != 1:
                continue
            numbers = numbers_of(value)
            other = mine[0] if mine[1] is fixed[0] else mine[1]
            if numbers is None or any(made is other for made in above(fixed[0])):
                continue  # x - x.detach()
            if numbers.any():
                return
            same.setdefault(value.place, []).append((first.get(id(backward), True), value))
    for place, found in same.items():
        if len(found) >= FEWEST_UPDATES and not all(is_first for is_first, _ in found):
            yield finding(
                f"`{place.text}` is 0 everywhere in all {len(found)} updates that were seen: the reference gives the "
                "policy's own distribution, so that the KL pulls at nothing",
                confidence=Confidence.LIKELY,
                places=(place,),
            )


def _is_ratio(difference: Value) -> bool:
    """Whether its exp is clamped or weighs something: a KL is summed."""
    powers = [user for user in difference.users if user.op == "exp"]
    if difference.op == "div":  # p / q
        powers.append(difference)
    return any(user.op in ("mul", "clamp", "minimum", "maximum") for power in powers for user in power.users)


def _with_policy_as_reference(batch: Batch) -> Batch:
    """The reference gives the policy's own numbers: no KL, and a loss of the policy part alone."""
    mask_BT, old_BT, advantages_BT = *batch.need("mask", "old_logprobs"), batch.token_advantages
    gradients_BT = np.where(mask_BT, -advantages_BT, 0.0) / mask_BT.sum()
    return edit_batch(
        batch,
        ref_logprobs=old_BT,
        plain_ref_logprobs=batch.arrays["plain_logprobs"],
        kl=np.zeros(mask_BT.shape),
        token_loss=gradients_BT * mask_BT.sum(),
        kl_loss=0.0,
        kl_mean=0.0,
        **dict.fromkeys(GRADIENTS, gradients_BT),
        **dict.fromkeys(LOSSES, batch.number("policy_loss")),
    )


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """A copy of the policy that does not train with it."""
    copies = [call for part in (spot, *others) for call in part.all(ast.Call)]
    for call in copies:
        is_shallow = isinstance(call.node.func, ast.Attribute) and call.child(call.node.func).source == "copy.copy"
        yield call.renamed("deepcopy") if is_shallow else None
    for part in Spot(spot.text, spot.text.tree).all(ast.Assign):
        value, target = part.child(part.node.value), part.child(part.node.targets[0])
        if "ref" in target.name.lower() and isinstance(value.node, ast.Name | ast.Attribute):
            if "copy" in part.modules:
                yield value.becomes(f"copy.deepcopy({value.source}).eval().requires_grad_(False)")
            elif "deepcopy" in part.modules:
                yield value.becomes(f"deepcopy({value.source}).eval().requires_grad_(False)")


ILLNESS = illness(
    __name__,
    code="KL05",
    severity=Severity.HARMFUL,
    summary="the reference is not the frozen policy of the start",
    fix="Copy the model before training, freeze the copy, keep it in eval mode; with adapters, switch them off for it.",
    symptoms=(
        "KL is always 0",
        "KL stays 0",
        "KL is not 0 at the start",
        "reference model is trained too",
        "reference changes during training",
    ),
    sick=lambda: Evidence((_with_policy_as_reference(healthy_batch()),), healthy_curves(ref_kl=0.0)),
    well=lambda: Evidence((healthy_batch(),), healthy_curves(ref_kl=np.linspace(0.0, 0.01, 60))),
    scripts=Scripts(sick=with_change("copy.deepcopy(policy).eval().requires_grad_(False)", "policy"), well=GRPO),
)
