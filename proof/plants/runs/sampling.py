"""Plants of illnesses of sampling and of the sampler's weights: each makes a real run of the real trainer ill."""

from __future__ import annotations

import copy
from dataclasses import replace as replaced

from proof.plants.plant import Plant


def _without_temperature(original):  # type: ignore[no-untyped-def]
    def logprobs(policy, batch, **how):  # type: ignore[no-untyped-def]
        from dataclasses import replace

        return original(replace(policy, temperature=1.0), batch, **how)

    return logprobs


def _with_support_lost(original):  # type: ignore[no-untyped-def]
    """The engine truncates; what it sampled among never reaches the trainer."""

    def generate(policy, prompts, **how):  # type: ignore[no-untyped-def]
        from dataclasses import replace

        return [[replace(one, support=None) for one in group] for group in original(policy, prompts, **how)]

    return generate


def _greedy(original):  # type: ignore[no-untyped-def]
    def generate(policy, prompts, **how):  # type: ignore[no-untyped-def]
        return original(policy, prompts, **{**how, "greedy": True})

    return generate


def _same_seed_on_two_replicas(original):  # type: ignore[no-untyped-def]
    """Two engines answer half of each group, from random numbers that start at the same place."""

    def generate(policy, prompts, *, group_size, generator, **how):  # type: ignore[no-untyped-def]
        state = generator.get_state()
        halves = []
        for size in (group_size - group_size // 2, group_size // 2):
            generator.set_state(state)
            halves.append(original(policy, prompts, group_size=size, generator=generator, **how))
        return [first + second for first, second in zip(*halves, strict=True)]

    return generate


def _engine_with_rounded_weights(original):  # type: ignore[no-untyped-def]
    """The engine's copy of the weights has three bits of mantissa, as a float8 engine's has; the trainer's do not."""

    def generate(policy, prompts, **how):  # type: ignore[no-untyped-def]
        import torch

        weights = [weight for weight in policy.model.parameters() if weight.dim() > 1]
        exact = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            for weight in weights:
                mantissa, exponent = torch.frexp(weight.float())
                weight.copy_(torch.ldexp((mantissa * 16).round() / 16, exponent))
            try:
                return original(policy, prompts, **how)
            finally:
                for weight, value in zip(weights, exact, strict=True):
                    weight.copy_(value)

    return generate


def _sampled_by_the_first_weights(original):  # type: ignore[no-untyped-def]
    """The engine keeps the weights it was given first; what it reports as its version is honest."""
    kept: list[tuple[object, int]] = []

    def generate(policy, prompts, **how):  # type: ignore[no-untyped-def]
        if not kept:
            stale = replaced(policy, model=copy.deepcopy(policy.model), family=None)
            kept.append((stale, how["policy_version"]))
        frozen, version = kept[0]
        return original(frozen, prompts, **{**how, "policy_version": version})

    return generate


PLANTS: dict[str, Plant] = {
    "SAMP01": Plant(
        settings=("rollout.temperature=0.7",),
        replaces={"assay.policy.causal.CausalPolicy.logprobs": _without_temperature},
    ),
    "SAMP02": Plant(settings=("rollout.top_k=4",), replaces={"assay.train.step.verbs.generate": _with_support_lost}),
    "SAMP04": Plant(replaces={"assay.train.step.verbs.generate": _greedy}),
    "SAMP05": Plant(replaces={"assay.train.step.verbs.generate": _same_seed_on_two_replicas}),
    "SAMP06": Plant(replaces={"assay.train.step.verbs.generate": _engine_with_rounded_weights}),
    "SYNC01": Plant(replaces={"assay.train.step.verbs.generate": _sampled_by_the_first_weights}, steps=5),
}
