"""
## What it checks
The order of one update: gradients are cleared, made by `backward()`, clipped, used by `optimizer.step()`, and only then
the scheduler steps. The check follows each optimizer through its loop, the turn before included.

## Why it hurts
Gradients that are cleared between `backward()` and `step()` are lost: the optimizer steps with nothing, and no error
says so. Gradients that are never cleared are those of all batches so far. Clipping after the step clips nothing. A
scheduler that steps first skips the first rate of its schedule.

## How to fix it
    # before
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
    # after
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()

## When it is wrong
Gradients that something outside of the script clears (an engine, a trainer, a function of a library) are not seen; an
optimizer that goes into such a call is left alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.examples.scripts import GRPO, with_change
from assay.programs.edits import Spot, moved, together
from assay.programs.facts.optimizer.optimizers import (
    Optimizer,
    clears_of_unknown,
    events_before,
    is_part,
    is_scheduler,
    is_unconditional,
    loop_of,
    networks_held,
    optimizer_of,
    optimizers,
)
from assay.programs.facts.optimizer.ownership import contains
from assay.programs.facts.origin import same_network
from assay.programs.graph import Loop, Value
from assay.programs.program import Program
from assay.programs.run.gradients import OptimizerStep
from assay.programs.run.watched import WatchedRun
from assay.verdict import Edit, Place, Severity, Verdict, finding, healthy, likely

NO_CLIP = 1e3  # a larger bound is there to measure the norm
Complaint = tuple[str, tuple[Place, ...]]


def check_source(program: Program) -> Iterator[Verdict]:
    every = optimizers(program)
    unknown = clears_of_unknown(program)
    for optimizer in every:
        found = [*_of_steps(program, optimizer, unknown), *_of_clips(program, optimizer, len(every))]
        found += [*_of_schedulers(program, optimizer), *_never(program, optimizer)]
        yield from (likely(what, places=places) for what, places in found)
        if not found and optimizer.steps and optimizer.backwards:
            yield healthy(
                f"{optimizer.value.shown}: gradients are made, used and cleared in order",
                places=(optimizer.steps[0].place,),
            )


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    steps_with_losses = late_clips = 0
    for step in run.gradients.steps:
        backwards = [move.place for move in step.moves if move.kind == "backward"]
        if not backwards:
            continue
        if step.emptied_at is not None and (step.is_first or step.was_reached):
            yield finding(
                "gradients are cleared between backward and step: the optimizer finds none",
                places=(step.emptied_at, backwards[-1], step.place),
            )
            continue
        if step.is_first:
            continue
        steps_with_losses += bool(step.lost)
        if step.lost and steps_with_losses > 1:  # a step that a scaler skips once is not a fault
            cleared = [move.place for move in step.moves if move.kind == "zero_grad"]
            yield finding(
                f"gradients of {len(step.lost)} of {len(backwards)} backward passes are cleared before the step that "
                "should use them",
                places=(*(cleared[-1:] or [step.lost[0]]), step.place),
            )
        elif not step.lost and not step.began_clean and step.was_reached:
            yield finding(
                "gradients of the last step are still there when the next backward adds its own: nothing cleared them",
                places=(step.place, backwards[0]),
            )
        clip = _late_clip(step)
        late_clips += clip is not None
        if clip is not None and late_clips > 1:
            yield finding(
                "gradients are clipped after the step that used them, and not before it", places=(clip, step.place)
            )
    early = run.gradients.scheduler_before_steps
    if early is not None and run.gradients.steps:
        yield finding(
            "the scheduler steps before the first step of the optimizer: the first learning rate is never used",
            places=(early,),
        )
    if run.gradients.steps:
        yield healthy("gradients are made, used and cleared in this order")


def _of_steps(program: Program, optimizer: Optimizer, unknown: list[Value]) -> Iterator[Complaint]:
    for step in optimizer.steps:
        if not optimizer.backwards or "closure" in step.arguments or _has_closure(step):
            continue
        loop = loop_of(step, optimizer.backwards)
        events = [*optimizer.backwards, *optimizer.clears]
        nearest = events_before(step, events, loop)
        if nearest and nearest[0].op != "backward":
            clear = nearest[0]
            if is_unconditional(clear, step) and any(event.op == "backward" for event in _around(events, step, loop)):
                late = clear.order < step.order and any(event.op == "backward" for event in nearest[1:2])
                what = "between backward() and step()" if late else "before step(), and backward() comes after it"
                yield (
                    f"`{clear.place.text}` clears the gradients {what}: `{step.place.text}` has none to use",
                    (clear.place, step.place),
                )
                continue
        if loop is None:
            continue
        inner = _cleared_in_parts(optimizer, step, loop)
        if inner is not None:
            yield (
                f"`{inner.place.text}` is inside the loop over the parts of a batch and `{step.place.text}` after it: "
                "only the gradient of the last part is used",
                (inner.place, step.place),
            )
        elif optimizer.is_known and not _is_cleared_in(program, optimizer, loop, unknown):
            outside = " in the loop that steps" if optimizer.clears else ""
            yield (
                f"the gradients of {optimizer.value.shown} are never cleared{outside}: each `{step.place.text}` "
                "uses the sum over all turns before",
                (step.place, optimizer.value.place),
            )


def _has_closure(step: Value) -> bool:
    given = step.argument("1")
    return given is not None and given.op in ("function", "bound")


def _around(events: list[Value], step: Value, loop: Loop | None) -> list[Value]:
    if loop is not None:
        return [event for event in events if loop in event.context.loops]
    return [event for event in events if event.context.calls[:1] == step.context.calls[:1]]


def _cleared_in_parts(optimizer: Optimizer, step: Value, loop: Loop) -> Value | None:
    """A clear in a loop within this one that also holds the backward, while no step is in there."""
    for clear in optimizer.clears:
        loops = clear.context.loops
        parts = loops[loops.index(loop) + 1] if loop in loops[:-1] else None
        if parts is None or clear.order >= step.order or any(parts in use.context.loops for use in optimizer.steps):
            continue
        inside = [backward for backward in optimizer.backwards if parts in backward.context.loops]
        if any(is_unconditional(clear, backward) for backward in inside if backward.order < step.order):
            return clear
    return None


def _is_cleared_in(program: Program, optimizer: Optimizer, loop: Loop, unknown: list[Value]) -> bool:
    if any(loop in clear.context.loops for clear in (*optimizer.clears, *unknown)):
        return True
    for clear in program.of("zero_grad"):  # by another optimizer that holds the same parameters
        other = optimizer_of(clear.input)
        others = networks_held(other) if other is not None and loop in clear.context.loops else None
        if any(contains(program, theirs, mine) for theirs in others or () for mine in optimizer.networks or ()):
            return True
    calls = [call for call in program.of("call", "method", "super") if loop in call.context.loops]
    # something of a library may clear them
    return any(optimizer_of(given) is optimizer.value for call in calls for given in call.inputs)


def _of_clips(program: Program, optimizer: Optimizer, count: int) -> Iterator[Complaint]:
    for clip in program.of("clip_grad_norm"):
        limit = clip.argument("max_norm")
        if limit is not None and ("inf" in limit.place.text or _is_large(limit.constant)):
            continue
        parameters = clip.argument("parameters")
        model = parameters.input if parameters is not None and parameters.op == "parameters" else None
        if not _is_held(optimizer, model, count) or not optimizer.steps:
            continue
        loop = loop_of(clip, optimizer.backwards)
        if loop is None:
            continue
        events = [*optimizer.backwards, *optimizer.clears, *optimizer.steps]
        nearest = events_before(clip, events, loop)
        if nearest and nearest[0].op != "backward" and is_unconditional(nearest[0], clip):
            yield (
                f"`{clip.place.text}` comes after `{nearest[0].place.text}`: it clips gradients that are never used",
                (clip.place, nearest[0].place),
            )


def _is_large(limit: object) -> bool:
    return isinstance(limit, int | float) and limit > NO_CLIP


def _is_held(optimizer: Optimizer, model: Value | None, count: int) -> bool:
    if model is None or optimizer.networks is None:
        return count == 1
    return any(same_network(model, network) or is_part(network, model) for network in optimizer.networks)


def _of_schedulers(program: Program, optimizer: Optimizer) -> Iterator[Complaint]:
    for step in program.of("step"):
        scheduler = step.input
        if not is_scheduler(step) or scheduler is None or scheduler.op != "scheduler":
            continue
        of = scheduler.argument("0") or scheduler.argument("optimizer")
        if optimizer_of(of) is not optimizer.value:
            continue
        loops = step.context.loops
        uses = [use for use in optimizer.steps if use.context.loops[-1:] == loops[-1:]]
        if not loops or any(use.order < step.order for use in uses):
            continue
        for use in uses:
            is_each_turn = len(use.context.branches) <= len(step.context.branches)  # and not once in several
            if use.context.loops == loops and step.order < use.order and is_unconditional(step, use) and is_each_turn:
                yield (
                    f"`{step.place.text}` comes before `{use.place.text}`: the first rate of the schedule is skipped",
                    (step.place, use.place),
                )
                break


def _never(program: Program, optimizer: Optimizer) -> Iterator[Complaint]:
    """Named but not called: `optimizer.step` without parentheses; or cleared and never stepped."""
    if not optimizer.is_known:
        return
    for value in program.of("attribute"):
        if value.name != "step" or value.users or optimizer_of(value.input) is not optimizer.value:
            continue
        if not optimizer.steps and optimizer.clears:
            yield f"`{value.place.text}` is named and not called: nothing happens", (value.place,)
            return
    goes = any(
        user.op not in ("zero_grad", "scheduler", "prepare", "setattr", "attribute", "phi", "state_dict")
        for user in optimizer.value.users
    )
    if not optimizer.steps and optimizer.clears and optimizer.backwards and not goes:
        yield (
            f"the gradients of {optimizer.value.shown} are made and cleared, and it never steps",
            (optimizer.value.place,),
        )


def _late_clip(step: OptimizerStep) -> Place | None:
    """The first clipping since the last step, if all of it comes before any backward and before the clearing."""
    kinds = [move.kind for move in step.moves]
    clips = [number for number, kind in enumerate(kinds) if kind == "clip_grad_norm"]
    if clips and max(clips) < kinds.index("backward") and "zero_grad" not in kinds[: clips[0]]:
        return step.moves[clips[0]].place
    return None


CLEAR, BACKWARD = "        optimizer.zero_grad()\n", "        loss.backward()\n"
SICK = with_change(CLEAR + BACKWARD, BACKWARD + CLEAR)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """zero_grad() before backward() or after step(), once for each step; clipping before step()."""
    step = others[0] if others else None
    if spot.name == "step" and spot.receiver is not None:
        yield spot.with_line_after(f"{spot.receiver.source}.zero_grad()")
    if step is None:
        return
    if spot.name == "zero_grad":
        block = spot.text.around.get(spot.statement.node)
        backwards = [
            call
            for call in Spot(spot.text, block).all(ast.Call)
            if call.name == "backward" and call.span < spot.span and call.statement.indent == spot.indent
        ]
        yield moved(spot, backwards[-1]) if backwards else None
        if len(step.indent) < len(spot.indent):  # gradients of several parts
            yield together([spot.without_line(), step.with_line_after(spot.source)], spot.text)
    else:
        yield moved(spot, step)


ILLNESS = illness(
    __name__,
    code="LOSS04",
    severity=Severity.FATAL,
    summary="gradients are cleared, computed, clipped and used in the wrong order",
    fix="Clear, backward, clip, step, and then the scheduler: in this order, once for each update.",
    symptoms=(
        "zero_grad in the wrong place",
        "gradients are never cleared",
        "clip_grad_norm has no effect",
        "max_grad_norm does not work",
        "gradients add up over steps",
    ),
    scripts=Scripts(sick=SICK, well=GRPO),
    explains=frozenset({"OPT02", "LOSS05", "RAT02"}),
)
