"""What an objective states of itself is true of its term: slope, settings, clip, bound.

Everything is reached through the name `grpo`, so that the mutant test can put a mutated module in its place.
"""

from dataclasses import fields, replace

import pytest
import torch

import assay.grpo as grpo
from assay.config import LossConfig


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


# ratios below, inside and above every bound in use, off the corners; advantages of both signs
RATIOS, SIGNS = tensor([[0.3, 0.9, 1.1, 1.7, 30.0]] * 2), tensor([[1.5], [-1.5]]).expand(2, 5)
ALL_ON = LossConfig(dual_clip=3.0, delta=2.0, clip_high=0.3)


@pytest.mark.parametrize("name", sorted(grpo.OBJECTIVES))
@pytest.mark.parametrize("settings", [LossConfig(), ALL_ON])
def test_the_stated_slope_is_that_of_autograd(name, settings):
    logprobs, chosen = (RATIOS.log() - 2.0).requires_grad_(), grpo.OBJECTIVES[name]
    loss, _ = chosen.term((logprobs + 2.0).exp(), SIGNS, logprobs, settings)
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    torch.testing.assert_close(chosen.slope(RATIOS, SIGNS, settings), gradient, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", sorted(grpo.OBJECTIVES))
def test_an_objective_reads_the_settings_that_it_states_and_no_others(name):
    def outcome(settings):
        return [part.tolist() for part in grpo.OBJECTIVES[name].term(RATIOS, SIGNS, RATIOS.log(), settings)]

    numbers = {field.name for field in fields(LossConfig) if field.type in ("float", "int")}
    read = {one for one in numbers if outcome(replace(ALL_ON, **{one: 1.2345})) != outcome(ALL_ON)}
    assert read == set(grpo.OBJECTIVES[name].settings)


@pytest.mark.parametrize("name", sorted(grpo.OBJECTIVES))
def test_an_objective_says_whether_it_clips_and_whether_it_bounds_the_ratio(name):
    chosen = grpo.OBJECTIVES[name]
    far = tensor([[1e4, 1e7]])
    slopes = chosen.slope(far, -torch.ones_like(far), LossConfig())
    assert chosen.bounds_ratio == (slopes.abs().max().item() < 10)
    gain = -chosen.term(RATIOS, SIGNS, RATIOS.log(), LossConfig(clip_low=0.2, clip_high=0.2))[0]
    assert chosen.clips == torch.equal(gain, (RATIOS * SIGNS).minimum(RATIOS.clamp(0.8, 1.2) * SIGNS))
