"""The law of the gradient: torch's own gradients of our loss obey it, and forms that nobody listed break it."""

import numpy as np
import pytest
import torch

from assay.config.sections import LossConfig
from assay.doctor.examples import edit_batch, healthy_batch
from assay.doctor.laws.gradient import check_batch
from assay.doctor.recompute.terms import totals
from assay.grpo import KL_ESTIMATORS, OBJECTIVES, policy_loss
from assay.verdict import Severity, State


def batch_with_gradients_of_torch(update=1, **settings):
    """The example batch with gradients by autograd, which shares no line with the doctor's slopes."""
    whole = {name: getattr(LossConfig(), name) for objective in OBJECTIVES.values() for name in objective.settings}
    batch = edit_batch(healthy_batch(update=update), **{**whole, **healthy_batch().settings, **settings})
    names = ("new_logprobs", "old_logprobs", "ref_logprobs", "mask")
    new_BT, old_BT, ref_BT, mask_BT = (torch.tensor(batch.arrays[name]) for name in names)
    new_BT.requires_grad_(True)
    known = {name: value for name, value in batch.settings.items() if name in LossConfig.__dataclass_fields__}
    loss = policy_loss(
        new_BT=new_BT,
        old_BT=old_BT,
        ref_BT=ref_BT,
        advantages_BT=torch.tensor(batch.token_advantages.copy()),
        mask_BT=mask_BT,
        totals=totals(batch),
        settings=LossConfig(**known),
    )
    (gradients_BT,) = torch.autograd.grad(loss.total, new_BT)
    return edit_batch(batch, gradients=gradients_BT.numpy())


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("update", [0, 1])
def test_gradients_of_torch_obey_the_law(objective, update):
    assert check_batch(batch_with_gradients_of_torch(update, objective=objective)).state is State.HEALTHY


@pytest.mark.parametrize("kl_gradient", ["naive", "unbiased"])
@pytest.mark.parametrize("estimator", KL_ESTIMATORS)
def test_gradients_of_every_kl_obey_the_law(estimator, kl_gradient):
    batch = batch_with_gradients_of_torch(kl_estimator=estimator, kl_gradient=kl_gradient, kl_coef=0.3)
    assert check_batch(batch).state is State.HEALTHY


def test_a_common_factor_is_free():
    batch = batch_with_gradients_of_torch()
    for factor in (1e-3, 0.25, 65536.0):
        scaled = edit_batch(batch, gradients=factor * batch.arrays["gradients"])
        assert check_batch(scaled).state is State.HEALTHY


def last_token_only(batch, gradients_BT):
    last_BT = np.arange(gradients_BT.shape[1]) == batch.arrays["lengths"][:, None] - 1
    return np.where(last_BT, gradients_BT, 0.0)


def long_rows_count_tenfold(batch, gradients_BT):
    lengths_B = batch.arrays["lengths"]
    return gradients_BT * np.where(lengths_B > np.median(lengths_B), 10.0, 1.0)[:, None]


FORMS = {
    "negative advantages are detached": lambda batch, g_BT: np.where(batch.token_advantages < 0, 0.0, g_BT),
    "only the last token is trained": last_token_only,
    "long rows count ten times": long_rows_count_tenfold,
    "no gradient at all": lambda batch, g_BT: 0 * g_BT,
    "the gradient of one row is doubled": lambda batch, g_BT: (
        g_BT * np.where(np.arange(len(g_BT)) == 2, 2.0, 1.0)[:, None]
    ),
    "every third column is lost": lambda batch, g_BT: g_BT * (np.arange(g_BT.shape[1]) % 3 != 0),
    "the loss is maximised": lambda batch, g_BT: -g_BT,
    "advantages are squared": lambda batch, g_BT: g_BT * np.abs(batch.token_advantages),
    "the gradient is spread over the row": lambda batch, g_BT: np.where(
        batch.arrays["mask"], g_BT.mean(1, keepdims=True), 0
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("update", [0, 1])
def test_forms_that_nobody_listed_break_it(form, update):
    batch = batch_with_gradients_of_torch(update)
    verdict = check_batch(edit_batch(batch, gradients=FORMS[form](batch, batch.arrays["gradients"])))
    assert verdict.state is State.FINDING, form


def test_the_tokens_that_are_off_are_named():
    batch = batch_with_gradients_of_torch(update=0)
    gradients_BT = batch.arrays["gradients"]

    def message(form):
        return check_batch(edit_batch(batch, gradients=FORMS[form](batch, gradients_BT))).message

    assert "no gradient reaches all tokens with a negative advantage" in message("negative advantages are detached")
    assert "no gradient reaches every token except the last of its row" in message("only the last token is trained")
    assert "all tokens of row 2" in message("the gradient of one row is doubled")


def test_a_loss_that_goes_the_wrong_way_is_fatal():
    batch = batch_with_gradients_of_torch()
    verdict = check_batch(edit_batch(batch, gradients=-batch.arrays["gradients"]))
    assert verdict.severity is Severity.FATAL
    assert "points the wrong way" in verdict.message


def test_a_batch_without_any_advantage_says_so():
    batch = edit_batch(healthy_batch(), advantages=np.zeros(16), gradients=np.zeros((16, 12)), kl_coef=0.0)
    verdict = check_batch(batch)
    assert verdict.state is State.NOT_APPLICABLE
    assert "every advantage is 0" in verdict.message
