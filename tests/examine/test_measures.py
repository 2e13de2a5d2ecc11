"""What is measured of an update, on numbers small enough to work out by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from assay.examine.guard import Guard
from assay.examine.inputs import PassInputs, active_dropout, padding_mask
from assay.examine.loss_probes import token_gradients
from assay.examine.part import Part, join, join_inputs, sampled_fields, stack
from assay.examine.weights import OF_EACH, Weights


def test_short_rows_are_filled_up_long_ones_are_cut_and_absent_ones_are_nan():
    assert stack([[1, 2, 3], [4]], fill=9).tolist() == [[1, 2, 3], [4, 9, 9]]
    assert stack([torch.tensor([1, 2, 3]), np.array([4])], width=2).tolist() == [[1, 2], [4, 0]]
    stacked = stack([None, torch.tensor([0.5])], width=2)
    assert np.isnan(stacked[0]).all()
    assert stacked[1].tolist() == [0.5, 0.0]


def test_parts_are_joined_in_the_order_of_the_rows_with_the_fields_that_all_have():
    left = Part((3, 0), {"tokens": torch.tensor([[7], [8]]), "advantages": torch.tensor([1.0, 2.0])})
    right = Part((1,), {"tokens": torch.tensor([[5, 6]]), "advantages": torch.tensor([3.0]), "ratio": torch.ones(1, 2)})
    joined = join([left, right], [0, 1, 3], 2, pad=9)
    assert joined["tokens"].tolist() == [[8, 9], [5, 6], [7, 9]]
    assert joined["advantages"].tolist() == [2.0, 3.0, 1.0]
    assert "ratio" not in joined


def test_low_precision_has_no_numpy_dtype_and_is_widened():
    assert stack([torch.tensor([0.5], dtype=torch.bfloat16)]).tolist() == [[0.5]]


def test_sampled_rows_keep_their_own_lengths():
    fields = sampled_fields([[1], [2, 3]], [[4, 5], [6]], width=3, pad=9)
    assert fields["sampled_tokens"].tolist() == [[4, 5, 9], [6, 9, 9]]
    assert fields["prompt_tokens"].tolist() == [[1, 9], [2, 3]]
    assert fields["prompt_mask"].tolist() == [[1, 0], [1, 1]]
    assert fields["lengths"].tolist() == [2, 1]


def tensors_with_gradients(*pairs):
    tensors = []
    for numbers, gradient in pairs:
        tensor = nn.Parameter(torch.tensor(numbers))
        tensor.grad = None if gradient is None else torch.tensor(gradient)
        tensors.append(tensor)
    return tensors


def test_what_a_step_changed_is_counted():
    first, _, third = tensors = tensors_with_gradients(([1.0, 2.0], [1.0, 0.0]), ([3.0], [0.0]), ([4.0], None))
    weights = Weights(tensors)
    with torch.no_grad():
        first[0] += 3.0
        third += 4.0
    assert weights.after() == {
        "tensors": 3, "tensors_changed": 2, "tensors_without_gradient": 2, "update_norm": 5.0,
        "numbers_changed_share": 0.5, "descent": -0.6, "mean_move": 2.5, "weight_bits": 32,
        "relative_update": 5 / 30**0.5,
    }  # fmt: skip


def test_the_smallest_step_is_that_of_tensors_that_did_not_move_and_were_pulled():
    tensors = tensors_with_gradients(([1.5, 0.001], [1.0, 0.0]), ([4.0], [1.0]), ([1e-9], [0.0]), ([1e-9], [1.0]))
    weights = Weights(tensors)
    with torch.no_grad():
        tensors[-1] += 1.0
    assert weights.after()["smallest_step"] == 2.0**-24  # after 1.5 comes 1.5 + 2**-23


def test_of_a_large_model_the_numbers_with_the_largest_gradients_are_compared():
    gradient = torch.zeros(1000)
    gradient[-1] = 1.0
    (tensor,) = tensors_with_gradients((torch.zeros(1000).tolist(), gradient.tolist()))
    sample, prefix = Weights([tensor], most=OF_EACH, by_gradient=True), Weights([tensor], most=OF_EACH)
    with torch.no_grad():
        tensor[-1] = 1.0
    assert sample.after() == {
        "tensors": 1, "tensors_changed": 1, "tensors_without_gradient": 0, "descent": -1.0, "weight_bits": 32,
        "mean_move": 0.125,
    }  # fmt: skip
    assert prefix.after()["tensors_changed"] == 0


def test_a_sparse_gradient_is_a_gradient():
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    assert Weights(list(embedding.parameters())).after()["tensors_without_gradient"] == 0


def test_the_gradient_of_a_token_is_zero_where_no_way_leads_to_it():
    new = torch.tensor([[1.0, 2.0]], requires_grad=True)
    assert token_gradients((new * torch.tensor([[3.0, 4.0]])).sum(), new).tolist() == [[3.0, 4.0]]
    assert token_gradients(torch.ones(1, requires_grad=True).sum(), new).tolist() == [[0.0, 0.0]]
    assert token_gradients(torch.ones(1).sum(), new).tolist() == [[0.0, 0.0]]


def test_a_pass_in_pieces_of_one_width_is_joined_and_another_width_begins_again():
    model = nn.Embedding(9, 2)
    with PassInputs(model).watching() as inputs:
        for ids in ([[1, 2, 3]], [[4, 5]], [[6, 7]]):
            model(torch.tensor(ids))
    model(torch.tensor([[8]]))
    assert [given["input_ids"].tolist() for given in inputs.passes] == [[[1, 2, 3]], [[4, 5]], [[6, 7]]]
    assert inputs.joined()["input_ids"].tolist() == [[4, 5], [6, 7]]


def causal_mask(padding: list[list[int]]) -> torch.Tensor:
    real = torch.tensor(padding).bool()
    return real[:, None, None, :] & torch.ones(real.shape[1], real.shape[1], dtype=torch.bool).tril()


def test_a_4d_mask_is_kept_as_the_padding_mask_that_it_stands_for():
    class Model(nn.Module):
        def forward(self, input_ids, attention_mask):
            return input_ids

    padding = [[0, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1]]
    whole = causal_mask(padding)
    added = torch.zeros(whole.shape).masked_fill(~whole, torch.finfo(torch.float32).min)
    shared = whole.clone()
    shared[2, 0, 3, 2] = False  # the last token does not see the one before it: no padding mask says so
    ids = torch.ones(3, 4, dtype=torch.int64)
    model = Model()
    with PassInputs(model).watching() as inputs:
        model(ids, attention_mask=whole)
        model(ids, attention_mask=added)
        assert inputs.left_out == ""
        model(ids, attention_mask=shared)
    assert [given["attention_mask"].int().tolist() for given in inputs.passes[:2]] == [padding, padding]
    assert "attention_mask" not in inputs.passes[2]
    assert "does more than hide padding" in inputs.left_out
    with PassInputs(model, whole_masks=True).watching() as inputs:
        model(ids, attention_mask=shared)
    assert inputs.passes[0]["attention_mask"].dim() == 4


def test_masks_of_0_and_1_are_read_and_heads_that_see_different_things_are_not_taken_for_padding():
    padding = [[0, 1, 1], [1, 1, 1]]
    whole = causal_mask(padding)
    for mask in (whole.int(), whole.float()):
        assert padding_mask(mask).int().tolist() == padding
    by_head = whole.expand(2, 2, 3, 3).clone()
    assert padding_mask(by_head).int().tolist() == padding
    by_head[1, 1, 0, 2] = True  # one head sees the future
    assert padding_mask(by_head) is None


def test_faults_are_handed_over_and_signals_are_not():
    faults = []
    guard = Guard(faults.append)
    assert guard.attempt(lambda: 1 / 0, "otherwise") == "otherwise"
    assert [type(fault) for fault in faults] == [ZeroDivisionError]

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard.attempt(stop, None)
    assert guard.seconds > 0


def test_inputs_are_joined_where_all_passes_had_the_same_columns():
    parts = [Part((1,), {}), Part((0,), {})]
    given = [
        {"input_ids": np.array([[1, 2]]), "attention_mask": None},
        {"input_ids": torch.tensor([[3, 4]]), "attention_mask": np.ones((1, 2))},
    ]
    joined = join_inputs(parts, given, [0, 1])
    assert {name: array.tolist() for name, array in joined.items()} == {"input_ids": [[3, 4], [1, 2]]}
    assert join_inputs(parts, [given[0], {"input_ids": torch.tensor([[3, 4, 5]])}], [0, 1]) == {}
    assert join_inputs(parts, given[:1], [0, 1]) == {}


def test_a_recurrent_layer_drops_between_its_layers_only():
    deep, flat = nn.GRU(2, 2, num_layers=2, dropout=0.1), nn.GRU(2, 2)
    assert (active_dropout(deep), active_dropout(flat)) == (1, 0)
    assert active_dropout(deep.eval()) == 0
