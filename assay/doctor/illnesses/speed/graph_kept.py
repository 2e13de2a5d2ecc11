"""
## What it checks
Nothing keeps the graph of a pass after its update: no list or running sum of losses that still carry their gradient,
and no pass of a frozen network outside of `no_grad`.

## Why it hurts
A tensor that was computed with gradients holds all that led to it. A list of losses holds the graphs of all steps, and
memory grows until the run is killed. A reference that is scored with gradients costs its activations in every step.

## How to fix it
Keep the number, not the tensor.

    # before
    losses.append(loss)
    # after
    losses.append(loss.item())

## When it is wrong
Losses that are collected to be differentiated together are left alone. After `backward()` the largest part of a graph
is freed already: what is kept is then small, but still grows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from assay.doctor.catalogue import Scripts, illness, one_per_place
from assay.doctor.examples.scripts import with_change
from assay.programs.edits import Spot, together
from assay.programs.facts.loss.terms import Term, TermKind
from assay.programs.facts.optimizer.optimizers import Optimizer, optimizers
from assay.programs.facts.optimizer.ownership import contains, direct_parts, is_fresh, is_network
from assay.programs.facts.origin import network
from assay.programs.facts.ratio import is_differentiated
from assay.programs.facts.sampling.samplers import is_trained
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.read.things import Listing, Table
from assay.programs.run.kinds import above
from assay.programs.run.sight import requires_grad
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import ancestors
from assay.verdict import Edit, Severity, Verdict, finding, healthy

NUMBERS = ("mean", "sum", "div", "add", "sub", "mul", "neg", "mse_loss", "cross_entropy")
POLICIES = (TermKind.SURROGATE, TermKind.POLICY)
HARMLESS = frozenset("mean sum len leave string index element append tensor std max min table".split())
KEPT = 3  # earlier updates whose numbers are still alive with a graph: one or two may be on their way out


@one_per_place
def check_source(program: Program) -> Iterator[Verdict]:
    behind = {id(value) for loss, _ in program.losses for value in ancestors(loss)}
    for append in program.of("append"):
        kept = _kept_value(program, append, behind)
        if kept is append:
            yield healthy("what is collected carries no graph", places=(append.place,))
        elif kept is not None:
            yield finding(
                f"`{append.place.text}` keeps {kept.shown} with its graph",
                places=(append.place, kept.place),
            )
    for value in program.of("in_place", "add"):
        added = _summand(program, value, behind)
        if added is not None:
            yield finding(
                f"`{value.place.text}` adds up {added.shown} with its graph",
                places=(value.place, added.place),
            )
    yield from _passes(program)


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    for kept in run.gradients.kept:
        if kept.updates >= KEPT:
            yield finding(
                f"numbers of {kept.updates} earlier updates are kept with their graphs: detach() or item() them",
                places=(kept.place,),
            )
    yield from _sums_of_losses(run)


def _kept_value(program: Program, append: Value, behind: set[int]) -> Value | None:
    """What is kept with a graph; the append itself if nothing is; None if that is not to be judged."""
    listing, value = append.input, append.argument("value")
    if listing is None or value is None or not append.context.loops:
        return None
    if id(listing) in behind or listing.context.loops == append.context.loops:
        return None
    parts = value.thing.elements if isinstance(value.thing, Listing) else [value]
    for part in parts:
        if isinstance(part.thing, Table | Listing) or program.origins.gradient(part) is not True:
            continue
        if not program.origins.forwards(part):
            continue
        is_metric = id(part) in behind and _is_stepped(program, append)
        if is_metric or (part.op in NUMBERS and _is_only_read(listing)):
            return part
        return None
    judged = any(part.op in ("leave", "detach") for part in parts)
    return append if judged else None


def _is_stepped(program: Program, append: Value) -> bool:
    """Whether the loop differentiates what it collects, turn by turn."""
    return any(append.context.loops[-1] in call.context.loops for call in program.of("backward"))


def _is_only_read(listing: Value) -> bool:
    return all(user.op in HARMLESS or user.name.startswith("builtins.print") for user in listing.users)


def _summand(program: Program, change: Value, behind: set[int]) -> Value | None:
    """loss of `total += loss`, where each turn differentiates its own part and the total is never differentiated."""
    total = change if change.op == "add" else change.input
    is_total = change.name == "augmented" or (total is not None and _comes_back(total))
    if not is_total or total is None or total.op != "add" or id(total) in behind:
        return None
    added, target = total.argument("other"), total.input
    if added is None or target is None or not change.context.loops:
        return None
    loop = change.context.loops[-1]
    from_before = (target.op == "phi" and target.name == "turn") or loop not in target.context.loops
    if not from_before:
        return None
    is_stepped = any(loop in call.context.loops for call in program.of("backward"))
    if not is_stepped or program.origins.gradient(added) is not True or not program.origins.forwards(added):
        return None
    return added


def _actors(program: Program, term: Term) -> list[Value]:
    """The networks through which a policy term is differentiated."""
    calls = [call for call in program.origins.forwards(term.core) if call.op == "forward" and not call.context.no_grad]
    return [network(call.arguments["model"]) for call in calls if is_network(network(call.arguments["model"]))]


def _comes_back(total: Value) -> bool:
    """Whether a sum is one of its own summands in the next turn: `total = total + loss`."""
    first = total.input
    return first is not None and first.op == "phi" and first.name == "turn" and first.argument("1") is total


def _passes(program: Program) -> Iterator[Verdict]:
    """A pass of a network that no optimizer holds, with gradients, in a loss."""
    every = optimizers(program)
    if not every or any(optimizer.networks is None for optimizer in every):
        return
    for loss, terms in program.losses:
        if not any(is_trained(program, model) for model in program.origins.networks(loss)):
            continue
        policies = [model for term in terms if term.kind in POLICIES for model in _actors(program, term)]
        if any(not is_trained(program, policy) for policy in policies):
            continue  # the policy itself is held by no optimizer: another illness
        for call in program.origins.forwards(loss):
            model = call.arguments.get("model")
            if call.op != "forward" or model is None or not is_network(network(model)):
                continue
            whole = network(model)
            if whole.op == "instance" and not direct_parts(program, whole):
                continue  # a loss that is written as a module
            if _is_partly_held(program, model, every) or program.origins.gradient(call) is not True:
                continue
            if call.context.adapter_off or not is_differentiated(program, call) or is_fresh(program, whole):
                continue
            first = call.context.calls[-1] if call.context.calls else call.place
            yield finding(
                f"`{first.text}` runs {network(model).shown} with gradients, though no optimizer holds it",
                places=(first, call.place),
                fix="Score with it under torch.no_grad(), and freeze it.",
            )


def _is_partly_held(program: Program, model: Value, every: list[Optimizer]) -> bool:
    held = [network for optimizer in every for network in optimizer.networks or ()]
    return any(contains(program, part, model) or contains(program, model, part) for part in held)


def _sums_of_losses(run: WatchedRun) -> Iterator[Verdict]:
    """Sums of losses that went backward already, and keep their graphs."""
    used = {id(value) for backward in run.backwards for value in above(backward.loss)}
    calls = run.graph.of("backward")
    gone = {id(backward.loss): call.order for backward, call in zip(run.backwards, calls, strict=False)}
    for value in run.graph.of("add"):
        left, right = value.input, value.arguments.get("other")
        if not requires_grad(value) or id(value) in used or left is None or right is None:
            continue
        for kept, added in ((left, right), (right, left)):
            again = kept.op == "add" and kept.place == value.place and requires_grad(kept)
            if again and gone.get(id(added), value.order) < value.order:
                yield finding(
                    f"`{value.place.text}` sums losses that went backward already, with their graphs",
                    places=(value.place,),
                )


WELL = with_change("for step in range(100):\n", "losses = []\nfor step in range(100):\n").replace(
    "        optimizer.step()\n", "        optimizer.step()\n        losses.append(loss.item())\n"
)


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """Numbers in place of tensors with their graphs."""
    node = spot.node
    if isinstance(node, ast.AugAssign):
        yield spot.child(node.value).followed_by(".item()")
    given = node.args[0] if isinstance(node, ast.Call) and node.args else None
    parts = given.elts if isinstance(given, ast.Tuple | ast.List) else [given] if given is not None else []
    names = [spot.child(part) for part in parts if isinstance(part, ast.Name)]
    for name in names:
        yield name.followed_by(".item()")
    yield together([name.followed_by(".item()") for name in names], spot.text)


ILLNESS = illness(
    __name__,
    code="PERF02",
    severity=Severity.WASTEFUL,
    summary="graphs of passes are kept after their update, or built for a network that is not trained",
    fix="Collect numbers (loss.item() or loss.detach()), and score with frozen networks under torch.no_grad().",
    symptoms=(
        "out of memory",
        "memory grows every step",
        "CUDA OOM after some steps",
        "memory leak",
    ),
    scripts=Scripts(sick=WELL.replace("append(loss.item())", "append(loss)"), well=WELL),
)
