"""What must not matter does not: values under the mask, the order of rows, padding, a field that is not there."""

from dataclasses import replace

import numpy as np
import pytest

from assay.doctor.catalogue import by_code, catalogue
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.examples import B, edit_batch, healthy_batch
from assay.doctor.recompute.consistent import consistent
from assay.record.batch import FIELDS
from assay.verdict import Confidence, State

OF_BATCHES = [one for one in catalogue() if one.batch is not None]
LAID_ON_TOKENS = ("token_rewards", "values", "returns", "raw_advantages")  # what stands under the mask is judged
# what these say hangs on what stands under the mask, by their nature: a NaN, or a mean that takes it in
LOOK_UNDER_THE_MASK = {"MASK06", "MET06"}


def garbage_under_the_mask(batch, value):
    """Every float field of tokens but gradients, with other numbers outside of the mask: `value`, or random ones."""
    random = np.random.default_rng(0)
    mask_BT = batch.arrays["mask"]
    changes = {}
    for name, array in batch.arrays.items():
        is_of_tokens = array.shape == mask_BT.shape and FIELDS[name].kind == "float"
        if is_of_tokens and not name.startswith("gradients") and name not in LAID_ON_TOKENS:
            other_BT = -random.exponential(3.0, size=mask_BT.shape) if value is None else np.full(mask_BT.shape, value)
            changes[name] = np.where(mask_BT, array, other_BT)
    return edit_batch(batch, **changes)


def word(illness, batch):
    (one,) = diagnose(Evidence((batch,)), [illness]).words
    return one.verdict.state, one.confidence


def accusations(batch):
    diagnosis = diagnose(Evidence((batch,)))
    assert not [(one.code, one.verdict.message) for one in diagnosis.of(State.CRASHED)]
    return [(one.code, one.confidence, one.verdict.message) for one in diagnosis.findings]


@pytest.mark.parametrize("value", [None, np.nan, -np.inf, 1e4])
@pytest.mark.parametrize("illness", OF_BATCHES, ids=lambda one: one.code)
def test_no_word_changes_with_what_stands_under_the_mask(illness, value):
    for batch in (illness.sick().batches[0], illness.well().batches[0]):
        if "mask" in batch.arrays and illness.code not in LOOK_UNDER_THE_MASK:
            assert word(illness, garbage_under_the_mask(batch, value)) == word(illness, batch)


@pytest.mark.parametrize("value", [None, np.nan, -np.inf, 1e4])
@pytest.mark.parametrize("update", [0, 1])
def test_garbage_under_the_mask_of_a_sound_batch_accuses_nobody(update, value):
    assert not accusations(garbage_under_the_mask(healthy_batch(update=update), value))


@pytest.mark.parametrize(("update", "kind"), [(0, "arrays"), (1, "numbers"), (1, "settings")])
def test_a_sound_batch_without_one_of_its_fields_accuses_nobody(update, kind):
    batch = healthy_batch(update=update)
    for name in getattr(batch, kind):
        found = accusations(edit_batch(batch, **{name: None}))
        assert not [one for one in found if one[1] is not Confidence.POSSIBLE], name
    assert not accusations(edit_batch(batch, **dict.fromkeys(batch.settings)))


@pytest.mark.parametrize("update", [0, 1])
def test_the_order_of_rows_and_the_precision_of_the_record_do_not_matter(update):
    batch = healthy_batch(update=update)
    order_B = np.random.default_rng(3).permutation(B)
    moved = edit_batch(batch, **{name: array[order_B] for name, array in batch.arrays.items()})
    texts = {name: [column[row] for row in order_B] for name, column in batch.texts.items()}
    assert not accusations(replace(moved, texts=texts))
    single = {name: array.astype(np.float32) for name, array in batch.arrays.items() if array.dtype == np.float64}
    assert not accusations(edit_batch(batch, **single))


@pytest.mark.parametrize("update", [0, 1])
def test_columns_of_padding_do_not_matter(update):
    batch = healthy_batch(update=update)
    wider = {
        name: np.pad(array, ((0, 0), (0, 3)), constant_values=1 if name == "ratio" else 0)
        for name, array in batch.arrays.items()
        if array.ndim == 2 and "BT" in FIELDS[name].shapes
    }
    assert not accusations(edit_batch(batch, **wider, input_ids=None, attention_mask=None, position_ids=None))


@pytest.mark.parametrize("update", [0, 1])
def test_rows_and_forced_tokens_that_are_left_out_by_right_accuse_nobody(update):
    batch = healthy_batch(update=update)
    mask_BT = batch.arrays["mask"].copy()
    mask_BT[~batch.arrays["finished"]] = False
    assert not accusations(consistent(edit_batch(batch, mask=mask_BT, mask_truncated=True)))
    second_BT = np.zeros_like(mask_BT)
    second_BT[:, 1] = batch.arrays["mask"][:, 1]
    assert not accusations(consistent(edit_batch(batch, mask=batch.arrays["mask"] & ~second_BT, forced=second_BT)))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0])
def test_numbers_that_are_lost_everywhere_crash_no_check(value):
    batch = healthy_batch()
    full = edit_batch(batch, mask=np.ones_like(batch.arrays["mask"]), lengths=[12] * B)
    floats = {name: np.full(array.shape, value) for name, array in batch.arrays.items() if array.dtype == np.float64}
    accusations(edit_batch(full, **floats))
    for name, array in floats.items():
        accusations(edit_batch(full, **{name: array}))


@pytest.mark.parametrize("update", [0, 1])
def test_a_batch_without_rows_tokens_or_loss_tokens_crashes_no_check_and_proves_no_ratio(update):
    batch = replace(healthy_batch(update=update), texts={})
    accusations(edit_batch(batch, **{name: array[:0] for name, array in batch.arrays.items()}))
    accusations(edit_batch(batch, **{name: array[:1] for name, array in batch.arrays.items()}))
    of_tokens = {name: array for name, array in batch.arrays.items() if FIELDS[name].shapes[0] == "BT"}
    no_tokens = {name: array[:, :0] for name, array in of_tokens.items() if array.ndim == 2}
    accusations(edit_batch(batch, **no_tokens))
    nothing = edit_batch(batch, mask=np.zeros_like(batch.arrays["mask"]))
    accusations(nothing)
    assert word(by_code("RAT01"), nothing)[0] is not State.HEALTHY
