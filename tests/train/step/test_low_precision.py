"""A model in bfloat16: gradients of micro-batches add up in float32, and the weights are the rounded masters."""

from dataclasses import replace

import pytest
import torch
from fixtures.tiny import tiny_policy, uneven_samples

from assay.config import LossConfig, OptimizerConfig
from assay.policy.causal_packing import CausalPacking
from assay.train.step.learner import Learner
from assay.train.step.pack import pack_rows

SAMPLES = uneven_samples()


def minibatch_of(microbatches):
    (minibatch,) = pack_rows(
        SAMPLES,
        range(len(SAMPLES)),
        minibatches=1,
        microbatches=microbatches,
        max_tokens=8,
        packing=CausalPacking(torch.device("cpu")),
    )
    assert len(minibatch.microbatches) == microbatches
    return minibatch


def stepped(minibatch, dtype=torch.bfloat16, updates=1, rate=1.0, clip_norm=1e9):
    """(learner, change of its masters) after steps of plain SGD: the change is the gradient, where Adam hides it."""
    policy = tiny_policy(dtype=torch.bfloat16)
    policy.model.to(dtype)  # float32 starts from the same rounded numbers
    settings = OptimizerConfig(epochs=1, clip_norm=clip_norm)
    one = Learner(policy, None, LossConfig(), settings, total_updates=10)
    one.optimizer, one.scheduled = torch.optim.SGD(one.masters, lr=rate), False
    start = flat(one.masters)
    for number in range(updates):
        batch = one.freeze([minibatch])
        assert one.update(batch.minibatches[0], batch.frozen[0], number).update.applied
    return one, flat(one.masters) - start


def flat(tensors):
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def distance(change, expected):
    return float((change - expected).norm() / expected.norm())


def lone_changes(minibatch):
    """The change by each micro-batch alone, with the denominators of the whole update."""
    return [stepped(replace(minibatch, microbatches=(batch,)))[1] for batch in minibatch.microbatches]


def test_in_bfloat16_the_step_does_not_depend_on_the_cut_into_microbatches():
    _, whole = stepped(minibatch_of(1))
    assert whole.norm() > 0.1
    for parts in (2, 4, 8):
        minibatch = minibatch_of(parts)
        assert distance(stepped(minibatch)[1], whole) < 0.03  # a bfloat16 number is good to 0.004
        for alone in lone_changes(minibatch):
            assert distance(alone, whole) > 0.3  # ten times that, if only one of them were kept


def test_the_gradients_of_four_microbatches_add_up_in_float32():
    minibatch = minibatch_of(4)
    _, change = stepped(minibatch)
    alone = lone_changes(minibatch)
    assert distance(change, sum(alone)) < 1e-6
    rounded = torch.zeros_like(change)
    for part in alone:
        rounded = (rounded + part).to(torch.bfloat16).double()
    assert distance(rounded, sum(alone)) > 1e-4  # a sum kept in bfloat16 would be seen


def test_the_step_in_bfloat16_is_near_the_step_in_float32():
    _, exact = stepped(minibatch_of(4), torch.float32)
    assert distance(stepped(minibatch_of(4))[1], exact) < 0.25  # 0.10, cut or uncut: rounding in the model


def test_gradients_of_the_last_update_are_not_left_in_the_next():
    minibatch = minibatch_of(4)
    _, first = stepped(minibatch, rate=1e-6)
    _, both = stepped(minibatch, rate=1e-6, updates=2)
    assert distance(both, 2 * first) < 0.02


@pytest.mark.parametrize("parts", [1, 4])
def test_the_weights_are_the_rounded_masters_and_the_masters_are_float32(parts):
    one, change = stepped(minibatch_of(parts), updates=2)
    start = tiny_policy(dtype=torch.bfloat16).model.state_dict()
    assert change.norm() > 0.1
    rounded_away = 0
    for name, weight, master in zip(one.names, one.weights, one.masters, strict=True):
        assert (weight.dtype, master.dtype) == (torch.bfloat16, torch.float32)
        assert torch.equal(weight, master.to(torch.bfloat16)), name
        assert not torch.equal(weight, start[name]), name
        rounded_away += int((weight.float() != master).sum())
    assert rounded_away > 100  # the masters know more than the weights


@pytest.mark.parametrize("parts", [1, 4])
def test_the_clip_is_of_the_whole_gradient_in_bfloat16_too(parts):
    _, change = stepped(minibatch_of(parts), clip_norm=0.01)
    assert float(change.norm()) == pytest.approx(0.01, rel=1e-3)
