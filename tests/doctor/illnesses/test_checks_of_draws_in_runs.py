"""What each illness says of the draws and of the weights of tokens in a watched run that was written by hand."""

from dataclasses import replace

import numpy as np
from doctor.illnesses.judged_run import finds, leaves_alone, passes, said
from fixtures.made_run import Grpo, MadeRun, log_softmax, place

from assay.programs.graph import Context
from assay.programs.run.watched import GenerateCall, Sampling, spot_of
from assay.record.batch import Batch
from assay.verdict import Confidence, State

TRAINED = {"is_trained": True}


def generation(made, stated, widths=(), state=None, **config):
    value = made.value("generate")
    call = GenerateCall(value, 0, 0, {"do_sample": True, **config}, None, None, None, (), stated, widths, state)
    made.run.generations.append(call)
    return value


def test_settings_that_the_script_did_not_ask_for():
    made = MadeRun({"vocabulary": 100})
    generation(made, {}, top_k=0)
    passes("SAMP03", made.run)
    value = generation(made, {"top_p": 0.9}, top_k=50, top_p=0.9)
    finds("SAMP03", made.run, value.place.line, words="generate() ran with top_k=50, which")
    leaves_alone("SAMP02", made.run)  # nothing was trained on it
    made.update(sampled_at=frozenset({spot_of(value)}))
    finds("SAMP02", made.run, value.place.line, words="generate() ran with top_p=0.9, and the log-probs in the loss")


def draws(made, *weights):
    """Draws on one line, each from the softmax of these logits."""
    for logits in weights:
        passed = made.value("attribute", logits, input=made.forward([[1]], logits))
        softmax = made.value("softmax", np.exp(log_softmax(logits)), input=passed)
        token = made.value("multinomial", np.array([[1]]), input=softmax, line=300)
        made.run.samplings.append(Sampling(token, made.run.forwards[-1], 1.0))
    return token


def test_tokens_that_had_no_chance():
    logits = np.array([[0.0, 1.0, 2.0, -1.0, 0.5, 0.1]])
    made = MadeRun(TRAINED)
    for low in (-0.5, 0.3):
        whole = made.value("attribute", logits, input=made.forward([[1]], logits))
        cut = np.where(logits < low, -np.inf, logits)
        kept = made.value("masked_fill", cut, input=whole)
        softmax = made.value("softmax", np.exp(log_softmax(cut)), input=kept)
        token = made.value("multinomial", np.array([[1]]), input=softmax, line=300)
        made.run.samplings.append(Sampling(token, made.run.forwards[-1], 1.0))
    passes("SAMP07", made.run)
    leaves_alone("SAMP02", made.run)
    made.update(sampled_at=frozenset({spot_of(token)}))
    finds("SAMP02", made.run, 300, words="up to 3 tokens of the vocabulary had no chance to be drawn")


def test_logits_as_weights():
    made = MadeRun(TRAINED)
    logits = np.array([[0.0, 1.0, -2.0, 0.5]])
    raw = made.value("attribute", logits, input=made.forward([[1]], logits))
    token = made.value("multinomial", np.array([[1]]), input=raw)
    made.run.samplings.append(Sampling(token, made.run.forwards[-1], 1.0))
    finds("SAMP07", made.run, token.place.line, raw.place.line, words="are logits: the lowest is -2")


def test_random_numbers_that_are_used_again():
    made = MadeRun(TRAINED)
    token = draws(made, np.zeros((1, 4)), np.ones((1, 4)), np.eye(4)[:1])
    made.update(sampled_at=frozenset({spot_of(token)}))
    for draw, state in zip(made.run.samplings, (1, 2, 3), strict=True):
        draw.state = state
    passes("SAMP05", made.run)
    made.run.samplings[2].state = 1
    finds("SAMP05", made.run, 300, 300, words="1 of 3 draws began with the same state")
    made.run.seeds += [place(8), place(8)]
    finds("SAMP05", made.run, 8, 300)


def test_generation_without_a_cache():
    made = MadeRun({"can_cache": True})
    generation(made, {}, widths=(5, 1, 1, 1))
    passes("PERF01", made.run)
    value = generation(made, {}, widths=(5, 6, 7, 8))
    finds("PERF01", made.run, value.place.line, words="pass 4 reads 8")


def test_a_loop_without_a_cache():
    made = MadeRun({"can_cache": True})
    for width in range(3, 7):
        passed = made.forward([[1] * width], np.zeros((1, 5)), context=Context())
        made.run.samplings.append(Sampling(passed, made.run.forwards[-1], 1.0))
    finds("PERF01", made.run, passed.place.line, words="pass 4 reads 6")


def sampled_by(sampler, models=frozenset()):
    made = MadeRun(TRAINED, {})
    loss = Grpo(made, old_how={"version": 3})
    made.forward([[1]], np.zeros((1, 1, 5)), 1)
    made.run.history[8.0,] = (0, 1)
    made.update(loss.backward(), samplers=frozenset({sampler}), is_first=True, sampler_models=models)
    return made.run, [made.run.kinds.forward_of(loss.old).value.place.line, loss.product.place.line]


def test_tokens_of_other_weights():
    passes("RAT05", sampled_by((0.0,))[0])
    run, lines = sampled_by((8.0,))
    finds("RAT05", run, *lines, words="but weights 2 updates older sampled the tokens")
    finds("SYNC01", run, 900, words="by weights 2 updates older than the policy")
    run, lines = sampled_by((1.0,))
    finds("RAT05", run, *lines, words="but other weights sampled the tokens")
    leaves_alone("SYNC01", run)


# -- what each token weighs


def weighed(weight_of, *, parts=((3, 2), (1, 2)), sign=1.0, updates=2, width=3):
    """Updates whose tokens count weight_of(tokens of the part, tokens of the row) each."""
    made = MadeRun(TRAINED)
    lengths = [length for part in parts for length in part]
    mask_BT = np.arange(width)[None] < np.array(lengths)[:, None]
    weights_B = np.array([weight_of(sum(part), length) for part in parts for length in part])
    gains_B = np.where(np.arange(len(lengths)) % 2, -1.0, 1.0)
    for number in range(updates):
        loss = Grpo(made)
        step = made.update(loss.backward(), parts=tuple((len(part), width) for part in parts))
        gradients_BT = -sign * mask_BT * weights_B[:, None] * gains_B[:, None]
        arrays = {"mask": mask_BT, "gradients": gradients_BT, "advantages": gains_B, "new_logprobs": mask_BT * -1.0}
        source = f"optimizer step {number + 1} ({step.place})"
        made.run.batches.append(Batch.of({**arrays, "update": 0, "step": number}, source=source))
    first = made.run.updates[0]
    return made.run, [first.backwards[0].loss.place.line, first.place.line]


def test_the_whole_batch_is_right_however_it_is_split():
    run, _ = weighed(lambda part, row: 1 / 8)
    for code in ("LOSS01", "LOSS02", "LOSS03"):
        passes(code, run)
    leaves_alone("MASK04", run)


def test_micro_batches_averaged_by_their_own_tokens():
    run, lines = weighed(lambda part, row: 1 / (2 * part))
    finds("LOSS03", run, *lines, words="averaged over its own tokens (5, 3)")
    leaves_alone("LOSS02", run)
    run, lines = weighed(lambda part, row: 1 / part, updates=1)
    finds("LOSS03", run, *lines, words="averaged over its own tokens", sure=Confidence.LIKELY)
    finds("LOSS02", run, *lines, words="the gradient is 2 times that", sure=Confidence.LIKELY)


def test_micro_batches_added_or_divided_twice():
    run, lines = weighed(lambda part, row: 2 / 8)
    finds("LOSS02", run, *lines, words="added and not divided by 2: the step is that of a loss 2 times as large")
    run, lines = weighed(lambda part, row: 1 / 16)
    finds("LOSS02", run, *lines, words="divided twice by 2: the step is that of a loss 2 times too small")


def test_a_loss_with_a_flipped_sign():
    run, _ = weighed(lambda part, row: 1 / 8, sign=-1.0)
    state, sure, lines, message = said("LOSS01", run)
    assert (state, sure) == (State.FINDING, Confidence.PROVEN), message
    assert lines[1] == run.updates[0].backwards[0].loss.place.line
    assert "the sign of the loss is flipped" in message


def test_padding_that_counts():
    leaves_alone("MASK04", weighed(lambda part, row: 1 / 12, parts=((3, 1, 2, 2),))[0])  # it may be a constant
    run, _ = weighed(lambda part, row: 1 / 12, parts=((3, 1, 2, 2),))
    wider, _ = weighed(lambda part, row: 1 / 20, parts=((3, 1, 2, 2),), width=5)
    for number, (batch, step) in enumerate(zip(wider.batches, wider.updates, strict=True), len(run.updates)):
        source = f"optimizer step {number + 1} ({step.place})"
        run.batches.append(replace(batch, source=source))
        step.number = number
        run.updates.append(step)
    product = run.updates[1].pieces[0].product.place.line
    finds("MASK04", run, product, words="(columns so far: 3, 5)")


def test_rewards_that_are_all_the_same():
    run = MadeRun().run
    run.batches += [Batch.of({"rewards": np.full(4, 0.5), "step": number}) for number in range(2)]
    leaves_alone("REW01", run)
    run.batches.append(Batch.of({"rewards": np.full(4, 0.5), "step": 2}))
    finds("REW01", run, words="all 12 rewards of 3 rollout batches are 0.5", sure=Confidence.LIKELY)
    run.batches.append(Batch.of({"rewards": np.full(4, 0.6), "step": 3}))
    leaves_alone("REW01", run)
