"""
## What it checks
No parameter is stepped by two optimizers: neither because both were given the same network, nor because one network
holds a layer of the other (a critic with the actor's backbone, tied embeddings).

## Why it hurts
Each optimizer moves the shared weights by its own rate and its own moments, on gradients of the other's loss
as well. The value loss then rewrites the policy's features twice an update, and the ratio moves without any policy
gradient.

## How to fix it
    # before
    critic.backbone = actor.backbone
    actor_optimizer = Adam(actor.parameters(), lr=1e-6)
    critic_optimizer = Adam(critic.parameters(), lr=1e-5)
    # after: a backbone of its own, or one optimizer over both with the shared weights in one of its groups
    critic.backbone = copy.deepcopy(actor.backbone)

## When it is wrong
Optimizers that take turns over training, one after the other, are left alone, and so are lists of parameters that were
filtered by name.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import combinations, product

from assay.doctor.catalogue import Scripts, illness
from assay.programs.edits import Spot, names_in
from assay.programs.facts.optimizer.optimizers import Optimizer, optimizers
from assay.programs.facts.optimizer.ownership import contains, is_network, owners
from assay.programs.facts.origin import network, same_network
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import walk
from assay.verdict import Edit, Severity, Verdict, finding, healthy


def check_source(program: Program) -> Iterator[Verdict]:
    judged = [
        optimizer
        for optimizer in optimizers(program)
        if optimizer.is_known and optimizer.networks and optimizer.steps and not _is_filtered(optimizer.value)
    ]
    for first, second in combinations(judged, 2):
        if not _take_part_together(first, second):
            continue
        shared = _shared_part(program, first, second)
        places = (second.value.place, first.value.place)
        if shared is None:
            yield healthy("the optimizers hold different parameters", places=places)
            continue
        yield finding(
            f"{first.value.shown} and {second.value.shown} both step the parameters of {shared.shown}",
            places=(*places, shared.place),
        )


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    for step in run.gradients.shared:
        yield finding(
            f"{step.tensors} tensors are held by two optimizers, and both step with the same gradient",
            places=(step.place, step.other),
        )
    if run.gradients.steps:
        yield healthy("no tensor is stepped by two optimizers")


def _take_part_together(first: Optimizer, second: Optimizer) -> bool:
    loops, others = ({loop for step in optimizer.steps for loop in step.context.loops} for optimizer in (first, second))
    return bool(loops & others)


def _is_filtered(optimizer: Value) -> bool:
    """Whether parameters were picked by a condition: by their names, by whether they need a gradient."""
    given = optimizer.argument("parameters")
    parts = walk(given, until=lambda value: value.op == "parameters") if given is not None else ()
    return any(
        part.op == "named_parameters"
        or (part.op == "listing" and " for " in part.place.text)
        or part.name.endswith("filter")
        for part in parts
    )


def _shared_part(program: Program, first: Optimizer, second: Optimizer) -> Value | None:
    """A network that both hold, a weight that is tied between networks of both, or a part of networks of both."""
    for mine, theirs in product(first.networks or (), second.networks or ()):
        if same_network(mine, theirs) or contains(program, mine, theirs):
            return network(theirs)
        if contains(program, theirs, mine):
            return network(mine)
    last = max(first.value.order, second.value.order)
    for tie in program.of("setattr"):
        part = tie.argument("value")
        if part is None or part.op != "attribute" or part.input is None or tie.input is None or tie.order > last:
            continue
        ends = [network(part.input), network(tie.input)]
        if all(map(is_network, ends)) and (
            _hold(program, first, second, *ends) or _hold(program, second, first, *ends)
        ):
            return part
    for part in program.of("module", "instance"):
        if not is_network(part) or part.order > last:
            continue
        above = owners(program, part)
        held_by_first, held_by_second = (
            [value for value in above if any(same_network(value, held) for held in optimizer.networks or ())]
            for optimizer in (first, second)
        )
        if any(not same_network(mine, theirs) for mine, theirs in product(held_by_first, held_by_second)):
            return part
    return None


def _hold(program: Program, first: Optimizer, second: Optimizer, part: Value, other: Value) -> bool:
    pairs = ((first, part), (second, other))
    return all(any(contains(program, held, value) for held in one.networks or ()) for one, value in pairs)


SICK = """
import torch
from torch import nn
from task import batches, gains_of, returns_of

actor = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
critic = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
actor_optimizer = torch.optim.Adam(actor.parameters(), lr=3e-4)
critic_optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
for states, actions in batches():
    values = critic(states).squeeze(-1)
    gains = gains_of(states, actions, values.detach())
    chosen = torch.distributions.Categorical(logits=actor(states)).log_prob(actions)
    loss = -(chosen * gains).mean() + 0.5 * (values - returns_of(states, actions)).pow(2).mean()
    actor_optimizer.zero_grad()
    critic_optimizer.zero_grad()
    loss.backward()
    actor_optimizer.step()
    critic_optimizer.step()
"""


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """The parameters that another optimizer has are taken out of this one."""
    shared = re.search(r"the parameters of `(\w+)`", verdict.message)
    first = spot.node.args[0] if isinstance(spot.node, ast.Call) and spot.node.args else None
    if shared is None or first is None:
        return
    parts = first.elts if isinstance(first, ast.List | ast.Tuple) else []
    if isinstance(first, ast.BinOp) and isinstance(first.op, ast.Add):
        parts = [first.left, first.right]
    kept = [part for part in parts if shared[1] not in names_in(part)]
    if len(kept) == 1 and len(parts) == 2:
        only = kept[0].value if isinstance(kept[0], ast.Starred) else kept[0]
        yield spot.child(first).becomes(spot.child(only).source)


ILLNESS = illness(
    __name__,
    code="OPT04",
    severity=Severity.HARMFUL,
    summary="two optimizers step the same parameters",
    fix="Give each parameter to one optimizer: separate backbones, or one optimizer with parameter groups.",
    symptoms=(
        "two optimizers for one model",
        "parameters are stepped twice",
    ),
    scripts=Scripts(sick=SICK, well=SICK.replace("[*actor.parameters(), *critic.parameters()]", "critic.parameters()")),
)
