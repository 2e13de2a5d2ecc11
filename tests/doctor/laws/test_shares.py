"""The law of the gradient where no objective is stated: torch's gradients of losses as people write them."""

import numpy as np
import pytest
import torch

from assay.doctor.laws.gradient import check_batch
from assay.record.batch import Batch
from assay.verdict import Confidence, Missing, State

B, T = 12, 7


def batch_of(objective, aggregate=None, *, moved=0.35, fallen=0.0, kl=0.0, **more):
    """`objective(ratio_BT, A_BT, new_BT)` is maximised, over a mask with rows of different lengths. The first token of
    rows with an advantage above 0 has fallen by `fallen`."""
    random = np.random.default_rng(3)
    old = torch.tensor(random.normal(-1.5, 0.4, (B, T)))
    new = old + torch.tensor(random.normal(0, moved, (B, T)))
    advantages = torch.tensor(random.normal(size=B).round(3))
    new[advantages > 0, 0] -= fallen
    new.requires_grad_(True)
    mask = torch.arange(T)[None] < torch.tensor(random.integers(3, T + 1, B))[:, None]
    gained = objective((new - old).exp(), advantages[:, None], new)
    if kl:
        gained = gained - kl * ((old - new).exp() - (old - new) - 1)
    loss = -(aggregate or (lambda x, m: (x * m).sum() / m.sum()))(gained, mask)
    (gradients,) = torch.autograd.grad(loss, new)
    of_kl = {"kl_placement": "loss", "kl_estimator": "k3", "ref_logprobs": old.numpy()}
    return Batch.of(
        {
            "gradients": gradients.numpy(),
            "mask": mask.numpy(),
            "tokens": np.ones((B, T), dtype=np.int64),
            "new_logprobs": new.detach().numpy(),
            "old_logprobs": old.numpy(),
            "advantages": advantages.numpy(),
            "step": 1,
            "update": 1,
            "dtype": "float32",
            "kl_coef": kl,
            **(of_kl if kl else {}),
            **more,
        }
    )


def clip(r, low=0.2, high=0.2):
    return r.clamp(1 - low, 1 + high)


SOUND = {
    "clipped": lambda r, A, new: torch.min(r * A, clip(r) * A),
    "clipped higher": lambda r, A, new: torch.min(r * A, clip(r, 0.2, 0.28) * A),
    "dual clip": lambda r, A, new: torch.where(
        A < 0, torch.max(torch.min(r * A, clip(r) * A), 1.5 * A), torch.min(r * A, clip(r) * A)
    ),
    "never clipped": lambda r, A, new: r * A,
    "plain policy gradient": lambda r, A, new: new * A,
    "clipped by sign": lambda r, A, new: torch.where(A > 0, r.clamp(max=1.2), r.clamp(min=0.8)) * A,
    "detached weights": lambda r, A, new: r.detach().clamp(max=1.28) * A * new,
    "soft gate": lambda r, A, new: torch.sigmoid(4 * (r - 1)) * A,
}


@pytest.mark.parametrize("kl", [0.0, 0.02])
@pytest.mark.parametrize("name", SOUND)
def test_sound_objectives_are_no_finding(name, kl):
    try:
        verdict = check_batch(batch_of(SOUND[name], kl=kl))
    except Missing:
        return  # of a kind that is not known: an objective must be stated
    assert verdict.state is State.HEALTHY


AVERAGES = {
    "rows": lambda x, m: ((x * m).sum(1) / m.sum(1)).mean(),
    "tokens": lambda x, m: (x * m).sum() / m.sum(),
    "sums": lambda x, m: (x * m).sum(1).mean(),
}


@pytest.mark.parametrize("how", AVERAGES)
def test_the_right_clip_is_healthy_however_tokens_are_averaged(how):
    assert check_batch(batch_of(SOUND["clipped"], AVERAGES[how])).state is State.HEALTHY


WRONG_SIDE = {
    "max for min": lambda r, A, new: torch.max(r * A, clip(r) * A),
    "bounds by the wrong sign": lambda r, A, new: torch.where(A < 0, r.clamp(max=1.2), r.clamp(min=0.8)) * A,
    "min of the losses": lambda r, A, new: -torch.min(-r * A, -clip(r) * A),
}


@pytest.mark.parametrize("kl", [0.0, 0.02])
@pytest.mark.parametrize("how", AVERAGES)
@pytest.mark.parametrize("name", WRONG_SIDE)
def test_a_clip_on_the_wrong_side_for_both_signs_is_likely(name, how, kl):
    verdict = check_batch(batch_of(WRONG_SIDE[name], AVERAGES[how], kl=kl))
    assert verdict.state is State.FINDING
    assert verdict.confidence is Confidence.LIKELY
    assert "wrong side" in verdict.message


def test_a_mask_of_ratios_that_only_good_tokens_have_left_is_at_most_possible():
    kept = batch_of(lambda r, A, new: r * ((r > 0.5) & (r < 5)).detach() * A, moved=0.1, fallen=1.2)
    verdict = check_batch(kept)
    assert verdict.state is State.FINDING
    assert verdict.confidence is Confidence.POSSIBLE


def test_two_tokens_at_ratio_1_without_a_gradient_are_counted_and_not_called_whole():
    two = torch.zeros(B, T, dtype=torch.bool)
    two[2, 1] = two[5, 0] = True
    verdict = check_batch(batch_of(lambda r, A, new: torch.where(two, (r * A).detach(), r * A), moved=0.0, update=0))
    assert verdict.state is State.NOT_APPLICABLE
    assert verdict.message.startswith("2 of ")


def stopped(where):
    return lambda r, A, new: torch.where(where(A.expand(B, T)), (r * A).detach(), r * A)


STOPPED = {
    "negative advantage": stopped(lambda A: A < 0),
    "positive advantage": stopped(lambda A: A > 0),
    "first token of every row": stopped(lambda A: torch.arange(T).expand(B, T) == 0),
    "every second token": stopped(lambda A: torch.arange(T).expand(B, T) % 2 == 1),
}


@pytest.mark.parametrize("name", STOPPED)
def test_tokens_at_ratio_1_without_a_gradient_are_named(name):
    verdict = check_batch(batch_of(STOPPED[name], moved=0.0, update=0))
    assert verdict.state is State.FINDING
    assert verdict.confidence is Confidence.LIKELY
    assert name in verdict.message


def test_advantages_laid_along_the_tokens_are_proven():
    wrong = batch_of(lambda r, A, new: r * A[:T, 0])
    verdict = check_batch(wrong)
    assert verdict.confidence is Confidence.PROVEN
    assert "column" in verdict.message


def test_gradients_of_other_rows_are_proven():
    verdict = check_batch(batch_of(lambda r, A, new: r * A.roll(1, 0)))
    assert verdict.confidence is Confidence.PROVEN
    assert "one before" in verdict.message


def test_the_mean_advantage_for_every_token_is_proven():
    verdict = check_batch(batch_of(lambda r, A, new: r * A.mean()))
    assert verdict.confidence is Confidence.PROVEN
    assert "same gradient" in verdict.message
