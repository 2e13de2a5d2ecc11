"""Log-probs rounded to 16 bits on one side of a difference, and those that only look like it."""

import numpy as np
import pytest
import torch

from assay.doctor.catalogue import by_code
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.record.batch import Batch
from assay.verdict import State


def batch_of(old_BT, new_BT):
    arrays = {"old_logprobs": old_BT.numpy(), "new_logprobs": new_BT.numpy()}
    return Batch.of({**arrays, "mask": np.ones(old_BT.shape, dtype=bool)}, source="made")


def verdict_on(batch):
    (word,) = diagnose(Evidence((batch,)), [by_code("NUM02")]).words
    return word.verdict


def sure_logprobs(gap, height, seed=0):
    """Of the likeliest token, `gap` above the others, from float32 logits of about `height`: logit - logsumexp."""
    generator = torch.Generator().manual_seed(seed)
    logits_BTV = torch.randn(8, 40, 12, generator=generator) + height
    logits_BTV[..., 0] = height + gap + 0.2 * torch.randn(8, 40, generator=generator)
    return logits_BTV[..., 0] - logits_BTV.logsumexp(-1)


@pytest.mark.parametrize("height", [2.0, 30.0, 60.0])
@pytest.mark.parametrize("gap", [8.0, 8.8, 9.4])
def test_a_sure_policy_in_float32_is_not_called_rounded(gap, height):
    """Near 0 a float32 log-softmax leaves few bits: as many as a float16 has."""
    old_BT, new_BT = sure_logprobs(gap, height), sure_logprobs(1.0, 0.0, seed=1)
    assert verdict_on(batch_of(old_BT, new_BT)).state is not State.FINDING


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_one_side_in_16_bits_is_found(dtype):
    new_BT = sure_logprobs(1.0, 0.0)
    assert verdict_on(batch_of(new_BT.to(dtype).float(), new_BT)).state is State.FINDING
