"""grpo.py through numpy is grpo.py through torch: every public function, on random input with NaN and masked rows."""

import inspect
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from assay import grpo
from assay.config.sections import LossConfig
from assay.doctor.recompute.arrays import plain, tensor
from assay.types import Totals

P, G, K, S, B, T, V = 3, 4, 2, 3, 5, 6, 7
TOTALS = Totals(sequences=B, tokens=17, share_of_rollout_tokens=21.5, max_tokens=9)
SETTINGS = LossConfig(kl_coef=0.1, entropy_coef=0.01, correction="token", dual_clip=3.0, delta=1.5, kl_estimator="k3")


def numbers(*shape, seed=0, scale=1.0):
    return scale * np.random.default_rng(seed).standard_normal(shape)


REWARDS = numbers(P, G)
REWARDS[0, 1] = np.nan
REWARDS[1] = 0.3  # nothing varies
REWARDS[2, :3] = np.nan  # a single score
COMPONENTS = numbers(P, G, K, seed=1)
COMPONENTS[0, 0] = np.nan
COMPONENTS[1, 2, 1] = np.nan
STEPS = numbers(P, G, S, seed=2)
STEPS[0, 1, 2] = np.nan
ENDS = np.random.default_rng(3).integers(0, T, (P, G, S))
MASK = np.arange(T) < np.array([6, 3, 0, 1, 5])[:, None]
NEW = -np.abs(numbers(B, T, seed=4))
OLD = NEW + numbers(B, T, seed=5, scale=0.4)
REF = NEW + numbers(B, T, seed=6, scale=0.4)
SAMPLER = np.where(np.arange(T) == 2, np.nan, OLD + numbers(B, T, seed=7, scale=0.4))
NEW[~MASK] = np.nan
ADVANTAGES = numbers(B, T, seed=8)
ENTROPY = np.abs(numbers(B, T, seed=9))
LOGITS = numbers(B, T, V, seed=10, scale=3.0)
TARGETS = np.random.default_rng(11).integers(0, V, (B, T))
SUPPORT = np.random.default_rng(12).integers(0, V, (B, T, 3))
INPUTS = {
    "new_BT": NEW, "old_BT": OLD, "ref_BT": REF, "sampler_BT": SAMPLER, "advantages_BT": ADVANTAGES, "mask_BT": MASK,
    "entropy_BT": ENTROPY,
}  # fmt: skip


def choices(**options):
    """Every combination of the options, as keyword arguments."""
    combined = [{}]
    for name, values in options.items():
        combined = [{**one, name: value} for one in combined for value in values]
    return combined


CALLS = [
    *(
        ("group_advantages", (REWARDS,), one)
        for one in choices(
            std=["sample", "population", "none"], scale=["group", "batch"], baseline=["mean", "leave_one_out"]
        )
    ),
    ("group_advantages", (REWARDS,), {"epsilon": 0.0}),
    ("gdpo_advantages", (COMPONENTS, np.array([0.5, 2.0])), {}),
    ("process_advantages", (STEPS, ENDS, T), {}),
    ("overlong_penalty", (np.array([1.0, 6.0, 7.5, 12.0]), 9, 4), {}),
    ("restricted", (LOGITS, SUPPORT), {}),
    *(("importance_ratio", (NEW, OLD, MASK, level), {}) for level in ("token", "sequence")),
    *(("kl_estimate", (OLD, REF, estimator), {}) for estimator in ("k1", "k2", "k3")),
    ("sequence_kl", (OLD, REF, MASK), {}),
    *(
        ("mismatch_weights", (OLD, SAMPLER, MASK, LossConfig(correction_low=0.5, correction_high=1.4, **one)), {})
        for one in choices(correction=["token", "sequence", "geometric"], correction_mode=["truncate", "mask"])
    ),
    *(
        ("token_weights", (MASK.astype(np.float64), aggregation, TOTALS), {})
        for aggregation in ("sequence_mean", "token_mean", "rollout_token_mean", "constant")
    ),
    *(
        (name, (np.exp(OLD - REF), ADVANTAGES, OLD, replace(SETTINGS, dual_clip=bound)), {})
        for name in ("clipped_surrogate", "cispo", "sapo")
        for bound in (0.0, 3.0)
    ),
    *(
        ("policy_loss", (), {**INPUTS, "totals": TOTALS, "settings": replace(SETTINGS, **one)})
        for one in choices(objective=list(grpo.OBJECTIVES), kl_gradient=["unbiased", "naive"])
    ),
]
TESTED_APART = {"objective", "token_logprobs", "token_entropy"}  # a decorator; two that torch computes in float32


def through(make, values):
    return make(values) if isinstance(values, np.ndarray) else values


def parts_of(result):
    if isinstance(result, grpo.Loss):
        return list(vars(result).values())
    return list(result) if isinstance(result, tuple) else [result]


def named(call):
    return f"{call[0]}-{'-'.join(str(value) for value in call[2].values() if isinstance(value, str))}"


@pytest.mark.parametrize("call", CALLS, ids=named)
def test_numpy_and_torch_give_the_same_numbers(call):
    name, arguments, options = call

    def result(make):
        given = {key: through(make, value) for key, value in options.items()}
        return parts_of(getattr(grpo, name)(*(through(make, one) for one in arguments), **given))

    ours, theirs = result(tensor), result(torch.from_numpy)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.shape == tuple(other.shape)
        assert (one.dtype.kind == "b") == (other.dtype == torch.bool)
        np.testing.assert_allclose(plain(one), other.numpy(), rtol=1e-12, atol=1e-12)


def test_every_public_function_of_the_math_is_compared():
    public = {
        name
        for name, member in inspect.getmembers(grpo, inspect.isfunction)
        if member.__module__ == grpo.__name__ and not name.startswith("_")
    }
    assert public == {name for name, _, _ in CALLS} | TESTED_APART


def test_log_probs_and_entropy_stay_in_float64():
    scaled = torch.from_numpy(LOGITS) / 0.7
    expected = scaled.log_softmax(dim=2)
    found = grpo.token_logprobs(tensor(LOGITS), tensor(TARGETS), 0.7)
    taken = expected.gather(2, torch.from_numpy(TARGETS).unsqueeze(2)).squeeze(2)
    np.testing.assert_allclose(plain(found), taken.numpy(), rtol=1e-12)
    entropy = -(expected.exp() * expected).sum(dim=2)
    np.testing.assert_allclose(plain(grpo.token_entropy(tensor(LOGITS), 0.7)), entropy.numpy(), atol=1e-12)


def test_a_ruled_out_token_adds_nothing_to_the_entropy():
    logits = tensor([[[0.0, 0.0, -np.inf]]])
    assert float(grpo.token_entropy(logits, 1.0)[0, 0]) == pytest.approx(np.log(2.0))


def test_zero_divided_by_zero_is_silent(recwarn):
    assert np.isnan(plain(tensor([0.0]) / tensor([0.0]))[0])
    assert not recwarn.list


def test_it_needs_no_torch():
    code = "import sys, assay.doctor.recompute.arrays, assay.doctor.recompute; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
