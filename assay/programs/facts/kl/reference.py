"""The network that a KL is measured against: whether it is one of its own, and whether it stays what it was."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from assay.programs.facts.kl.in_reward import reward_penalties
from assay.programs.facts.kl.penalties import Penalty, is_against_old, penalties, policy_and_reference
from assay.programs.facts.origin import network, same_network
from assay.programs.facts.ratio import before_detach, differences, uses
from assay.programs.facts.sampling.draws import is_drawn_from
from assay.programs.facts.sampling.samplers import draws_behind, is_touched, is_trained, loads_into, original, source_of
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import walk
from assay.verdict import Confidence, Place

_REFERENCE = re.compile(r"(^|_)(ref|reference|init|initial|base|sft|frozen|anchor|orig|original|prior)(_|$)|^ref", re.I)
_OLD = re.compile(r"(^|_)(old|behaviou?r|rollout|sampled|prev|previous)(_|$)|^old", re.I)
_MOST_BEHIND = 40


@dataclass(frozen=True)
class Doubt:
    what: str
    places: tuple[Place, ...]
    why: tuple[str, ...] = ()
    confidence: Confidence = Confidence.LIKELY


def doubts(program: Program) -> Iterator[Doubt | Place]:
    """What is wrong with the reference of each KL in a loss; the place of the network where nothing is."""
    reported: set[Place] = set()
    if not program.origins.trained():
        return
    for value in reward_penalties(program):
        if value.is_itself:
            what = f"`{value.difference.value.place.text}` is a KL of the trained network to itself: it is 0"
            yield Doubt(what, (value.difference.value.place,), program.kinds.why(value.difference.value))
    for penalty in penalties(program):
        if penalty.difference is None or penalty.core.place in reported:
            continue
        reported.add(penalty.core.place)
        sides = policy_and_reference(program, penalty.difference)
        if sides is None:
            itself = _itself(program, penalty)
            if itself is not None:
                yield itself
            continue
        for model in program.origins.networks(sides[1]):
            if model.place in reported:
                continue
            reported.add(model.place)
            yield _of_network(program, penalty, sides[1], model) or model.place


def _itself(program: Program, penalty: Penalty) -> Doubt | None:
    """A KL between the policy and itself: no side is of another network, and none is what the ratio divides by."""
    difference = penalty.difference
    if difference is None or penalty.estimator not in ("k3", "k2", "abs"):
        return None
    for ours, theirs in ((difference.left, difference.right), (difference.right, difference.left)):
        if program.origins.gradient(ours) is not True:
            continue
        if program.origins.is_reference(theirs) is not False or program.origins.is_reference(ours) is not False:
            continue
        if before_detach(ours) is before_detach(theirs):
            what = f"the KL of {ours.shown} is measured to its own detached copy: it is always 0"
            return Doubt(what, (difference.value.place,), program.kinds.why(difference.value))
        calls = program.origins.forwards(theirs)
        if program.origins.gradient(theirs) is not False or not all(call.op == "forward" for call in calls):
            continue
        if is_against_old(program, difference) or not _are_current(program, ours, calls):
            continue
        if any(is_drawn_from(program, call) for call in calls) or not _is_meant(program, theirs):
            continue  # log-probs of the rollout, or of the last update: nothing is called a reference
        names = ", ".join(dict.fromkeys(model.shown for model in program.origins.networks(theirs)))
        what = f"the reference log-probs {theirs.shown} are computed by the trained network itself ({names})"
        return Doubt(what, (calls[0].place, difference.value.place), program.kinds.why(theirs))
    return None


def _is_meant(program: Program, theirs: Value) -> bool:
    """Whether fixed log-probs are meant as a reference: they are called so, or the ratio has others for old."""
    named = islice(walk(theirs, until=lambda value: value.op == "forward"), _MOST_BEHIND)
    texts = [name for value in named for name in (*value.names, *value.context.functions[-1:])]
    if any(_OLD.search(name) for name in theirs.names):
        return False
    return any(_REFERENCE.search(name) for name in texts) or any(
        program.origins.gradient(difference.right) is False
        for use in uses(program)
        for difference in differences(program, use.ratio)
    )


def _are_current(program: Program, ours: Value, calls: list[Value]) -> bool:
    """Whether the other side is computed again with each rollout, so that it follows the policy."""
    new = program.origins.forwards(ours)
    shared = [
        loop for call in calls for loop in call.context.loops if any(loop in value.context.loops for value in new)
    ]
    return bool(shared) or not any(value.context.loops for value in new)


def _of_network(program: Program, penalty: Penalty, theirs: Value, model: Value) -> Doubt | None:
    core = penalty.core.place
    if model.op == "deepcopy" and model.name == "copy":
        return Doubt("copy.copy() shares the weights: the reference is trained with the policy", (model.place, core))
    if any(program.origins.is_switched(call) for call in program.origins.forwards(theirs)):
        return None
    policies = [value for value in program.origins.trained() if not same_network(value, model)]
    first = original(model)
    is_own = not any(same_network(first, value) for value in program.origins.trained())
    is_random = is_own and _is_random(first) and bool(policies) and all(_is_random(policy) for policy in policies)
    is_filled = bool(loads_into(program, model)) or is_touched(program, model) or _is_loaded_from(program, model)
    if is_random and not is_filled:
        what = "the reference is newly built with random weights, and the policy's are never loaded into it"
        return Doubt(what, (model.place, core))
    follows = _follows(program, penalty.loss, model)
    if follows is not None:
        what = "the reference gets the policy's weights before each rollout: the KL is 0 whenever it counts"
        return Doubt(what, (follows.place, core))
    trains = [value for value in program.of("train") if value.input is not None and _is_of(value.input, model)]
    rests = [value for value in program.of("eval") if value.input is not None and _is_of(value.input, model)]
    on = [train for train in trains if train.setting("1", train.setting("mode", True)) is True]
    if on and not any(rest.order > on[-1].order for rest in rests):
        what = "the reference is put into train mode: dropout makes another network of it in each pass"
        return Doubt(what, (on[-1].place, core), confidence=Confidence.POSSIBLE)
    return None


def _is_of(value: Value, model: Value) -> bool:
    return value.op != "phi" and same_network(value, model)


def _is_random(model: Value) -> bool:
    """A network built from its configuration in the script, not loaded and not copied."""
    if model.op == "instance":
        return True
    text = model.place.text
    return model.op == "pretrained" and "from_pretrained" not in text and "load" not in text


def _is_loaded_from(program: Program, model: Value) -> bool:
    """The other way round: the policy starts with the reference's weights."""
    return any(
        (source := source_of(load)) is not None and same_network(source, model)
        for load in program.of("load_state_dict")
    )


def _follows(program: Program, loss: Value, model: Value) -> Value | None:
    """A load of the trained weights into the reference as often as tokens are drawn, under no condition."""
    drawings = [drawing for drawing, _ in draws_behind(program, loss)]
    if any(same_network(value, model) for _, value in draws_behind(program, loss)):
        return None
    for load in loads_into(program, model):
        source = source_of(load)
        if source is None or not is_trained(program, network(source)) or not load.context.loops:
            continue
        for drawing in drawings:
            inner = drawing.context.loops[: len(load.context.loops)]
            around = drawing.context.loops[: _depth(drawing)]
            same_loops = load.context.loops == inner and _depth(drawing) == len(load.context.loops)
            same_loops |= bool(around) and load.context.loops[: len(around)] == around
            if same_loops and len(load.context.branches) <= len(drawing.context.branches):
                return load
    return None


def _depth(drawing: Value) -> int:
    """The loops around a rollout; the loop over its tokens is not one of them."""
    if drawing.op == "generate":
        return len(drawing.context.loops)
    return max(len(drawing.context.loops) - 1, 0)
