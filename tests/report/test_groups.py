"""What the page holds of single completions, against numbers worked by hand."""

import base64

import numpy as np
import pytest
from report.pages import halves

from assay.doctor.catalogue import by_code
from assay.doctor.diagnosis import Diagnosis, Word
from assay.record.batch import Batch
from assay.report import groups
from assay.report.groups import stored_completions
from assay.report.pieces import Pieces
from assay.verdict import Fact, finding

NOTHING = Diagnosis(())


def batch(**values):
    """Two groups of two rows; the last token of row 1 is not in the loss, row 3 is shorter."""
    plain = {
        "tokens": [[5, 6, 7], [5, 6, 7], [8, 9, 1], [8, 1, 0]],
        "mask": [[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 0]],
        "lengths": [3, 3, 3, 2],
        "finished": [1, 0, 1, 1],
        "rewards": [1.0, 0.0, 0.5, 0.5],
        "group_ids": [0, 0, 1, 1],
        "advantages": [1.0, -1.0, 0.0, 0.0],
        "old_logprobs": [[-1.0] * 3] * 4,
        "new_logprobs": [[-1.0, -0.5, -1.0], [-1.0, -1.5, -9.0], [-1.0] * 3, [-1.0] * 3],
        "step": 4,
        "update": 0,
    }
    texts = {"prompt": ["p", "p", "q", "q"], "completion": ["abc", "abd", "xyz", "x"]}
    return Batch.of({**plain, **values}, texts=texts, source="step-000004-update-1.safetensors")


def stored(*batches, diagnosis=NOTHING):
    return stored_completions(batches, diagnosis, Pieces())


def completion(found, row):
    return found.completions[found.sources[0]["stored"][str(row)]]


def test_rows_are_grouped_with_the_largest_spread_first_and_all_numbers_travel():
    found = stored(batch())
    (source,) = found.sources
    assert [group["rows"] for group in source["groups"]] == [[0, 1], [2, 3]]
    assert [found.prompts[group["prompt"]] for group in source["groups"]] == ["p", "q"]
    assert source["reward"] == [1.0, 0.0, 0.5, 0.5]
    assert source["length"] == [3, 3, 3, 2]
    assert source["cut"] == [1]
    assert source["step"] == 4
    assert source["update"] == 1
    assert len(found.completions) == 4
    assert found.left_out == []


def test_the_log_ratio_of_each_token_is_new_less_old_and_its_peak_ignores_the_mask():
    found = stored(batch())
    assert halves(completion(found, 0)["channels"]["log_ratio"]).tolist() == [0.0, 0.5, 0.0]
    assert found.sources[0]["peak"] == [0.5, 0.5, 0.0, 0.0]
    assert completion(found, 1)["masked"] == [2]


def test_the_gradient_is_how_likely_the_loss_makes_the_token_and_is_counted_in_loss_tokens():
    found = stored(batch(gradients=[[-0.1, 0.0, 0.0], [0.1, 0.1, 0.0], [0.0] * 3, [0.0] * 3]))
    assert halves(completion(found, 0)["channels"]["gradient"])[0] == pytest.approx(0.1 * 10, rel=1e-3)
    assert halves(completion(found, 1)["channels"]["gradient"])[1] == pytest.approx(-0.1 * 10, rel=1e-3)


def test_the_kl_is_k3_and_the_mismatch_old_less_sampler():
    found = stored(batch(ref_logprobs=[[-1.5, -0.5, -1.0]] * 4, sampler_logprobs=[[-1.25] * 3] * 4))
    channels = completion(found, 0)["channels"]
    assert halves(channels["kl"])[0] == pytest.approx(np.exp(-0.5) + 0.5 - 1, rel=1e-3)
    assert halves(channels["mismatch"]).tolist() == [0.25] * 3


def test_what_was_not_recorded_is_absent_and_never_zero():
    assert set(completion(stored(batch()), 0)["channels"]) == {"log_ratio", "logprob"}


def test_a_token_is_clipped_where_its_ratio_is_beyond_the_side_that_its_advantage_pushes_to():
    clipped = stored(batch(objective="dapo", clip_low=0.2, clip_high=0.2))
    assert completion(clipped, 0)["clipped"] == [1], "e^0.5 is above 1.2 and the advantage is positive"
    assert completion(clipped, 1)["clipped"] == [1], "e^-0.5 is below 0.8 and the advantage is negative"
    assert clipped.sources[0]["clipped"] == [1, 1, 0, 0]
    turned = stored(batch(objective="dapo", clip_low=0.2, clip_high=0.2, advantages=[-1.0, 1.0, 0.0, 0.0]))
    assert turned.sources[0]["clipped"] == [0, 0, 0, 0], "on these sides the clip lets the gradient through"


@pytest.mark.parametrize("objective", ["gspo", "cispo"])
def test_where_tokens_are_not_clipped_by_themselves_nothing_is_called_clipped(objective):
    assert stored(batch(objective=objective, clip_low=0.2, clip_high=0.2)).sources[0]["clipped"] is None


def test_what_the_trainer_counted_as_clipped_goes_before_what_is_computed():
    recorded = [[1, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    found = stored(batch(objective="dapo", clip_low=0.2, clip_high=0.2, clipped=recorded))
    assert completion(found, 0)["clipped"] == [0]


def test_tokens_behind_the_end_that_are_in_the_loss_are_shown():
    found = stored(batch(mask=[[1, 1, 1]] * 4))
    assert found.sources[0]["length"] == [3, 3, 3, 2]
    assert len(completion(found, 3)["pieces"]) == 3


def test_what_is_not_a_number_travels_as_that():
    new = [[-1.0, np.nan, -1.0], *[[-1.0] * 3] * 3]
    channels = completion(stored(batch(new_logprobs=new)), 0)["channels"]
    assert np.isnan(halves(channels["logprob"])).tolist() == [False, True, False]


def test_ids_travel_whole():
    ids = np.frombuffer(base64.b64decode(completion(stored(batch()), 2)["ids"]), "<u4")
    assert ids.tolist() == [8, 9, 1]


def test_a_large_record_is_cut_to_whole_groups_and_the_page_says_so():
    found = stored_completions([batch()], NOTHING, Pieces(), tokens=7)
    (source,) = found.sources
    assert set(source["stored"]) == {"0", "1"}, "6 tokens fit, the 5 of the other group do not"
    assert len(found.completions) == 2
    assert len(source["reward"]) == 4, "the numbers of the others are there"
    assert "Text and tokens of 2 of 4 completions" in found.left_out[0]


def test_a_group_that_a_finding_names_comes_first():
    word = Word(by_code("RAT01"), finding("x", Fact("ratio", 2.0, step=4, row=3, token=1)), batch().source)
    found = stored(batch(), diagnosis=Diagnosis((word,)))
    assert found.sources[0]["named"] == [3]
    assert found.sources[0]["stored"]["2"] == 0, "its group is the first that is stored"


def test_advantages_per_token_are_a_channel_and_their_mean_colours_the_cell():
    found = stored(batch(advantages=[[1.0, 3.0, 2.0], [1.0, 3.0, 50.0], [0.0] * 3, [0.0] * 3]))
    assert found.sources[0]["advantage"][:2] == [2.0, 2.0]
    assert halves(completion(found, 0)["channels"]["advantage"]).tolist() == [1.0, 3.0, 2.0]


def test_a_batch_of_tokens_alone_is_shown_as_ids():
    found = stored(Batch.of({"tokens": [[5, 6], [7, 8]]}))
    assert completion(found, 0)["pieces"] == ["[5]", "[6]"]
    assert found.sources[0]["reward"] is None
    assert [group["rows"] for group in found.sources[0]["groups"]] == [[0], [1]]


def test_nothing_recorded_is_nothing_stored():
    assert stored() == groups.Stored([], [], [], [])
    assert stored(Batch.of({"rewards": [1.0]})).sources == []
