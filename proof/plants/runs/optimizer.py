"""Plants of illnesses of the optimizer: each makes a real run of the real trainer ill."""

from __future__ import annotations

from proof.plants.plant import Plant


def _rounded_masters(original):  # type: ignore[no-untyped-def]
    """The optimizer steps weights that are kept in bfloat16."""

    def step(learner, rate, norm):  # type: ignore[no-untyped-def]
        import math

        import torch

        for master in learner.masters:
            master.data.copy_(master.data.bfloat16())
        before = [master.detach().clone() for master in learner.masters]
        original(learner, rate, norm)
        for master, weight in zip(learner.masters, learner.weights, strict=True):
            master.data.copy_(master.data.bfloat16())
            weight.data.copy_(master.data)
        lengths = [
            float(torch.linalg.vector_norm(master - start))
            for master, start in zip(learner.masters, before, strict=True)
        ]
        return math.hypot(*lengths), sum(length > 0 for length in lengths)

    return step


def _half_forgotten(original):  # type: ignore[no-untyped-def]
    """The optimizer holds every other tensor."""

    def step(learner, rate, norm):  # type: ignore[no-untyped-def]
        import math

        kept = [master.detach().clone() for master in learner.masters]
        original(learner, rate, norm)
        for number, (master, before) in enumerate(zip(learner.masters, kept, strict=True)):
            if number % 2:
                master.data.copy_(before)
                learner.weights[number].data.copy_(before)
        lengths = [float((master - before).norm()) for master, before in zip(learner.masters, kept, strict=True)]
        return math.hypot(*lengths), sum(length > 0 for length in lengths)

    return step


PLANTS: dict[str, Plant] = {
    "HYP01": Plant(settings=("optimizer.learning_rate=0.03",), steps=24),
    "OPT01": Plant(
        settings=("optimizer.learning_rate=1e-6", "model.dtype=bfloat16"),
        replaces={"assay.train.step.learner.Learner._step": _rounded_masters},
    ),
    "OPT02": Plant(replaces={"assay.train.step.learner.Learner._step": _half_forgotten}),
}
