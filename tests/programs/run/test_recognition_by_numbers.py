"""What is recognised by numbers and by the graph, however a script writes it."""

import numpy as np
import torch
from fixtures.made_run import MadeRun, log_softmax, place
from torch import nn

from assay.programs.facts.kinds import Kind
from assay.programs.run.episodes import lengths_of
from assay.programs.run.kinds import chosen_ids
from assay.programs.run.observe.ledger import GradientLedger
from assay.programs.run.policies import Layout
from assay.programs.run.roles import LossPiece
from assay.programs.run.watched import Sampling, WatchedRun

LOGITS_123 = np.array([[[0.0, 1.0, 2.0], [1.0, 0.0, 0.5]]])
ONE_HOT_123 = np.array([[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]])


def by_hand(made):
    """logits - log(sum(exp(logits))), by operations that nobody lists."""
    logits = made.forward([[1, 2]], LOGITS_123)
    powers = made.value("exp", np.exp(LOGITS_123), input=logits)
    total = made.value("log", np.log(np.exp(LOGITS_123).sum(-1, keepdims=True)), input=made.value("sum", input=powers))
    return made.value("sub", log_softmax(LOGITS_123), input=logits, other=total)


def test_a_log_softmax_made_by_hand_is_known_by_its_sums():
    made = MadeRun({})
    assert made.run.kinds.of(by_hand(made)) is Kind.LOG_SOFTMAX
    logits = made.forward([[1, 2]], LOGITS_123)
    assert made.run.kinds.of(made.value("sub", LOGITS_123 - 1.0, input=logits, other=1.0)) is Kind.LOGITS


def test_a_one_hot_row_picks_a_log_prob_in_a_product_and_in_einsum():
    made = MadeRun({})
    everything = by_hand(made)
    one_hot = made.value("one_hot", ONE_HOT_123)
    chosen = (log_softmax(LOGITS_123) * ONE_HOT_123).sum(-1)
    product = made.value("mul", log_softmax(LOGITS_123) * ONE_HOT_123, input=one_hot, other=everything)
    for picked in (
        made.value("sum", chosen, input=product, dim=-1),
        made.value("einsum", chosen, equation="btv,btv->bt", first=everything, second=one_hot),
    ):
        assert made.run.kinds.of(picked) is Kind.LOGPROBS
        assert chosen_ids(picked, made.run.kinds).tolist() == [[2, 0]]


def test_a_sum_over_several_tokens_is_not_a_pick():
    made = MadeRun({})
    some = made.value("given", np.array([[[1.0, 0.0, 1.0], [1.0, 0.0, 0.0]]]))
    product = made.value("mul", log_softmax(LOGITS_123) * some.thing.data, input=by_hand(made), other=some)
    assert made.run.kinds.of(made.value("sum", product.thing.data.sum(-1), input=product, dim=-1)) is None


def test_an_action_that_is_a_python_number_picks_its_log_prob():
    made = MadeRun({})
    everything = by_hand(made)
    picked = made.keyed("index", log_softmax(LOGITS_123)[0, 1, 2], 0, 1, 2, input=everything)
    assert made.run.kinds.of(picked) is Kind.LOGPROBS
    assert int(chosen_ids(picked, made.run.kinds)) == 2


def alive_run(*, stored_before):
    """Two episodes of three steps; the second ends with its second action. `alive` is stored before it or after it."""
    made = MadeRun({})
    done_BT = np.array([[False, False, False], [False, True, False]])
    alive, columns, draws = made.value("ones", np.ones(2, dtype=bool)), [], []
    for step in range(3):
        before = alive
        draw = made.value("multinomial", np.array([0, 1]))
        done = made.value("eq", done_BT[:, step], input=draw, other=1)
        alive = made.value("logical_and", before.thing.data & ~done_BT[:, step], input=before, other=done)
        columns.append(before if stored_before else alive)
        draws.append(Sampling(draw, None, 1.0))
    listing = made.value("listing", first=columns[0], second=columns[1], third=columns[2])
    mask = made.value("stack", np.stack([column.thing.data for column in columns], 1), tensors=listing, dim=1)
    piece = LossPiece(made.value("given", np.zeros((2, 3))), np.zeros((2, 3), dtype=int), None, mask=mask)
    return piece, draws


def test_the_action_that_ends_an_episode_belongs_to_it_whether_the_mask_has_it_or_not():
    for stored_before, masked in ((True, [3, 2]), (False, [3, 1])):
        piece, draws = alive_run(stored_before=stored_before)
        assert piece.mask.thing.data.sum(axis=1).tolist() == masked
        assert lengths_of(piece, Layout(2, 3), draws).tolist() == [3, 2]


def test_a_layer_that_no_module_has_is_missed_by_the_optimizer_once_it_stood_still():
    hidden, head = nn.Linear(2, 2), nn.Linear(2, 1)
    ledger = GradientLedger(WatchedRun("script.py"))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for step in range(6):
        loss = head(torch.tanh(hidden(torch.ones(1, 2)))).sum()
        ledger.backward(place(1), loss)
        loss.backward()
        ledger.stepping(optimizer, list(head.parameters()), [head], place(2))
        left_out = ledger.run.gradients.left_out
        assert (left_out is None) == (step < 3)
        optimizer.step()
        ledger.stepped(optimizer, place(2), [])
    assert (left_out.missing, left_out.trainable) == (2, 4)


def test_a_layer_that_the_script_moves_by_itself_is_not_missed():
    hidden, head = nn.Linear(2, 2), nn.Linear(2, 1)
    ledger = GradientLedger(WatchedRun("script.py"))
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    for _ in range(3):
        loss = head(torch.tanh(hidden(torch.ones(1, 2)))).sum()
        ledger.backward(place(1), loss)
        loss.backward()
        for parameter in hidden.parameters():
            parameter.data -= 0.1 * parameter.grad
        ledger.stepping(optimizer, list(head.parameters()), [head], place(2))
        assert ledger.run.gradients.left_out is None
        optimizer.step()
        ledger.stepped(optimizer, place(2), [])
