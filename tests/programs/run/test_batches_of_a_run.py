"""An update of a script, written by hand, as the fields of a Batch."""

import numpy as np
from fixtures.made_run import Grpo, MadeRun

from assay.programs.run.batches import batch_of, fields_of


def nobody(model, rows, temperature):
    return None


def test_the_pieces_of_an_update_lie_under_each_other():
    made = MadeRun({"is_trained": True})
    first, second = Grpo(made), Grpo(made)
    update = made.update(first.backward(), second.backward(), clip_norm=1.0)
    fields = fields_of(made.run, update, nobody)
    assert update.parts == ((2, 2), (2, 2))
    assert fields["tokens"].tolist() == [[2, 3], [3, 1]] * 2
    assert fields["mask"].tolist() == [[True, True], [True, False]] * 2
    assert np.array_equal(fields["new_logprobs"], np.concatenate([first.new.thing.data, second.new.thing.data]))
    assert fields["advantages"].tolist() == [1.0, -1.0, 1.0, -1.0]
    assert fields["input_ids"].tolist() == [[1, 2, 3], [2, 3, 1]] * 2
    assert (fields["microbatches"], fields["clip_low"], fields["clip_norm"]) == (2, 0.2, 1.0)
    batch = batch_of(fields, update, [])
    assert batch.source == update.source


def test_a_loss_without_log_probs_is_not_a_batch():
    made = MadeRun({"is_trained": True})
    loss = made.value("sum", 1.0, grad=True, input=made.value("given", np.ones(2), grad=True))
    assert fields_of(made.run, made.update(made.backward(loss)), nobody) is None
