"""
## What it checks
After an optimizer update: whether every trainable tensor got a gradient and changed. A tensor with a gradient that did
not change is not in the optimizer, or was frozen behind its back. A tensor without a gradient is not used by the loss.
In a script: an optimizer with the parameters of another network, of one layer, or of a network that was wrapped later;
a loss that was detached, or computed under no_grad or with a frozen network.

## Why it hurts
What does not change does not learn. If nothing changes the run is an expensive way to sample from the first policy; if
some tensors do not, the others train around them, and the curves look merely slow.

## How to fix it
Make the optimizer from the parameters of the model that computes the loss, after it has its final form: a wrapper, a
cast or new adapters make new parameters.

    # before: the adapters come after the optimizer, which does not hold them
    optimizer = AdamW(model.parameters(), lr=1e-5)
    model = get_peft_model(model, adapters)
    # after
    model = get_peft_model(model, adapters)
    optimizer = AdamW(model.parameters(), lr=1e-5)

## When it is wrong
Half of the tensors of fresh LoRA adapters get no gradient in the first update: the other half is 0. Experts that no
token was routed to get none either. Where the clip or advantages of 0 take every gradient away, the check is silent. In
bfloat16 a small change may be rounded away: that is pure_bf16.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.evidence.curves import Numbers
from assay.doctor.examples import edit_batch, healthy_batch, healthy_curves
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.facts.trend import known_steps, trailing
from assay.doctor.recompute.terms import stated_objective
from assay.programs.edits import Spot
from assay.programs.facts.optimizer.changed_weights import unchanged_weights
from assay.programs.facts.optimizer.optimizers import optimizers
from assay.programs.facts.optimizer.ownership import is_fresh, is_held, is_network, owners
from assay.programs.facts.origin import network
from assay.programs.facts.ratio import is_differentiated
from assay.programs.program import Program
from assay.programs.run.gradients import GradientEvent
from assay.programs.run.kinds import above
from assay.programs.run.watched import WatchedRun
from assay.record.batch import Array
from assay.verdict import (
    Confidence,
    Edit,
    Fact,
    Severity,
    Verdict,
    finding,
    healthy,
    not_applicable,
    not_enough_data,
    seen_directly,
)

SMALLEST_RATE = 1e-6  # below, a change of a weight near 1 may be rounded away in float32 too
NO_RATE = 1e-9  # a thousandth of the rates that are used
STEPS = 20  # with such a rate: a warm-up is shorter
FEWEST = 3  # steps: a warm-up has one update with a rate of 0
SCHEDULE = (
    "Look at the learning rate and its schedule: what does it return for the first steps, is its total the number of "
    "optimizer updates, and is it stepped once an update?"
)
CONNECT = (
    "Compute the log-probs of the loss outside of no_grad and without detach(): a loss that needs requires_grad_() to "
    "be differentiated has no graph; and make the optimizer from the parameters of the model that computes it."
)
MARGIN = 10.0  # times the smallest change that a number can show: a small gradient moves it by less than the rate
ALL = 0.999  # of the tensors, as the median of a run's second half


def check_batch(batch: Batch) -> Verdict:
    norm = batch.numbers.get("gradient_norm")
    if (steps := batch.numbers.get("steps_without_gradient", 0)) >= FEWEST:
        return finding(
            f"the optimizer made {steps} steps in a row, and no backward pass had left a gradient in any tensor that "
            "it holds: the loss is not connected to the weights, or the optimizer holds others",
            Fact("steps in a row without any gradient", steps, FEWEST, batch.step),
            severity=Severity.FATAL,
            confidence=Confidence.LIKELY,
            fix=CONNECT,
        )
    if norm == 0 and "tensors" not in batch.numbers:
        return _without_any_gradient(batch, (Fact("gradient norm", 0.0, step=batch.step),))
    if batch.settings.get("learning_rate", 1.0) == 0 and not batch.numbers.get("tensors_changed"):
        return _without_rate(batch)
    tensors, changed = int(batch.number("tensors")), int(batch.number("tensors_changed"))
    if batch.settings.get("learning_rate", 1.0) == 0:
        return not_applicable("the learning rate is 0, and tensors changed all the same: others have their own rate")
    without = int(batch.numbers.get("tensors_without_gradient", 0))
    facts = (
        Fact("trainable tensors", tensors, step=batch.step),
        Fact("tensors changed", changed, tensors),
        Fact("tensors without gradient", without, 0),
        *([] if norm is None else [Fact("gradient norm", float(norm))]),
    )
    if norm is not None and not np.isfinite(norm):
        return not_applicable("the gradient is not finite, and such an update is not applied")
    if without == tensors or norm == 0:
        if changed == tensors:
            return not_applicable("no gradient was seen, but every tensor changed: it was looked at too late")
        return _without_any_gradient(batch, facts)
    stuck = tensors - changed - without
    if stuck > 0 and is_below_precision(batch):
        return not_applicable(
            f"{stuck} of {tensors} tensors did not change: the learning rate is below the precision of their numbers"
        )
    if stuck > 0:
        whole = changed == 0
        return finding(
            f"the update changed {'none' if whole else f'only {changed}'} of {tensors} trainable tensors, although "
            f"{tensors - without} of them have a gradient",
            *facts,
            confidence=_confidence(batch, whole=whole),
            severity=Severity.FATAL if whole else None,
        )
    fresh_adapters = bool(batch.settings.get("lora_rank")) and 2 * without <= tensors
    if without and not fresh_adapters:
        return finding(
            f"{without} of {tensors} trainable tensors got no gradient: the loss does not use them",
            *facts,
            confidence=Confidence.POSSIBLE,  # an expert that no token was routed to gets none either
            severity=Severity.WASTEFUL,
            fix="Freeze what the loss does not use, or find out why it is cut off from the graph.",
        )
    return healthy(f"all {tensors} trainable tensors that have a gradient changed", *facts)


def check_curves(curves: Curves) -> Verdict:
    rate_N, changed_N = curves.column("learning_rate"), curves.column("tensors_changed_share")
    if (verdict := _of_rates(curves, rate_N)) is not None:
        return verdict
    judged_N = changed_N[np.isfinite(changed_N) & ~(rate_N < SMALLEST_RATE)]
    if len(judged_N) >= FEWEST and not judged_N.any():
        return seen_directly(
            f"no update of {len(judged_N)} steps changed any trainable tensor",
            Fact("share of the trainable tensors that an update changes", 0.0, ALL),
            severity=Severity.FATAL,
        )
    known_N = known_steps(curves, "tensors_changed_share")
    if len(judged_N) < len(known_N) / 2:
        return not_applicable(
            f"the learning rate is below {SMALLEST_RATE:g}: rounding keeps some tensors where they are"
        )
    share = float(np.median(judged_N[len(judged_N) // 2 :]))
    fact = Fact("share of the trainable tensors that an update changes", share, ALL)
    if share >= ALL:
        return healthy("every update changes all trainable tensors", fact)
    return finding(f"an update changes {share:.0%} of the trainable tensors, in the second half of the run too", fact)


def _of_rates(curves: Curves, rate_N: Numbers) -> Verdict | None:
    """A rate that is 0 throughout, or from some step on. Many schedules begin at 0, and many end there."""
    known = np.flatnonzero(np.isfinite(rate_N))
    zeros = trailing(rate_N[known] == 0) if len(known) else 0
    highest = float(rate_N[known].max(initial=0.0))
    if zeros < FEWEST and 0 < highest < NO_RATE and len(known) >= STEPS:
        return seen_directly(
            f"the learning rate is never above {highest:.2g} in {len(known)} steps: no weight can move by it",
            Fact("highest learning rate", highest, NO_RATE),
            severity=Severity.FATAL,
            fix=SCHEDULE,
        )
    if zeros < FEWEST:
        return None
    since = int(known[len(known) - zeros])
    is_whole = zeros == len(known)
    step = curves.step_at(since)
    return seen_directly(
        f"the learning rate is 0 in all {zeros} steps: nothing is learned"
        if is_whole
        else f"the learning rate is 0 in the last {zeros} of {len(known)} steps: nothing is learned any more",
        Fact("steps with a learning rate of 0", zeros, FEWEST, step),
        severity=Severity.FATAL,
        fix=SCHEDULE,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    for found in unchanged_weights(program):
        if found.what:
            yield finding(found.what, places=found.places, fix=found.fix)
        else:
            yield healthy("the optimizer holds what the loss is computed with", places=found.places)
    yield from _heads_left_out(program)


def _heads_left_out(program: Program) -> Iterator[Verdict]:
    """A layer of the script's own, a value head above all, that a loss trains and no optimizer holds."""
    every = optimizers(program)
    if not every or any(optimizer.networks is None or not optimizer.is_known for optimizer in every):
        return
    for loss, _ in program.losses:
        for call in program.origins.forwards(loss):
            model = network(call.arguments["model"]) if call.op == "forward" else None
            if (
                model is None
                or not is_fresh(program, model)
                or any(is_network(owner) for owner in owners(program, model))
            ):
                continue
            used = program.origins.gradient(call) is True and is_differentiated(program, call)
            if used and not is_held(program, model, every):
                yield finding(
                    f"{model.shown} is a layer of the script's own that the loss trains, and no optimizer holds it: it "
                    "stays as it was made",
                    confidence=Confidence.LIKELY,
                    places=(model.place, call.place),
                    fix="Give its parameters to the optimizer too.",
                )


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    left_out = run.gradients.left_out
    if left_out is not None:
        missing, trainable = left_out.missing, left_out.trainable
        how_many = "none" if missing == trainable else f"{missing} of {trainable}"
        yield finding(
            f"{how_many} of the policy's trainable tensors {'is' if missing == trainable else 'are not'} held by an "
            f"optimizer: {missing} get a gradient in each update and are never changed",
            places=(left_out.place,),
        )
    yield from _without_rate_in_run(run)
    yield from _without_step(run)
    yield from _unconnected(run)
    failure = run.failure
    if failure is not None and failure.place is not None and "does not require grad" in failure.message:
        yield finding(
            "backward() failed because nothing that the loss is made of requires a gradient: the policy's parameters "
            "are frozen, or the loss was detached",
            places=(failure.place,),
        )


def _without_rate_in_run(run: WatchedRun) -> Iterator[Verdict]:
    for number in {update.optimizer for update in run.updates}:
        updates = [update for update in run.updates if update.optimizer == number]
        if len(updates) < FEWEST or any(update.learning_rate for update in updates[1:]):
            continue
        if not any(update.numbers.get("update_norm") for update in updates):
            yield finding(
                f"the learning rate is 0 in all {len(updates)} optimizer steps that were seen, and no weight moved",
                Fact("learning rate", 0.0),
                places=(updates[-1].place,),
                severity=Severity.FATAL,
                fix=SCHEDULE,
            )


def _without_step(run: WatchedRun) -> Iterator[Verdict]:
    """Many backward passes, no step of an optimizer, and the same weights in every pass of the trained models."""
    if run.updates or len(run.backwards) < FEWEST:
        return
    weights: dict[int, set[tuple[float, ...]]] = {}
    for forward in run.forwards:
        weights.setdefault(forward.model, set()).add(forward.weights)
    trained = {piece.forward.model for backward in run.backwards for piece in backward.pieces}
    if trained and all(len(weights.get(model, ())) == 1 and () not in weights[model] for model in trained):
        yield finding(
            f"backward() was called {len(run.backwards)} times, no optimizer stepped, and the policy's weights are the "
            "same in every pass",
            places=(run.backwards[-1].loss.place,),
            confidence=Confidence.LIKELY,
            severity=Severity.FATAL,
            fix="Call optimizer.step() after backward(), on an optimizer of the policy's parameters.",
        )


def _unconnected(run: WatchedRun) -> Iterator[Verdict]:
    """Backward passes before every step, and no tensor of the optimizer ever has a gradient, be it of zeros."""
    for optimizer in dict.fromkeys(step.optimizer for step in run.gradients.steps):
        steps = [step for step in run.gradients.steps if step.optimizer == optimizer]
        is_fed = all(step.held and any(move.kind == "backward" for move in step.moves) for step in steps)
        if len(steps) < FEWEST or not is_fed or any(step.with_gradient or step.was_reached for step in steps):
            continue
        if any(move.kind == "zero_grad" for step in steps for move in _behind_backward(step.moves)):
            continue  # they were cleared
        losses = [backward.loss for update in run.updates for backward in update.backwards][:1]
        cut = [value for loss in losses for value in above(loss) if run.kinds.is_chosen(value)]
        frozen = [value for value in cut if value.context.no_grad][-1:]
        detached = [value for loss in losses for value in above(loss) if value.op == "detach" or value.name == "data"]
        why = "their log-probs were computed under no_grad" if frozen else "the loss is not connected to the weights"
        yield finding(
            f"backward() was called before each of {len(steps)} optimizer steps and left no gradient in any of the "
            f"{steps[0].held} tensors that the optimizer holds: {why}",
            Fact("tensors with a gradient", 0, steps[0].held),
            places=(*(value.place for value in frozen or detached[:1]), steps[-1].place),
            severity=Severity.FATAL,
            fix="Compute the log-probs of the loss outside of no_grad and without detach(); a loss that needs "
            "requires_grad_() to be differentiated has no graph.",
        )


def _behind_backward(moves: Sequence[GradientEvent]) -> Sequence[GradientEvent]:
    last = max((number for number, move in enumerate(moves) if move.kind == "backward"), default=-1)
    return moves[last + 1 :]


def is_below_precision(batch: Batch) -> bool:
    """Whether rounding alone may keep the tensors where they are."""
    smallest, rate = batch.numbers.get("smallest_step"), batch.settings.get("learning_rate")
    return smallest is not None and rate is not None and rate < MARGIN * smallest


def _confidence(batch: Batch, *, whole: bool) -> Confidence:
    is_rounded = batch.settings.get("dtype", "float32") != "float32"
    is_tiny = batch.settings.get("learning_rate", 1.0) < SMALLEST_RATE
    if is_tiny and not whole and "smallest_step" not in batch.numbers:
        return Confidence.POSSIBLE  # a norm's weights near 1 do not move by 1e-8
    return Confidence.LIKELY if is_rounded or is_tiny else Confidence.PROVEN


def _without_rate(batch: Batch) -> Verdict:
    """Many schedules begin at 0, and many end there."""
    step, steps = batch.step or 0, batch.settings.get("steps") or np.inf
    if not 1 < step < steps:
        return not_applicable("the learning rate of this update is 0")
    return finding(
        f"the learning rate is 0 in step {step}{f' of {steps}' if np.isfinite(steps) else ''}: nothing is learned",
        Fact("learning rate", 0.0, None, step),
        confidence=Confidence.LIKELY if step >= FEWEST else Confidence.POSSIBLE,
        severity=Severity.FATAL,
        fix=SCHEDULE,
    )


def _without_any_gradient(batch: Batch, facts: tuple[Fact, ...]) -> Verdict:
    mask_BT = batch.get("mask")
    if mask_BT is None or batch.get("advantages") is None or not np.any(batch.token_advantages[mask_BT]):
        return not_applicable("the update had no gradient, and no advantage that would ask for one is known")
    pulled_BT = mask_BT & (batch.token_advantages != 0)
    clipped_BT = _clipped_tokens(batch)
    if clipped_BT is None:
        return not_enough_data("clipped, or new_logprobs and old_logprobs: whether clipping took the gradient away")
    if clipped_BT[pulled_BT].all():
        return not_applicable("every token is clipped, so the update had no gradient")
    return finding(
        "no trainable tensor got a gradient, although advantages are not 0: the loss is not connected to the weights",
        *facts,
        severity=Severity.FATAL,
        confidence=Confidence.PROVEN if "tensors" in batch.numbers else Confidence.LIKELY,
        fix="See whether log-probs are detached or computed under no_grad, and whether the parameters require grad.",
    )


def _clipped_tokens(batch: Batch) -> Array | None:
    """Tokens whose gradient the clip may take away; None if unknown. In the first update no ratio is clipped."""
    clipped_BT, mask_BT, advantages_BT = batch.get("clipped"), batch.arrays["mask"], batch.token_advantages
    new_BT, old_BT = batch.get("new_logprobs"), batch.get("old_logprobs")
    if new_BT is None or old_BT is None:
        return np.zeros_like(mask_BT) if clipped_BT is None and batch.numbers.get("update") == 0 else clipped_BT
    moved_BT = np.where(mask_BT, new_BT - old_BT, 0.0)
    objective = stated_objective(batch.settings)
    if objective is not None and objective.level == "sequence":
        mean_B1 = moved_BT.sum(axis=1, keepdims=True) / np.maximum(mask_BT.sum(axis=1, keepdims=True), 1)
        moved_BT = np.broadcast_to(mean_B1, mask_BT.shape)
    low, high = batch.settings.get("clip_low", 0.0), batch.settings.get("clip_high", 0.0)  # unstated: any move may be
    ratio_BT = np.exp(moved_BT)
    beyond_BT = ((advantages_BT > 0) & (ratio_BT > 1 + high)) | ((advantages_BT < 0) & (ratio_BT < 1 - low))
    return np.asarray(beyond_BT if clipped_BT is None else beyond_BT | clipped_BT)


def well() -> Evidence:
    """Fresh adapters: half of them have no gradient in the first update, and all change later."""
    batch = edit_batch(healthy_batch(), tensors_changed=10, tensors_without_gradient=10, lora_rank=8)
    return Evidence((batch,), healthy_curves(tensors_changed_share=np.where(np.arange(60) == 0, 0.5, 1.0)))


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The parameters of the network that the loss is computed with."""
    for call in spot.all(ast.Call):
        holder = call.receiver
        if call.name not in ("parameters", "named_parameters") or holder is None:
            continue
        if holder.name in ("deepcopy", "copy") and holder.receiver is not None:
            yield holder.becomes(holder.receiver.source)
        named = re.search(r"computed with `([\w.]+)`", verdict.message)
        if named and spot.knows([named[1].partition(".")[0]]):
            yield holder.becomes(named[1])
        if isinstance(holder.node, ast.Attribute):
            yield holder.becomes(holder.child(holder.node.value).source)


ILLNESS = illness(
    __name__,
    code="OPT02",
    severity=Severity.HARMFUL,
    summary="trainable tensors do not change when the optimizer steps",
    fix="Make the optimizer from the parameters of the model that computes the loss, after it has its final form.",
    symptoms=(
        "weights do not change",
        "model does not change after training",
        "parameters are not updated",
        "LoRA does not learn",
        "optimizer does nothing",
        "reward does not move",
        "trained model is identical to the base model",
    ),
    sick=lambda: Evidence(
        (edit_batch(healthy_batch(), tensors_changed=12),), healthy_curves(tensors_changed_share=0.6)
    ),
    well=well,
    scripts=Scripts(
        sick=with_change("AdamW(policy.parameters()", "AdamW(copy.deepcopy(policy).parameters()"), well=GRPO
    ),
    explains=frozenset({"LOSS05", "RAT02", "RAT05", "MET05", "SYNC01", "PERF02"}),
)
