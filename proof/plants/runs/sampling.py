"""Plants of illnesses of sampling and of the sampler's weights: each makes a real run of the real trainer ill."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from proof.plants.plant import Plant

GENERATE = "assay.engine.shared_weights.SharedWeightsEngine.generate"


def _without_temperature(original, policy, inputs, **how):
    return original(replace(policy, temperature=1.0), inputs, **how)


def _with_support_lost(original, engine, prompts, **how):
    """The engine truncates; what it sampled among never reaches the trainer."""
    return [[replace(rollout, support=None) for rollout in group] for group in original(engine, prompts, **how)]


def _greedy(original, engine, prompts, **how):
    return original(engine, prompts, **{**how, "greedy": True})


def _same_seed_on_two_replicas(original, engine, prompts, *, group_size, **how):
    """Two engines answer half of each group, from random numbers that start at the same place."""
    sizes = (group_size - group_size // 2, group_size // 2)
    halves = [original(engine, prompts, group_size=size, **how) for size in sizes]
    return [first + second for first, second in zip(*halves, strict=True)]


def _engine_with_rounded_weights(original, engine, prompts, **how):
    """The engine's copy of the weights has three bits of mantissa, as a float8 engine's has; the trainer's do not."""
    weights = [weight for weight in engine.policy.model.parameters() if weight.dim() > 1]
    exact = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for weight in weights:
            mantissa, exponent = torch.frexp(weight.float())
            weight.copy_(torch.ldexp((mantissa * 16).round() / 16, exponent))
        try:
            return original(engine, prompts, **how)
        finally:
            for weight, value in zip(weights, exact, strict=True):
                weight.copy_(value)


def _sampled_by_the_first_weights(original, engine, prompts, *, policy_version, **how):
    """The engine keeps the weights it was given first; what it reports as its version is honest."""
    if not hasattr(engine, "planted_first"):
        stale = replace(engine.policy, model=copy.deepcopy(engine.policy.model), family=None)
        engine.planted_first = (type(engine)(stale), policy_version)
    frozen, version = engine.planted_first
    return original(frozen, prompts, policy_version=version, **how)


PLANTS: dict[str, Plant] = {
    "SAMP01": Plant(
        settings=("rollout.temperature=0.7",),
        replaces={"assay.policy.causal.CausalPolicy.logprobs": _without_temperature},
    ),
    "SAMP02": Plant(
        settings=("rollout.top_k=4",),
        replaces={GENERATE: _with_support_lost},
    ),
    "SAMP04": Plant(replaces={GENERATE: _greedy}),
    "SAMP05": Plant(replaces={GENERATE: _same_seed_on_two_replicas}),
    "SAMP06": Plant(replaces={GENERATE: _engine_with_rounded_weights}),
    "SYNC01": Plant(replaces={GENERATE: _sampled_by_the_first_weights}, steps=5),
}
