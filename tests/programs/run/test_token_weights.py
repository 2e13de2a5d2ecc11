"""How much each token counts, read from gradients; and how micro-batches are put together."""

import numpy as np
import pytest
from fixtures.made_run import MadeRun

from assay.programs.run.token_weights import Split, token_weights
from assay.record.batch import Batch

LENGTHS = ((3, 1), (2, 2))  # tokens of the rows of two micro-batches, three columns wide
ADVANTAGES = np.array([1.0, -1.0, 0.5, 2.0])


def weighed(weight_of, *, parts=LENGTHS, sign=1.0, update=0, **fields):
    """An update whose tokens of part p and row r count weight_of(p, r) each."""
    made = MadeRun({"is_trained": True})
    lengths = [length for part in parts for length in part]
    mask_BT = np.arange(3)[None] < np.array(lengths)[:, None]
    weights = [weight_of(part, length) for part in parts for length in part]
    gradients_BT = -sign * mask_BT * np.array(weights)[:, None] * ADVANTAGES[:, None]
    step = made.update(parts=tuple((len(part), 3) for part in parts))
    arrays = {
        "mask": mask_BT,
        "gradients": gradients_BT,
        "advantages": ADVANTAGES,
        "new_logprobs": np.where(mask_BT, -1.0, 0.0),
    }
    source = f"optimizer step 1 ({step.place})"
    made.run.batches.append(Batch.of({**arrays, "update": update, **fields}, source=source))
    return token_weights(made.run)


def test_a_token_mean_of_the_whole_batch_weighs_every_token_alike():
    (seen,) = weighed(lambda part, length: 1 / 8)
    assert [part.by_token for part in seen.parts] == pytest.approx([1 / 8, 1 / 8])
    assert [part.by_row for part in seen.parts] == [None, pytest.approx(1 / 4)]
    assert [(part.rows, part.width, part.tokens, part.against) for part in seen.parts] == [(2, 3, 4, 0), (2, 3, 4, 0)]
    assert (seen.rows, seen.tokens, seen.split) == (4, 8, Split.WHOLE)


def test_a_flipped_sign_pulls_every_token_against_its_advantage():
    (seen,) = weighed(lambda part, length: 1 / 8, sign=-1.0)
    assert [part.against for part in seen.parts] == [1, 1]
    assert seen.split is None


UNEVEN = ((3, 2), (1, 2))
SPLITS = {
    Split.OWN_TOKENS_ADDED: (UNEVEN, lambda part, length: 1 / sum(part)),
    Split.OWN_TOKENS_AVERAGED: (UNEVEN, lambda part, length: 1 / (2 * sum(part))),
    Split.ADDED: (LENGTHS, lambda part, length: 1 / (2 * length)),
    Split.DIVIDED_TWICE: (LENGTHS, lambda part, length: 1 / (8 * length)),
    Split.WHOLE: (UNEVEN, lambda part, length: 1 / (4 * length)),
    None: (UNEVEN, lambda part, length: 0.3),
}


@pytest.mark.parametrize("split", SPLITS)
def test_micro_batches_are_put_together(split):
    parts, weight_of = SPLITS[split]
    (seen,) = weighed(weight_of, parts=parts)
    assert seen.split is split


def test_one_part_is_no_split():
    (seen,) = weighed(lambda part, length: 1 / 8, parts=((3, 1, 2, 2),))
    assert seen.split is None


def test_later_updates_and_updates_that_a_kl_pulls_at_are_left_out():
    assert weighed(lambda part, length: 1 / 8, update=1) == []
    assert weighed(lambda part, length: 1 / 8, ref_logprobs=np.full((4, 3), -2.0)) == []
    assert weighed(lambda part, length: 1 / 8, old_logprobs=np.full((4, 3), -2.0)) == []
