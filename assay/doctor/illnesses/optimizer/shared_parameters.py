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

from collections.abc import Iterator
from itertools import combinations

from assay.doctor.catalogue import Illness, Scripts
from assay.programs.facts.optimizer.optimizers import Optimizer, optimizers
from assay.programs.facts.optimizer.ownership import contains, is_network, owners
from assay.programs.facts.origin import network, same_network
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import walk
from assay.verdict import Confidence, Severity, Verdict, finding, healthy


def check_source(program: Program) -> Iterator[Verdict]:
    every = [one for one in optimizers(program) if one.is_known and one.networks and one.steps]
    for first, second in combinations(every, 2):
        if not _take_part_together(first, second) or _is_filtered(first.value) or _is_filtered(second.value):
            continue
        shared = _shared(program, first, second)
        places = (second.value.place, first.value.place)
        if shared is None:
            yield healthy("the optimizers hold different parameters", places=places)
            continue
        yield finding(
            f"{first.value.shown} and {second.value.shown} both step the parameters of {shared.shown}",
            confidence=Confidence.LIKELY,
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
    return any(
        loop in other.context.loops for one in first.steps for other in second.steps for loop in one.context.loops
    )


def _is_filtered(optimizer: Value) -> bool:
    """Whether parameters were picked by a condition: by their names, by whether they need a gradient."""
    given = optimizer.argument("parameters")
    return given is not None and any(
        one.op == "named_parameters"
        or (one.op == "listing" and " for " in one.place.text)
        or one.name.endswith("filter")
        for one in walk(given, until=lambda one: one.op == "parameters")
    )


def _shared(program: Program, first: Optimizer, second: Optimizer) -> Value | None:
    for one in first.networks or ():
        for other in second.networks or ():
            if same_network(one, other) or contains(program, one, other):
                return network(other)
            if contains(program, other, one):
                return network(one)
    for value in program.of("setattr"):
        part = value.argument("value")
        if part is None or value.input is None or value.order > max(first.value.order, second.value.order):
            continue
        if part.op == "attribute" and part.input is not None and is_network(network(part.input)):  # a tied weight
            ends = [network(part.input), network(value.input)]
            if is_network(ends[1]) and (_hold(program, first, second, *ends) or _hold(program, second, first, *ends)):
                return part
    for part in program.of("module", "instance"):
        if not is_network(part) or part.order > max(first.value.order, second.value.order):
            continue
        above = owners(program, part)
        mine = [one for one in above if any(same_network(one, held) for held in first.networks or ())]
        theirs = [one for one in above if any(same_network(one, held) for held in second.networks or ())]
        if any(not same_network(one, other) for one in mine for other in theirs):
            return part
    return None


def _hold(program: Program, first: Optimizer, second: Optimizer, one: Value, other: Value) -> bool:
    return any(contains(program, held, one) for held in first.networks or ()) and any(
        contains(program, held, other) for held in second.networks or ()
    )


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


ILLNESS = Illness(
    code="OPT04",
    name="shared_parameters",
    severity=Severity.HARMFUL,
    summary="two optimizers step the same parameters",
    fix="Give each parameter to one optimizer: separate backbones, or one optimizer with parameter groups.",
    explanation=__doc__,
    symptoms=(
        "two optimizers for one model",
        "parameters are stepped twice",
    ),
    run=check_run,
    source=check_source,
    scripts=Scripts(sick=SICK, well=SICK.replace("[*actor.parameters(), *critic.parameters()]", "critic.parameters()")),
)
