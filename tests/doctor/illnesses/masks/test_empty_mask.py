"""empty_mask: what else makes a NaN, and what a batch without loss tokens may mean."""

import numpy as np
import pytest

from assay.doctor.evidence import Batch
from assay.doctor.illnesses.masks import empty_mask
from assay.verdict import Confidence, Severity, State

PROVEN, LIKELY = Confidence.PROVEN, Confidence.LIKELY
EMPTY = ("new_logprobs", "old_logprobs", "ref_logprobs", "advantages", "loss")


def broken(**changes):
    """Four rows of two tokens, the last without a loss token; the loss is NaN and its inputs are not."""
    values = {"mask": [[1, 1]] * 3 + [[0, 0]], "tokens": [[5, 6]] * 4, "loss": np.nan, "step": 2}
    values |= {name: np.full((4, 2), -1.0) for name in ("new_logprobs", "old_logprobs", "ref_logprobs")}
    values |= {"advantages": [1.0, -1.0, 0.5, -0.5], "correction": "off"}
    return Batch.of({**values, **changes})


def with_value(value, row, token=0):
    array = np.full((4, 2), -1.0)
    array[row, token] = value
    return array


def told(**changes):
    verdict = empty_mask.check_batch(broken(**changes))
    return verdict.state, verdict.confidence


def test_a_loss_that_breaks_on_sound_inputs_and_an_empty_row_is_proven():
    assert told() == (State.FINDING, PROVEN)
    assert told(loss=0.1)[0] is State.HEALTHY
    assert told(mask=[[1, 1]] * 4)[0] is State.HEALTHY  # no row is empty: the NaN is another illness's
    verdict = empty_mask.check_batch(broken(loss=None, gradients=with_value(np.nan, 1)))
    assert (verdict.state, verdict.message[:9]) == (State.FINDING, "gradients")
    assert told(loss=None, gradients=with_value(0.5, 1))[0] is State.HEALTHY


@pytest.mark.parametrize("name", ["new_logprobs", "old_logprobs", "ref_logprobs"])
def test_a_nan_that_goes_in_is_not_of_the_division(name):
    assert told(**{name: with_value(np.nan, 1)})[0] is State.NOT_APPLICABLE  # a loss token
    assert told(**{name: with_value(-np.inf, 3)}) == (State.FINDING, LIKELY)  # inf * 0 under the mask is NaN as well


def test_advantages_count_by_row_and_by_token():
    assert told(advantages=[1.0, np.nan, 0.5, 0.5])[0] is State.NOT_APPLICABLE
    assert told(advantages=[1.0, -1.0, 0.5, np.nan]) == (State.FINDING, LIKELY)
    assert told(advantages=with_value(np.nan, 1))[0] is State.NOT_APPLICABLE
    assert told(advantages=with_value(np.nan, 3)) == (State.FINDING, LIKELY)
    assert told(advantages=np.full((4, 2), 1.0)) == (State.FINDING, PROVEN)


def test_the_samplers_log_probs_count_where_the_loss_may_be_corrected_by_them():
    lost = {"sampler_logprobs": with_value(np.nan, 1)}
    assert told(**lost) == (State.FINDING, PROVEN)
    assert told(**lost, correction="token")[0] is State.NOT_APPLICABLE
    assert told(**lost, correction=None)[0] is State.NOT_APPLICABLE


@pytest.mark.parametrize(("gap", "confidence"), [(9.9, PROVEN), (10.1, LIKELY)])
def test_an_exp_that_may_overflow_is_another_cause(gap, confidence):
    assert told(new_logprobs=with_value(-1.0 - gap, 0)) == (State.FINDING, confidence)
    assert told(ref_logprobs=with_value(-1.0 - gap, 3)) == (State.FINDING, confidence)


@pytest.mark.parametrize("name", ["new_logprobs", "old_logprobs", "advantages"])
def test_inputs_that_nobody_saw_leave_a_doubt(name):
    assert told(**{name: None}) == (State.FINDING, LIKELY)


def test_a_batch_without_any_loss_token_is_waste_if_all_rows_were_cut_off_on_purpose():
    nothing = {"mask": np.zeros((4, 2)), "loss": None}
    cut = empty_mask.check_batch(broken(**nothing, finished=[0, 0, 0, 0], mask_truncated=True))
    assert (cut.severity, cut.confidence is PROVEN, bool(cut.fix)) == (Severity.WASTEFUL, False, True)
    ended = empty_mask.check_batch(broken(**nothing, finished=[1, 1, 1, 1], mask_truncated=True))
    assert (ended.state, ended.severity, ended.confidence) == (State.FINDING, None, PROVEN)
    assert empty_mask.check_batch(broken(mask=np.zeros((4, 0)), tokens=None, **dict.fromkeys(EMPTY))).state is (
        State.NOT_APPLICABLE
    )
