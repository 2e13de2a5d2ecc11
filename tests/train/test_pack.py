import dataclasses

import pytest
import torch
from tiny import EOS_ID, sample, uneven_samples

from assay.train.pack import pack

CPU = torch.device("cpu")


def one(samples):
    (minibatch,) = pack(samples, range(len(samples)), minibatches=1, microbatches=1, max_tokens=8, device=CPU)
    return minibatch


def test_a_packed_row_by_hand():
    minibatch = one([sample(0, (2, 3), (4, EOS_ID), 0.5), sample(1, (7,), (8, 9, 10), -1.0)])
    (batch,) = minibatch.microbatches
    assert batch.ids_BL.tolist() == [[2, 3, 4, EOS_ID], [7, 8, 9, 10]]
    assert batch.targets_BT.tolist() == [[4, EOS_ID, 0], [8, 9, 10]]
    # token 0 of the completion is predicted at the last token of the prompt
    assert batch.positions_BT.tolist() == [[1, 2, 0], [0, 1, 2]]
    assert batch.mask_BT.tolist() == [[True, True, False], [True, True, True]]
    assert batch.advantages_BT.tolist() == [[0.5, 0.5, 0.0], [-1.0, -1.0, -1.0]]
    assert batch.sampler_BT.tolist() == [[-1.0, -1.0, 0.0], [-1.0, -1.0, -1.0]]
    assert dataclasses.astuple(minibatch.totals) == (2, 5, 5.0, 8)


def test_eos_is_in_the_loss_although_padding_has_its_id():
    (batch,) = one(uneven_samples()).microbatches
    for row, packed in enumerate(uneven_samples()):
        length = len(packed.rollout.tokens)
        assert batch.mask_BT[row].tolist() == [True] * length + [False] * (6 - length)


def test_positions_point_at_the_output_that_predicts_the_target():
    (batch,) = one(uneven_samples()).microbatches
    shifted_BT = batch.ids_BL.gather(1, (batch.positions_BT + 1).clamp(max=batch.ids_BL.shape[1] - 1))
    assert torch.equal(shifted_BT[batch.mask_BT], batch.targets_BT[batch.mask_BT])


def test_a_sample_out_of_the_loss_counts_as_a_sequence_but_not_as_tokens():
    minibatch = one([sample(0, (2,), (3, EOS_ID), 1.0), sample(0, (2,), (4, 5), -1.0, in_loss=False)])
    assert minibatch.microbatches[0].mask_BT.tolist() == [[True, True], [False, False]]
    assert (minibatch.totals.sequences, minibatch.totals.tokens) == (2, 2)


def test_token_advantages_are_kept_token_by_token():
    (batch,) = one([sample(0, (2,), (3, 4, EOS_ID), (0.1, 0.2, 0.3))]).microbatches
    assert batch.advantages_BT.tolist() == [pytest.approx([0.1, 0.2, 0.3])]


@pytest.mark.parametrize(("minibatches", "microbatches"), [(1, 1), (2, 2), (4, 1), (3, 2), (8, 1)])
def test_every_row_is_packed_exactly_once_and_totals_cover_the_minibatch(minibatches, microbatches):
    samples = uneven_samples()
    order = [3, 1, 4, 0, 5, 2, 7, 6]
    packed = pack(samples, order, minibatches=minibatches, microbatches=microbatches, max_tokens=8, device=CPU)
    assert [row for part in packed for batch in part.microbatches for row in batch.rows] == order
    assert len(packed) == minibatches
    for part in packed:
        assert part.totals.sequences == sum(len(batch.rows) for batch in part.microbatches)
        assert part.totals.tokens == sum(int(batch.mask_BT.sum()) for batch in part.microbatches)
        assert part.totals.share_of_rollout_tokens == 27 / minibatches


def test_fewer_rows_than_cuts_make_fewer_cuts():
    packed = pack(uneven_samples()[:3], [0, 1, 2], minibatches=4, microbatches=2, max_tokens=8, device=CPU)
    assert [[batch.rows for batch in part.microbatches] for part in packed] == [[(0,)], [(1,)], [(2,)]]
    assert [part.totals.share_of_rollout_tokens for part in packed] == [11 / 3] * 3
    assert pack([], [], minibatches=2, microbatches=2, max_tokens=8, device=CPU) == ()
