"""What is asked again beside a run: nothing of the run changes by it."""

import math
import random
import time

import torch

from assay.examine.again import ReferenceRow, ask_in_child, score_backwards


def test_a_function_that_counts_its_calls_has_not_been_called():
    calls = []

    def score(rows):
        calls.append(rows)
        return [float(row) for row in rows]

    before = random.getstate()
    assert score_backwards(score, 5) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert calls == []
    assert random.getstate() == before


def test_rewards_that_stay_with_their_place_are_seen():
    answers = [0.0, 1.0, 0.0, 0.0]  # of places, whatever row stands there
    assert score_backwards(lambda rows: answers[: len(rows)], 4) == [0.0, 0.0, 1.0, 0.0]


def test_a_random_reward_is_left_out_and_a_steady_one_is_not():
    again = score_backwards(lambda rows: [random.random() if row == 1 else 0.5 for row in rows], 3)
    assert (again[0], again[2]) == (0.5, 0.5)
    assert math.isnan(again[1])


def test_a_reward_that_raises_hangs_or_says_none_costs_nothing():
    def broken(rows):
        raise ValueError("no")

    assert score_backwards(broken, 3) == []
    began = time.perf_counter()
    assert ask_in_child(lambda: time.sleep(60) or [], seconds=0.2) is None
    assert time.perf_counter() - began < 30
    (number,) = ask_in_child(lambda: [None])
    assert math.isnan(number)


def test_a_reference_that_moves_is_measured_on_the_row_of_the_first_look():
    row, weight = ReferenceRow(), torch.tensor(1.0)

    def ask(prompt, tokens):
        return -weight * torch.tensor([float(prompt[0] + token) for token in tokens])

    assert row.drift(ask, [1], [2, 3]) is None
    assert row.drift(ask, [9], [9]) == 0.0  # another row is given, the kept one is asked about
    weight += 0.5
    assert row.drift(ask, [9], [9]) == 2.0  # 0.5 * (1 + 3)
