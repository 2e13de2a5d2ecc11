import dataclasses

import pytest
import torch
from fixtures.tiny import EOS_ID, sample, uneven_samples

from assay.policy.causal_packing import CausalPacking, Sharing
from assay.train.step.pack import pack_rows

CPU = torch.device("cpu")


def one(samples):
    (minibatch,) = pack_rows(
        samples, range(len(samples)), CausalPacking(CPU), minibatches=1, microbatches=1, max_tokens=8
    )
    return minibatch


def test_a_packed_row_by_hand():
    minibatch = one([sample(0, (2, 3), (4, EOS_ID), 0.5), sample(1, (7,), (8, 9, 10), -1.0)])
    (batch,) = minibatch.microbatches
    assert batch.inputs.ids_RS.tolist() == [[2, 3, 4, EOS_ID], [7, 8, 9, 10]]
    assert batch.inputs.targets_BT.tolist() == [[4, EOS_ID, 0], [8, 9, 10]]
    # token 0 of the completion is predicted at the last token of the prompt
    assert batch.inputs.predictors_BT.tolist() == [[1, 2, -1], [4, 5, 6]]
    assert batch.inputs.positions_RS.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert batch.inputs.branches_RS is None
    assert batch.mask_BT.tolist() == [[True, True, False], [True, True, True]]
    assert batch.advantages_BT.tolist() == [[0.5, 0.5, 0.0], [-1.0, -1.0, -1.0]]
    assert batch.sampler_BT.tolist() == [[-1.0, -1.0, 0.0], [-1.0, -1.0, -1.0]]
    assert dataclasses.astuple(minibatch.totals) == (2, 5, 5.0, 8)


def test_eos_is_in_the_loss_although_padding_has_its_id():
    (batch,) = one(uneven_samples()).microbatches
    for row, packed in enumerate(uneven_samples()):
        length = len(packed.rollout.tokens)
        assert batch.mask_BT[row].tolist() == [True] * length + [False] * (6 - length)


def test_predictors_point_at_the_output_before_the_target():
    (batch,) = one(uneven_samples()).microbatches
    following = batch.inputs.ids_RS.flatten()[batch.inputs.predictors_BT.clamp(min=0) + 1]
    assert torch.equal(following[batch.mask_BT], batch.inputs.targets_BT[batch.mask_BT])


def test_a_shared_row_by_hand():
    samples = [
        sample(0, (2, 3), (4, EOS_ID), 1.0),
        sample(1, (7,), (8,), 0.5),
        sample(0, (2, 3), (5,), -1.0),
    ]
    (minibatch,) = pack_rows(
        samples,
        [0, 1, 2],
        minibatches=1,
        microbatches=1,
        max_tokens=8,
        packing=CausalPacking(CPU, Sharing.WHERE_IT_PAYS),
    )
    (batch,) = minibatch.microbatches
    assert batch.rows == (0, 2, 1)  # completions of one prompt are brought together
    assert batch.inputs.ids_RS.tolist() == [[2, 3, 4, EOS_ID, 5], [7, 8, 0, 0, 0]]
    assert batch.inputs.positions_RS.tolist() == [[0, 1, 2, 3, 2], [0, 1, 0, 0, 0]]
    assert batch.inputs.branches_RS.tolist() == [[0, 0, 1, 1, 2], [0, 1, -1, -1, -1]]
    # both first tokens are predicted by the prompt's last one; a row is five wide
    assert batch.inputs.predictors_BT.tolist() == [[1, 2], [1, -1], [5, -1]]
    assert batch.inputs.targets_BT.tolist() == [[4, EOS_ID], [5, 0], [8, 0]]


def test_prompts_are_shared_only_where_that_saves_work():
    def rows(prompt_tokens, completion_tokens, count=4):
        samples = [sample(0, (2,) * prompt_tokens, (3,) * completion_tokens, 0.0) for _ in range(count)]
        (minibatch,) = pack_rows(
            samples,
            range(count),
            minibatches=1,
            microbatches=1,
            max_tokens=4000,
            packing=CausalPacking(CPU, Sharing.WHERE_IT_PAYS),
        )
        return len(minibatch.microbatches[0].inputs.ids_RS)

    assert rows(4, 8) == 1  # twice the prompt is as long as the completion
    assert rows(4, 9) == 4
    assert rows(500, 400) == 2  # a row holds 2,048 tokens at most: 500 + 3 * 400 fit
    assert rows(1024, 1025, count=2) == 2


def test_prompts_with_one_id_and_other_tokens_do_not_share_a_row():
    samples = [sample(0, (2, 3), (4,), 1.0), sample(0, (2, 4), (4,), -1.0)]
    (minibatch,) = pack_rows(
        samples, [0, 1], CausalPacking(CPU, Sharing.WHERE_IT_PAYS), minibatches=1, microbatches=1, max_tokens=8
    )
    assert minibatch.microbatches[0].inputs.branches_RS is None


def test_the_tokens_that_could_have_been_sampled_come_along():
    first, second = sample(0, (2,), (3, 4), 1.0), sample(0, (2,), (5,), -1.0)
    supports = (((3, 9), (4,)), ((6, 5, 8),))
    samples = [
        dataclasses.replace(one, rollout=dataclasses.replace(one.rollout, support=support))
        for one, support in zip((first, second), supports, strict=True)
    ]
    (batch,) = one(samples).microbatches
    assert batch.inputs.support_BTK.tolist() == [[[3, 9, 3], [4, 4, 4]], [[6, 5, 8], [0, 0, 0]]]


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
    packed = pack_rows(
        samples, order, CausalPacking(CPU), minibatches=minibatches, microbatches=microbatches, max_tokens=8
    )
    assert [row for part in packed for batch in part.microbatches for row in batch.rows] == order
    assert len(packed) == minibatches
    for part in packed:
        assert part.totals.sequences == sum(len(batch.rows) for batch in part.microbatches)
        assert part.totals.tokens == sum(int(batch.mask_BT.sum()) for batch in part.microbatches)
        assert part.totals.share_of_rollout_tokens == 27 / minibatches


def test_fewer_rows_than_cuts_make_fewer_cuts():
    packed = pack_rows(uneven_samples()[:3], [0, 1, 2], CausalPacking(CPU), minibatches=4, microbatches=2, max_tokens=8)
    assert [[batch.rows for batch in part.microbatches] for part in packed] == [[(0,)], [(1,)], [(2,)]]
    assert [part.totals.share_of_rollout_tokens for part in packed] == [11 / 3] * 3
    assert pack_rows([], [], minibatches=2, microbatches=2, max_tokens=8, packing=CausalPacking(CPU)) == ()


def passes(samples, pass_tokens, share_prompts=Sharing.ALWAYS):
    (minibatch,) = pack_rows(
        samples,
        range(len(samples)),
        minibatches=1,
        microbatches=0,
        pass_tokens=pass_tokens,
        max_tokens=8,
        packing=CausalPacking(CPU, Sharing(share_prompts)),
    )
    return [batch.rows for batch in minibatch.microbatches]


def group(number, prompt_tokens, *completions):
    return [sample(number, (2,) * prompt_tokens, (3,) * length, 0.5) for length in completions]


def test_passes_by_tokens_keep_groups_together_and_cut_those_that_do_not_fit():
    # 4 + 3 * 2 = 10, 2 + 2 * 3 = 8, 1 + 4 * 5 = 21 tokens
    samples = group(0, 4, 2, 2, 2) + group(1, 2, 3, 3) + group(2, 1, 5, 5, 5, 5)
    assert passes(samples, 0) == [tuple(range(9))]
    assert passes(samples, 39) == [tuple(range(9))]
    assert passes(samples, 38) == [(0, 1, 2, 3, 4), (5, 6, 7, 8)]
    assert passes(samples, 17) == [(0, 1, 2), (3, 4), (5, 6), (7, 8)]
    assert passes(samples, 8) == [(0,), (1, 2), (3, 4), (5,), (6,), (7,), (8,)]
    assert passes(samples, 1) == [(row,) for row in range(9)]


def test_where_rows_are_padded_padding_counts():
    samples = group(0, 1, 1, 1, 1, 9)  # rows of 2, 2, 2 and 10 tokens
    assert passes(samples, 12, Sharing.NEVER) == [(0, 1, 2), (3,)]
    assert passes(samples, 39, Sharing.NEVER) == [(0, 1, 2), (3,)]
    assert passes(samples, 40, Sharing.NEVER) == [(0, 1, 2, 3)]


def test_packed_rows_are_always_shared_but_not_beyond_the_window():
    samples = group(0, 1, 50, 60)

    def rows(window):
        (minibatch,) = pack_rows(
            samples,
            [0, 1],
            minibatches=1,
            microbatches=1,
            max_tokens=60,
            packing=CausalPacking(CPU, Sharing.ALWAYS, window),
        )
        return minibatch.microbatches[0].inputs.trees

    assert rows(None) == rows(61) == ((1, 50, 60),)
    assert rows(60) == ((1, 50), (1, 60))


def test_a_number_that_no_float32_holds_is_packed_as_infinite():
    (batch,) = one([sample(0, (2,), (3, 4), 1e300)]).microbatches
    assert batch.advantages_BT.tolist() == [[float("inf")] * 2]
