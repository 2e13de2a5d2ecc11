"""From which weights tokens were drawn, with which settings, and whose weights sampled them."""

import numpy as np
import pytest
from fixtures.made_run import Grpo, MadeRun, log_softmax

from assay.programs.run.draws import (
    behaviour,
    cut_settings,
    draw_weights,
    is_line,
    is_trained_on,
    refused_weights,
    sampling_of,
)
from assay.programs.run.watched import GenerateCall, Sampling, ScriptFailure, spot_of

LOGITS = np.array([[0.0, 1.0, 2.0, -1.0, 0.5], [1.0, 0.0, 0.3, 0.2, -2.0]])
SOFTMAX = np.exp(log_softmax(LOGITS))


def drawn(*steps):
    """A draw from the logits after these steps, each (operation, numbers, further arguments)."""
    made = MadeRun({})
    value = made.value("attribute", LOGITS, input=made.forward([[1], [2]], LOGITS))
    for op, numbers, arguments in steps:
        value = made.value(op, numbers, input=value, **arguments)
    token = made.value("multinomial", np.array([[1], [2]]), input=value)
    made.run.samplings.append(sampling_of(token, made.run.kinds))
    return made.run


def test_a_softmax_at_any_temperature_is_one():
    cold = np.exp(log_softmax(LOGITS / 0.7))
    run = drawn(("div", LOGITS / 0.7, {"other": 0.7}), ("softmax", cold, {"dim": -1}))
    (weights,) = draw_weights(run)
    assert (weights.is_softmax, weights.wrong, weights.lowest, weights.cut) == (True, "", None, ())
    assert run.samplings[0].temperature == pytest.approx(0.7)
    assert run.samplings[0].forward is run.forwards[0]


def test_tokens_that_were_taken_out_are_named():
    kept = np.where(LOGITS > 0.25, LOGITS, -np.inf)
    weights_BV = np.exp(log_softmax(kept))
    run = drawn(("masked_fill", kept, {"mask": True}), ("softmax", weights_BV, {}))
    assert draw_weights(run)[0].cut == (frozenset({0, 3}), frozenset({1, 3, 4}))
    assert run.samplings[0].cuts == ("masked_fill",)


WRONG = {
    "a softmax of probabilities": [("softmax", SOFTMAX, {}), ("softmax", np.exp(log_softmax(SOFTMAX)), {})],
    "sigmoid of the logits, without a softmax": [("sigmoid", 1 / (1 + np.exp(-LOGITS)), {})],
    "a softmax over the rows of the batch": [("softmax", np.exp(LOGITS) / np.exp(LOGITS).sum(0), {"dim": 0})],
}


@pytest.mark.parametrize("wrong", WRONG)
def test_weights_that_are_no_softmax_are_named(wrong):
    (weights,) = draw_weights(drawn(*WRONG[wrong]))
    assert (weights.wrong, weights.is_softmax) == (wrong, False)


def test_weights_below_zero_are_logits_or_log_probs():
    (raw,) = draw_weights(drawn())
    assert (raw.lowest, raw.are_logprobs) == (-2.0, False)
    (logprobs,) = draw_weights(drawn(("log_softmax", log_softmax(LOGITS), {})))
    assert logprobs.are_logprobs


def test_the_distribution_on_the_line_that_failed_is_looked_at():
    made = MadeRun({})
    logits = made.value("attribute", LOGITS, input=made.forward([[1], [2]], LOGITS))
    made_at = made.value("categorical", probs=logits, line=77)
    assert refused_weights(made.run) == []
    made.run.failure = ScriptFailure("ValueError", "invalid", made_at.place)
    assert [weights.lowest for weights in refused_weights(made.run)] == [-2.0]


def test_a_line_is_told_from_a_curve():
    one = np.array([0.0, 1.0, 2.0, 3.0, -np.inf])
    assert is_line(one, 2 * one - 5, 1e-3) is True
    assert is_line(one, -one, 1e-3) is False
    assert is_line(one, np.square(one), 1e-3) is False
    assert is_line(one[:3], one[:3], 1e-3) is None


def generation(made, **config):
    value = made.value("generate")
    return GenerateCall(value, 0, 0, config, None, None, None)


def test_settings_that_change_nothing_do_not_cut():
    made = MadeRun({"vocabulary": 100})
    call = generation(made, do_sample=True, top_k=100, top_p=1.0, min_p=None, repetition_penalty=1.2)
    assert cut_settings(made.run, call) == {"repetition_penalty": 1.2}
    assert cut_settings(made.run, generation(made, top_k=50, top_p=0.9)) == {"top_k": 50, "top_p": 0.9}


def test_only_what_updates_used_is_trained_on():
    made = MadeRun({})
    trained, other = made.value("generate"), made.value("generate")
    made.update(sampled_at=frozenset({spot_of(trained)}))
    assert is_trained_on(made.run, trained)
    assert not is_trained_on(made.run, other)


def sampled_by(sampler, *, old_version=3, **how):
    """An update whose old log-probs come from weights (0.0,) and whose tokens were sampled by others."""
    made = MadeRun({"is_trained": True}, {})
    loss = Grpo(made, old_how={"version": old_version})
    made.forward([[1]], np.zeros((1, 1, 5)), 1)  # a model that is not trained, with the weights (1.0,)
    made.run.history[8.0,] = (0, 1)
    made.update(loss.backward(), samplers=frozenset({sampler}), is_first=True, **how)
    return behaviour(made.run)


def test_old_log_probs_of_the_weights_that_sampled_agree():
    seen = sampled_by((0.0,))
    assert (seen.agrees, seen.other) == (True, None)


def test_older_weights_of_the_policy_lag_behind_it():
    seen = sampled_by((8.0,))
    assert (seen.agrees, seen.other.lag, seen.other.is_reference) == (False, 2, False)


def test_weights_of_a_model_that_is_not_trained_never_were_the_policy():
    assert sampled_by((1.0,)).other.lag is None


def test_weights_that_nobody_knows_prove_nothing():
    assert sampled_by((5.0,)).other is None
    assert sampled_by((8.0,), old_version=1).other is None


def test_a_draw_that_was_not_recorded_has_no_weights():
    made = MadeRun({})
    made.run.samplings.append(Sampling(made.value("multinomial"), None, None))
    assert draw_weights(made.run) == []
