"""Which draw of model.generate() each row of a trainer is, by its prompt and its ids."""

import torch

from assay.adapters.trl import NotingDraws
from assay.adapters.trl_batch import TRLGeneration, drawn_rows

A, B = (1, 2), (3, 4, 5)


def test_rows_as_they_were_drawn_stay_as_they_are_in_any_order():
    draws = [(A, (7, 9)), (A, (8, 9)), (B, (7, 9))]
    assert drawn_rows(draws[::-1], draws) == draws[::-1]
    cut_behind_a_stop = [(A, (7,)), (A, (8, 9)), (B, (7, 9))]
    assert drawn_rows(cut_behind_a_stop, draws) == cut_behind_a_stop
    both = [(A, (7,)), (A, (7, 9))]
    assert drawn_rows(both, both[::-1]) == both
    the_best_of_several = [(A, (8, 9)), (B, (7, 9))]
    assert drawn_rows(the_best_of_several, draws) == the_best_of_several


def test_an_answer_may_be_drawn_in_parts_with_words_of_others_between_them():
    draws = [(A, (7, 9)), (A, (8,)), ((*A, 8, 50, 51), (6, 9))]
    rows = [(A, (7, 9)), (A, (8, 50, 51, 6, 9))]
    assert drawn_rows(rows, draws) == rows


def test_a_sampler_that_was_given_a_cut_prompt_is_known_by_it():
    assert drawn_rows([(B, (7, 9))], [(B[1:], (7, 9))]) == [(B[1:], (7, 9))]


def test_answers_that_stand_beside_another_prompt_get_the_one_that_they_were_drawn_behind():
    draws = [(A, (7, 9)), (B, (8, 6, 9))]
    assert drawn_rows([(A, (8, 6, 9)), (B, (7, 9))], draws) == draws[::-1]


def test_ids_that_were_changed_are_compared_with_a_draw_of_the_same_prompt():
    draws = [(A, (7, 9)), (A, (6, 9)), (B, (8, 6, 9))]
    assert drawn_rows([(A, (7, 9)), (A, (6, 9)), (B, (8, 5, 9))], draws) == draws


def test_of_several_draws_of_a_prompt_it_is_the_one_that_is_like_the_row_the_longest():
    others = [(B, (1, 9)), (B, (2, 9)), (B, (3, 9))]
    draws = [*others, (A, (8, 8, 8, 3)), (A, (5, 6, 7, 3))]
    rows = [*others, (A, (5, 6, 7, 9)), (A, (8, 8, 8, 9))]
    assert drawn_rows(rows, draws) == [*others, (A, (5, 6, 7, 3)), (A, (8, 8, 8, 3))]


def test_rows_of_a_sampler_of_their_own_are_not_what_generate_drew_beside_them():
    rows = [(A, (5, 6, 7, 9)), (A, (8, 8, 8, 9)), (B, (7, 9)), (B, (8, 9))]
    assert drawn_rows(rows, [(A, (8, 8, 8, 3)), (A, (5, 6, 7, 3)), (B, (7, 9)), (B, (6, 9))]) == rows


def test_answers_that_are_cut_behind_a_stop_and_closed_are_their_draws():
    draws = [(A, (7, 9)), (A, (6, 9)), (B, (8, 5, 6, 7, 9)), (B, (7, 7, 9))]
    rows = [(A, (7, 9)), (A, (6, 9)), (B, (8, 5, 9)), (B, (7, 7, 9))]
    assert drawn_rows(rows, draws) == rows


def test_what_nobody_drew_stays_as_it_is():
    rows = [((6,), (7, 9))]
    assert drawn_rows(rows, [(A, (8, 9))]) == rows


class Model(torch.nn.Module):
    def generate(self, input_ids, attention_mask=None, do_sample=True):
        return torch.cat([input_ids, torch.tensor([[7, 9, 0], [8, 6, 9]])], dim=1)


IDS, MASK = torch.tensor([[0, 1, 2], [3, 4, 5]]), torch.tensor([[0, 1, 1], [1, 1, 1]])


def test_calls_of_generate_are_noted_up_to_the_end_of_each_row_and_the_model_is_left_as_it_was():
    model, coming = Model(), TRLGeneration(version=0)
    noting = NotingDraws(model, lambda *call: coming.add_draws(*call, [9]))
    answer = model.generate(input_ids=IDS, attention_mask=MASK)
    model.generate(input_ids=IDS, attention_mask=MASK, do_sample=False)
    noting.close()
    assert answer.shape == (2, 6)
    assert coming.draws == [(A, (7, 9)), (B, (8, 6, 9))]  # the likeliest answers are no draws
    assert "generate" not in vars(model)
    coming.prompts, coming.sampled = [list(B), list(A)], [[7, 9], [8, 6, 9]]
    coming.align()
    assert (coming.prompts, coming.sampled) == ([list(A), list(B)], [[7, 9], [8, 6, 9]])


def test_a_generate_that_somebody_else_has_put_into_the_model_stays_there():
    model = Model()
    noting = NotingDraws(model, lambda *call: None)
    model.generate = theirs = lambda input_ids: input_ids
    noting.close()
    assert model.generate is theirs
    noting = NotingDraws(model, lambda *call: None)
    del model.generate
    noting.close()
    assert "generate" not in vars(model)
    model.generate = theirs
    NotingDraws(model, lambda *call: None).close()
    assert model.generate is theirs
