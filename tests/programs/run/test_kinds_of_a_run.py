"""What a value of a run is, by the operations that made it; and which rows and tokens it holds."""

import numpy as np
from fixtures.made_run import MadeRun

from assay.programs.facts.kinds import Kind
from assay.programs.run.kinds import above, chosen_ids, differences_in
from assay.programs.run.rows import picked_rows, position_shifts, replay, takes_rows

LOGITS_23 = np.array([[[0.0, 1.0, 2.0], [1.0, 0.0, 0.5]]])


def test_kinds_follow_the_operations():
    made = MadeRun({})
    logits = made.forward([[1, 2]], LOGITS_23)
    tempered = made.value("div", LOGITS_23 / 2, input=logits, other=2.0)
    softmax = made.value("softmax", LOGITS_23, input=tempered)
    everything = made.value("log_softmax", LOGITS_23, input=logits)
    tokens = made.value("given", np.array([[[2], [0]]]))
    chosen = made.value("gather", np.zeros((1, 2, 1)), input=everything, index=tokens)
    flat = made.value("squeeze", np.zeros((1, 2)), input=chosen)
    kinds = [made.run.kinds.of(one) for one in (logits, tempered, softmax, everything, chosen, flat, tokens)]
    assert kinds == [Kind.LOGITS, Kind.LOGITS, Kind.PROBABILITIES, Kind.LOG_SOFTMAX, Kind.LOGPROBS, Kind.LOGPROBS, None]


def test_a_logit_less_its_log_sum_is_a_log_prob():
    made = MadeRun({})
    logits = made.forward([[1, 2]], LOGITS_23)
    total = made.value("logsumexp", np.zeros((1, 2)), input=logits)
    tokens = made.value("given", np.array([[[2], [0]]]))
    logit = made.value("gather", np.zeros((1, 2, 1)), input=logits, index=tokens)
    difference = made.value("sub", np.zeros((1, 2)), input=logit, other=total)
    assert made.run.kinds.of(difference) is Kind.LOGPROBS
    assert made.run.kinds.pass_of(difference) is made.run.forwards[0]


def test_the_ids_of_chosen_log_probs_move_with_them():
    made = MadeRun({})
    logprobs = made.logprobs([[1, 2]], LOGITS_23, [[2, 0]])
    second = made.keyed("index", logprobs.thing.data[:, 1], made.value("slice"), 1, input=logprobs)
    assert chosen_ids(logprobs, made.run.kinds).tolist() == [[2, 0]]
    assert chosen_ids(second, made.run.kinds).tolist() == [0]


def test_differences_are_found_as_quotients_too():
    made = MadeRun()
    new, old = made.value("given"), made.value("given")
    difference = made.value("sub", input=new, other=old)
    upper, lower = made.value("exp", input=new), made.value("exp", input=old)
    quotient = made.value("div", input=upper, other=lower)
    made.value("div", input=new, other=old)
    assert list(differences_in(made.run.graph.values)) == [(difference, new, old), (quotient, new, old)]


def test_what_a_model_was_given_is_not_what_its_output_is_made_of():
    made = MadeRun({})
    ids = made.value("given", np.array([[1, 2]]))
    logits = made.forward(ids, LOGITS_23)
    double = made.value("mul", 2 * LOGITS_23, input=logits, other=2.0)
    assert [one.op for one in above(double)] == ["mul", "forward", "constant"]


def test_rows_are_followed_through_joins_turns_and_cuts():
    made = MadeRun()
    one, other = made.value("given", np.zeros((2, 3))), made.value("given", np.ones((1, 3)))
    parts = made.value("listing", first=one, second=other)
    joined = made.value("cat", np.zeros((3, 3)), tensors=parts, dim=0)
    last = made.keyed("index", np.zeros(3), 2, input=joined)
    numbered = {id(one): np.array([[0] * 3, [1] * 3]), id(other): np.array([[7] * 3])}
    assert replay(last, lambda value: numbered.get(id(value))).tolist() == [7, 7, 7]
    assert replay(made.value("matmul", np.zeros(3), input=last), lambda value: numbered.get(id(value))) is None


def test_picked_rows_are_numbered_as_in_the_tensor_they_came_from():
    made = MadeRun()
    rollouts = made.value("given", np.arange(12).reshape(4, 3))
    order = made.value("given", np.array([2, 0, 3]))
    rows = made.keyed("index", rollouts.thing.data[[2, 0, 3]], order, input=rollouts)
    found = picked_rows(made.value("cast", rows.thing.data, input=rows))
    assert (found.base, found.rows_B.tolist(), found.last, found.length) == (rollouts, [2, 0, 3], rows.order, 4)
    assert picked_rows(rollouts).rows_B.tolist() == [0, 1, 2, 3]
    assert picked_rows(rollouts).last == -1
    assert takes_rows(rows)
    assert not takes_rows(rollouts)


def test_columns_that_are_picked_are_no_rows():
    made = MadeRun()
    ids = made.value("given", np.arange(6).reshape(2, 3))
    columns = made.keyed("index", ids.thing.data[:, 1:], made.value("slice"), made.value("slice", start=1), input=ids)
    assert picked_rows(columns).rows_B.tolist() == [0, 1]
    assert picked_rows(columns).last == -1


def shifts(mask, ids, positions=None, *, can_cache=True, **how):
    made = MadeRun({})
    mask_value = made.value("given", np.array(mask))
    given = None if positions is None else made.value("given", np.array(positions))
    made.forward(ids, np.zeros((*np.shape(ids), 3)), attention_mask=mask_value, position_ids=given, **how)
    return position_shifts(made.run.forwards[0], can_cache=can_cache)


MASK = [[0, 0, 1, 1], [1, 1, 1, 1]]
IDS = [[9, 9, 1, 2], [3, 4, 5, 6]]


def test_padding_on_the_left_moves_positions_that_a_model_counts_by_itself():
    padded_B, shift_B = shifts(MASK, IDS)
    assert (padded_B.tolist(), shift_B.tolist()) == ([True, False], [2, 0])


def test_positions_that_leave_the_padding_out_are_right():
    padded_B, shift_B = shifts(MASK, IDS, [[0, 0, 0, 1], [0, 1, 2, 3]])
    assert (padded_B.tolist(), shift_B.tolist()) == ([True, False], [0, 0])


def test_with_a_cache_the_mask_is_longer_than_what_is_given():
    padded_B, shift_B = shifts(MASK, [[2], [6]], [[3], [3]], caches=True)
    assert (padded_B.tolist(), shift_B.tolist()) == ([True, False], [2, 0])
    assert shifts(MASK, [[2], [6]], [[3], [3]]) is None


def test_of_a_model_that_may_have_no_positions_nothing_is_said():
    assert shifts(MASK, IDS, can_cache=False) is None


def test_a_tensor_that_is_filled_number_by_number_is_no_deep_recursion():
    made = MadeRun({})
    filled = made.value("zeros", np.zeros(4))
    for _ in range(3000):
        filled = made.value("setitem", np.zeros(4), input=filled)
    assert made.run.kinds.of(filled) is None
