"""Recorded rollouts as a batch: what is put where, and what is left out where the record is only a part."""

from dataclasses import replace

import numpy as np
import pytest
from fixtures.fake_records import fake_group, fake_record

from assay.record.batch import BatchError
from assay.record.metrics import metrics_row
from assay.record.rollout_batch import batch_of_rows, has_whole_groups
from assay.record.rollouts import from_parquet, rollout_rows, to_parquet
from assay.types import NO_SIGNAL, Score

SETTINGS = {"updates_per_rollout": 1, "group_size": 2, "temperature": 0.7}


def rows_of(record, keep="all", extremes=1):
    return rollout_rows(record, keep=keep, extremes=extremes)


def batch_of(record, settings=SETTINGS, **how):
    return batch_of_rows(rows_of(record), settings, step=record.step, numbers=metrics_row(record), **how)


def test_tokens_and_logprobs_are_laid_out_on_the_left_of_their_rows():
    batch = batch_of(fake_record(), source="here")
    assert batch.source == "here"
    # rollout i of a group is range(i, 2 i + 2): [0, 1] and [1, 2, 3]; the log-prob of token t is -0.1 (t + 1)
    assert batch.arrays["tokens"].tolist() == [[0, 1, 0], [1, 2, 3], [0, 1, 0], [1, 2, 3]]
    assert batch.arrays["lengths"].tolist() == [2, 3, 2, 3]
    for name in ("old_logprobs", "new_logprobs", "sampler_logprobs"):
        np.testing.assert_allclose(batch.arrays[name][:2], [[-0.1, -0.2, 0.0], [-0.1, -0.2, -0.3]])
    assert "ref_logprobs" not in batch.arrays
    # the unscored rollout is out of the loss of the made-up record
    assert batch.arrays["mask"].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 0], [0, 0, 0]]
    assert batch.arrays["finished"].tolist() == [True, False, True, False]
    assert batch.arrays["sampler_versions"].tolist() == [0, 0, 1, 1]


def test_rewards_groups_and_advantages_stand_in_the_order_of_the_rows():
    batch = batch_of(fake_record())
    np.testing.assert_array_equal(batch.arrays["rewards"], [1.0, 0.0, 3.0, np.nan])
    assert batch.arrays["group_ids"].tolist() == [0, 0, 1, 1]
    assert batch.arrays["advantages"].tolist() == [0.5, -0.5, 0.5, -0.5]
    assert batch.settings["process_rewards"] is False
    assert batch.settings["temperature"] == 0.7
    assert batch.texts["prompt_id"] == ["sort-0", "sort-0", "sort-1", "sort-1"]
    assert batch.texts["prompt"][0] == "12>"
    assert batch.texts["completion"][0] == "12"


def test_prompts_of_unequal_length_are_padded_on_the_left():
    record = fake_record()
    rows = rows_of(record)
    rows[0] = {**rows[0], "prompt_tokens": (7,)}
    batch = batch_of_rows(rows, SETTINGS, step=1)
    assert batch.arrays["prompt_tokens"][:2].tolist() == [[0, 7], [5, 6]]
    assert batch.arrays["prompt_mask"][:2].tolist() == [[False, True], [True, True]]


def test_end_tokens_are_those_that_ended_a_row():
    assert batch_of(fake_record()).settings["eos_ids"] == (1,)  # the second rollout was cut off
    rows = [{**row, "stop": "length"} for row in rows_of(fake_record())]
    assert "eos_ids" not in batch_of_rows(rows, SETTINGS, step=1).settings


def test_a_row_ended_by_a_stop_text_is_finished_and_no_end_token():
    rows = [{**row, "stop": "stop"} for row in rows_of(fake_record())]
    batch = batch_of_rows(rows, SETTINGS, step=1)
    assert batch.arrays["finished"].all()
    assert "eos_ids" not in batch.settings


def test_numbers_of_the_metrics_are_kept_where_the_step_made_one_update():
    batch = batch_of(fake_record())
    assert batch.is_on_policy
    assert (batch.number("loss"), batch.number("policy_loss"), batch.number("kl_loss")) == (0.5, 0.25, 0.125)
    assert batch.number("gradient_norm") == 2.0
    assert batch.number("policy_version") == 6  # 7 after the update


def test_numbers_of_several_updates_are_means_and_left_out():
    batch = batch_of(fake_record(), {**SETTINGS, "updates_per_rollout": 3})
    assert batch.number("update") == 2
    assert set(batch.numbers) == {"step", "update"}


def test_the_last_of_several_applied_updates_is_of_the_version_before_it():
    record = fake_record(updates=fake_record().updates * 2, policy_version=9)
    assert batch_of(record, {**SETTINGS, "updates_per_rollout": 2}).number("policy_version") == 8


def test_without_settings_nothing_is_said_of_the_update():
    batch = batch_of_rows(rows_of(fake_record()), {}, step=4)
    assert set(batch.numbers) == {"step"}
    assert "rewards" in batch.arrays


def test_rows_that_were_not_trained_are_left_out():
    rows = rows_of(fake_record())
    rows[0] = {**rows[0], "old_logprobs": None, "new_logprobs": None}
    batch = batch_of_rows(rows, SETTINGS, step=1)
    assert batch.arrays["rewards"].shape == (3,)
    assert batch.arrays["group_ids"].tolist() == [0, 1, 1]


def test_a_step_that_trained_nothing_has_no_arrays():
    rows = [{**row, "old_logprobs": None, "new_logprobs": None} for row in rows_of(fake_record())]
    batch = batch_of_rows(rows, SETTINGS, step=1)
    assert not batch.arrays
    assert batch.number("step") == 1
    assert not batch_of_rows([], SETTINGS, step=1).arrays


def test_advantages_of_process_rewards_are_one_a_token():
    record = fake_record()
    first = replace(record.samples[0], advantage=(0.25, 0.75))
    batch = batch_of(replace(record, samples=(first, *record.samples[1:])))
    assert batch.arrays["advantages"][:2].tolist() == [[0.25, 0.75, 0.0], [-0.5, -0.5, -0.5]]
    assert batch.settings["process_rewards"] is True


def test_extremes_alone_compare_nothing_within_a_group():
    group = fake_group(0, [Score.of({"exact": value}) for value in (0.0, 0.5, 1.0)])
    record = fake_record(groups=(group,))
    settings = {"updates_per_rollout": 1, "group_size": 3}
    part = rows_of(record, keep="extremes")
    assert [row["row"] for row in part] == [0, 2]
    batch = batch_of_rows(part, settings, step=1, numbers=metrics_row(record))
    assert not {"rewards", "group_ids", "advantages"} & set(batch.arrays)
    assert {"tokens", "old_logprobs", "mask"} <= set(batch.arrays)
    assert "loss" not in batch.numbers
    assert {"rewards", "group_ids", "advantages"} <= set(batch_of(record, settings).arrays)


def test_a_group_whose_last_rollouts_are_missing_is_not_whole():
    rows = rows_of(fake_record())
    assert has_whole_groups(rows, 2)
    assert has_whole_groups(rows, None)
    assert not has_whole_groups(rows[:-1], 2)
    assert not has_whole_groups(rows[1:], None)


def test_logprobs_that_do_not_match_their_tokens_are_refused_by_name():
    rows = rows_of(fake_record())
    rows[0] = {**rows[0], "old_logprobs": (-0.1,)}
    rows[1] = {**rows[1], "old_logprobs": (-0.1,) * 4}  # as many in sum
    with pytest.raises(BatchError, match="old_logprobs"):
        batch_of_rows(rows, SETTINGS, step=1)


def test_rows_read_from_a_file_give_the_same_batch(tmp_path):
    rows = rows_of(fake_record())
    file = tmp_path / "step-000001.parquet"
    file.write_bytes(to_parquet(rows))
    direct, read = batch_of_rows(rows, SETTINGS, step=1), batch_of_rows(list(from_parquet(file)), SETTINGS, step=1)
    assert direct.arrays.keys() == read.arrays.keys()
    for name, array in direct.arrays.items():
        np.testing.assert_allclose(array, read.arrays[name], rtol=1e-6)


def test_an_update_that_was_not_taken_leaves_the_version_as_it_is():
    record = fake_record(updates=(replace(fake_record().updates[0], applied=False, skipped=NO_SIGNAL),))
    assert batch_of(record).number("policy_version") == 7
