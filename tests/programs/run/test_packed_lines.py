"""Rows that a pass reads end to end in a few lines, and weights that are known by their place in memory."""

import copy

import numpy as np
import torch
from fixtures.made_run import MadeRun
from torch import nn
from torch.func import functional_call

from assay.programs.run.observe.models import Models
from assay.programs.run.rollouts import SampledRows, packed_rows
from assay.programs.run.watched import WatchedRun


def sampled(prompts, completions):
    width = max(map(len, completions))
    rows = np.array([[*row, *[0] * (width - len(row))] for row in completions])
    value = MadeRun({"is_trained": True}).value("given", rows)
    prompts = np.array(prompts)
    lengths = np.array([len(row) for row in completions])
    return SampledRows(0, 0, prompts, np.ones(prompts.shape, dtype=bool), rows, lengths, None, value, moment=0)


def test_each_sampled_row_is_found_in_its_line():
    rollout = sampled([[1, 2], [3, 4], [5, 6]], [[7, 9], [8], [7, 7, 9]])
    lines = np.array([[3, 4, 8, 1, 2, 7, 9, 0], [5, 6, 7, 7, 9, 0, 0, 0]])
    found = packed_rows(lines, [rollout])
    assert [(line, row.start, row.completion) for line, row in found] == [(0, 3, 5), (0, 0, 2), (1, 0, 2)]


def test_equal_rows_take_one_place_each_and_a_row_inside_of_another_does_not_take_its_place():
    rollout = sampled([[1, 2], [1, 2], [1, 2]], [[7, 9], [7, 9], [7]])
    found = packed_rows(np.array([[1, 2, 7, 1, 2, 7, 9], [1, 2, 7, 9, 0, 0, 0]]), [rollout])
    assert [(line, row.start) for line, row in found] == [(0, 3), (1, 0), (0, 0)]


def test_rows_that_are_not_all_there_are_not_packed():
    rollout = sampled([[1, 2], [3, 4]], [[7, 9], [8, 9]])
    assert packed_rows(np.array([[1, 2, 7, 9, 3, 4, 5, 9]]), [rollout]) is None
    one_row_per_line = np.array([[1, 2, 7, 9], [3, 4, 8, 9]])
    assert packed_rows(one_row_per_line, [rollout]) is None


class Told(nn.Module):
    """Tells which model it is while functional_call() has put other weights into it."""

    def __init__(self, models):
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.told = lambda module: models.of(module).number, lambda module: models.sums(module)

    def forward(self, _):
        return [tell(self) for tell in self.told]


def test_a_state_without_copies_is_the_model_itself_and_a_copy_is_another():
    models = Models(WatchedRun("script.py"))
    model = Told(models)
    live, frozen = model.state_dict(), copy.deepcopy(model.state_dict())
    own, weights = model(0)
    with torch.no_grad():
        model.layer.weight.add_(1.0)
    assert functional_call(model, live, (0,)) == model(0)
    other, first_weights = functional_call(model, frozen, (0,))
    assert other != own
    assert first_weights == weights
    assert models.sharing(live["layer.weight"]) is None
    models.own(model)
    assert models.sharing(live["layer.weight"]) is model.layer.weight
    assert models.sharing(frozen["layer.weight"]) is None
