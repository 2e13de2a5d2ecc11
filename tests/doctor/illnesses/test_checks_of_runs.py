"""What each illness says of a watched run that was written by hand: with the fault, and without it."""

import numpy as np
import pytest
from doctor.illnesses.judged_run import finds, leaves_alone, passes, said
from fixtures.made_run import Grpo, MadeRun, place

from assay.doctor.catalogue import catalogue
from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.programs.graph import Context
from assay.programs.run.gradients import Bypass, GradientEvent, KeptGraphs, LeftOut, OptimizerStep, SharedStep
from assay.programs.run.watched import Sampling, ScriptFailure
from assay.record.batch import Batch
from assay.verdict import State

TRAINED = {"is_trained": True}


def update(**how):
    """A run of two updates that are right unless `how` says otherwise; and the parts of the last loss."""
    made = MadeRun(TRAINED, {})
    for _ in range(2):
        loss = Grpo(made, **how)
        made.update(loss.backward())
    return made.run, loss


def test_an_empty_run_is_judged_by_no_check():
    illnesses = [one for one in catalogue() if one.run is not None]
    assert len(illnesses) >= 28  # a check that is not found by its name would be missing here
    words = diagnose(Evidence(run=MadeRun().run), illnesses).words
    assert {word.verdict.state for word in words} == {State.NOT_APPLICABLE}


@pytest.mark.parametrize("code", ["ADV08", "CLIP01", "NUM01", "NUM02", "RAT03", "RAT08"])
def test_a_sound_loss_is_found_healthy(code):
    passes(code, update()[0])


@pytest.mark.parametrize("code", ["ALGN06", "ALGN10", "KL02", "KL05", "LOSS04", "OPT02", "PERF02", "RAT05", "SYNC01"])
def test_what_a_sound_loss_does_not_show_is_left_alone(code):
    leaves_alone(code, update()[0])


# -- the values of a loss


def test_a_column_of_advantages_against_a_row_of_losses():
    run, loss = update()
    row, column = np.zeros(2), np.zeros((2, 1))
    made, sums = loss.made, loss.made.value("sum", row, grad=True, input=loss.new)
    crossed = made.value("mul", row * column, grad=True, input=sums, other=loss.advantages)
    made.backward(made.value("mean", np.array(0.0), grad=True, input=crossed))
    finds("ADV08", run, crossed.place.line, loss.advantages.place.line, words="shapes [2] and [2, 1] is [2, 2]")


def test_a_softmax_in_16_bits():
    run, loss = update()
    softmax = loss.new.input.input
    softmax.thing.dtype = "bfloat16"
    finds("NUM01", run, softmax.place.line, words="computed in bfloat16")


def test_new_under_autocast_and_old_not():
    half = {"context": Context(autocast=True)}
    run, loss = update(new_how=half)
    new, old = (run.kinds.pass_of(one).value for one in (loss.new, loss.old))
    passes("NUM02", run)  # the passes returned the same precision
    for forward in run.forwards[1::2]:
        forward.value.thing.dtype = "bfloat16"
    first = [run.forwards[0].value.place.line, run.forwards[1].value.place.line]
    finds("NUM02", run, *first, old.place.line, words="only that of new ran under autocast")
    assert new.place.line not in first
    sampled = [Sampling(one.value, one, 1.0) for one in run.forwards[::2]]
    run.samplings += sampled  # old is what the sampler itself computed
    leaves_alone("NUM02", run)


def test_old_with_its_graph():
    run, loss = update(old_grad=True)
    first = run.backwards[0].pieces[0].new.users[0]
    both = [first.place.line, run.backwards[0].roles.flow.values[0].place.line]
    state, _, lines, message = said("RAT03", run)
    assert state is State.FINDING
    assert lines[0] == both[0]
    assert "old is not a constant" in message
    assert loss.difference.place.line in lines


def test_the_log_ratio_in_place_of_the_ratio():
    def ratio(loss):
        difference = loss.new.thing.data - loss.old.thing.data
        return loss.made.value("sub", difference, grad=True, line=400, input=loss.new, other=loss.old)

    run, _ = update(ratio=ratio)
    finds("RAT08", run, 400, words="is new - old, the logarithm of the ratio, and not exp(new - old)")


def log_ratio_of_one_update(loss):
    made, zeros = loss.made, np.zeros_like(loss.new.thing.data)
    copy = made.value("detach", loss.new.thing.data, input=loss.new)
    return made.value("sub", zeros, grad=True, line=400, input=loss.new, other=copy)


def test_a_logarithm_of_the_ratio_that_is_0_has_the_gradient_of_the_ratio():
    run, _ = update(ratio=log_ratio_of_one_update, clip=None)
    leaves_alone("RAT08", run)


def test_a_logarithm_of_the_ratio_that_is_clamped_around_1_is_not_a_ratio():
    run, _ = update(ratio=log_ratio_of_one_update)
    finds("RAT08", run, 400, words="is new - old, the logarithm of the ratio")


def test_a_clip_that_clips_nothing():
    run, loss = update(clip=(0.0, 1000.0))
    state, _, lines, message = said("CLIP01", run)
    assert (state, loss.clamp.place.line in lines) == (State.FINDING, True)
    assert "lets the ratio go from 0 to 1000" in message


def test_a_clip_whose_result_is_not_used():
    run, loss = update(clip=None)
    leaves_alone("CLIP01", run)
    clamp = loss.made.value("clamp", loss.ratio.thing.data, input=loss.ratio, min=0.8, max=1.2)
    finds("CLIP01", run, clamp.place.line, loss.ratio.place.line, words="the loss does not depend on it")


def test_a_minimum_of_the_unclipped_ratio_twice():
    made = MadeRun(TRAINED)
    loss = Grpo(made, clip=None)
    again = made.value("mul", loss.product.thing.data, grad=True, input=loss.ratio, other=loss.advantages)
    least = made.value("minimum", again.thing.data, grad=True, input=loss.product, other=again)
    made.backward(made.value("sum", np.array(0.0), grad=True, input=least))
    finds("CLIP01", made.run, least.place.line, loss.ratio.place.line, words="both sides of")


# -- the reference


def with_kl(ref_model=1, *, detached=False, ref_how=None, is_switched=False):
    """A loss with 0.1 * (new - ref) added; (run, the difference)."""
    made = MadeRun(TRAINED, {})
    loss = Grpo(made)
    logits = loss.old_logits if ref_model == 0 and not is_switched else np.zeros((2, 2, 5))
    ref = made.logprobs(Grpo.IDS, logits, Grpo.TOKENS, ref_model, **(ref_how or {}))
    new = made.value("detach", loss.new.thing.data, input=loss.new) if detached else loss.new
    gap = made.value("sub", new.thing.data - ref.thing.data, grad=not detached, input=new, other=ref)
    mean = made.value("mean", np.array(0.5), grad=not detached, input=gap)
    total = made.value("add", np.array(0.0), grad=True, input=loss.loss, other=mean)
    made.backward(total)
    return made.run, gap, total


def test_a_kl_that_carries_a_gradient():
    passes("KL02", with_kl()[0])


def test_a_kl_of_detached_log_probs():
    run, gap, total = with_kl(detached=True)
    finds("KL02", run, gap.place.line, total.place.line, words="carries no gradient: the KL restrains nothing")


def test_a_reference_that_is_the_policy():
    run, gap, _ = with_kl(ref_model=0)
    theirs = run.kinds.pass_of(gap.arguments["other"]).value
    finds("KL05", run, theirs.place.line, gap.place.line, words="is the policy itself")
    leaves_alone("KL05", with_kl(ref_model=0, ref_how={"adapter_off": True})[0])
    leaves_alone("KL05", with_kl(ref_model=0, is_switched=True)[0])  # a switch of the script's own


def test_a_logged_kl_that_is_zero_everywhere():
    made = MadeRun(TRAINED)
    one, other = (made.logprobs(Grpo.IDS, np.zeros((2, 2, 5)), Grpo.TOKENS) for _ in range(2))
    gap = made.value("sub", np.zeros((2, 2)), input=one, other=other)
    finds("KL05", made.run, gap.place.line, made.run.forwards[1].value.place.line, words="0 everywhere")


# -- rows, positions, memory


def test_advantages_in_another_order_than_the_rows():
    def picked_in(order):
        made = MadeRun(TRAINED)
        rollouts = made.value("given", np.array(Grpo.IDS))
        gains = made.value("given", np.array(Grpo.ADVANTAGES))
        rows = made.value("given", np.array([1, 0]))
        ids = made.keyed("index", rollouts.thing.data[[1, 0]], rows, input=rollouts)
        new = made.logprobs(ids, np.random.default_rng(0).normal(size=(2, 2, 5)), Grpo.TOKENS, grad=True)
        theirs = made.keyed("index", gains.thing.data[order], made.value("given", np.array(order)), input=gains)
        product = made.value("mul", new.thing.data, grad=True, input=new, other=theirs)
        made.backward(made.value("sum", np.array(0.0), grad=True, input=product))
        return made.run, theirs

    run, theirs = picked_in([0, 1])
    forward = run.forwards[0].value
    words = "row 0 of the loss scores row 1 of the rollouts, but its advantages are those of row 0"
    finds("ALGN10", run, theirs.place.line, forward.place.line, words=words)
    passes("ALGN10", picked_in([1, 0])[0])


def test_positions_that_count_the_padding():
    made = MadeRun({"is_trained": True, "can_cache": True})
    mask = made.value("given", np.array([[0, 1, 1], [1, 1, 1]]))
    right = made.value("given", np.array([[0, 0, 1], [0, 1, 2]]))
    wrong = made.forward(Grpo.IDS, np.zeros((2, 3, 5)), attention_mask=mask)
    sound = made.forward(Grpo.IDS, np.zeros((2, 3, 5)), attention_mask=mask, position_ids=right)
    leaves_alone("ALGN04", made.run)  # no log-probs differ
    arrays = {"mask": np.ones((2, 1), bool), "new_logprobs": np.zeros((2, 1)), "old_logprobs": np.full((2, 1), -0.1)}
    made.run.batches.append(Batch.of({**arrays, "update": 0}))
    finds("ALGN04", made.run, wrong.place.line, sound.place.line, words="row 0 is read 1 position too far")


def test_a_write_into_an_expanded_tensor():
    made = MadeRun()
    wide = made.value("expand", np.ones((2, 3)), overlaps=True)
    write = made.keyed("setitem", np.zeros((2, 3)), 0, input=wide)
    finds("ALGN06", made.run, write.place.line, wide.place.line, words="one place in memory (expand)")


def test_a_write_that_hides_the_prompt_of_a_later_pass():
    made = MadeRun(TRAINED)
    sampler = made.forward([[1, 2, 3]], np.zeros((1, 3, 5)))
    made.run.samplings.append(Sampling(sampler, made.run.forwards[0], 1.0))
    mask = made.value("given", np.array([[1, 1, 1]]))
    write = made.keyed("setitem", np.array([[0, 0, 1]]), 0, input=mask)
    scored = made.forward([[1, 2, 3]], np.zeros((1, 3, 5)), attention_mask=write)
    finds("ALGN06", made.run, write.place.line, scored.place.line, words="2 tokens of prompts are hidden")


# -- gradients


def step(line, *moves, is_first=False, was_reached=True, began_clean=True, **how):
    moved = tuple(GradientEvent(kind, place(at)) for kind, at in moves)
    return OptimizerStep(place(line), is_first, moved, was_reached=was_reached, began_clean=began_clean, **how)


FINE = step(9, ("zero_grad", 1), ("backward", 2), ("clip_grad_norm", 3))
LATE = step(9, ("clip_grad_norm", 3), ("zero_grad", 1), ("backward", 2))
LOST = step(9, ("backward", 2), ("zero_grad", 1), ("backward", 2), lost=(place(2),))
ORDERS = {
    "cleared between backward and step": ([step(9, ("backward", 2), emptied_at=place(4))], [4, 2, 9]),
    "nothing cleared them": ([step(9, ("backward", 2), began_clean=False)], [9, 2]),
    "of 1 of 2 backward passes are cleared before the step": ([LOST, LOST], [1, 9]),
    "clipped after the step that used them": ([LATE, LATE], [3, 9]),
}


@pytest.mark.parametrize("words", ORDERS)
def test_steps_in_a_wrong_order(words):
    steps, lines = ORDERS[words]
    run = MadeRun().run
    run.gradients.steps += [FINE, *steps]
    finds("LOSS04", run, *lines, words=words)


def test_what_happens_once_is_no_wrong_order_yet():
    run = MadeRun().run
    run.gradients.steps += [step(9, ("backward", 2), is_first=True, began_clean=False), FINE, LATE, LOST]
    passes("LOSS04", run)


def test_a_scheduler_before_the_first_step():
    run = MadeRun().run
    run.gradients.scheduler_before_steps = place(7)
    leaves_alone("LOSS04", run)
    run.gradients.steps.append(FINE)
    finds("LOSS04", run, 7, words="the first learning rate is never used")


def test_tensors_that_two_optimizers_step():
    run = MadeRun().run
    run.gradients.steps.append(FINE)
    passes("OPT04", run)
    run.gradients.shared.append(SharedStep(4, place(9), place(8)))
    finds("OPT04", run, 9, 8, words="4 tensors are held by two optimizers")


def test_gradients_that_bypass_the_wrapper():
    run = MadeRun().run
    run.gradients.is_wrapped = True
    passes("OPT03", run)
    run.gradients.bypasses.append(Bypass("Net", "DistributedDataParallel", place(3), place(9)))
    finds("OPT03", run, 3, 9, words="the gradients of Net were made without a pass through DistributedDataParallel")


def test_tensors_that_no_optimizer_holds():
    run = MadeRun().run
    run.gradients.left_out = LeftOut(2, 5, place(9))
    finds("OPT02", run, 9, words="2 of 5 of the policy's trainable tensors are not held by an optimizer")
    run.gradients.left_out = LeftOut(5, 5, place(9))
    finds("OPT02", run, 9, words="none of the policy's trainable tensors is held by an optimizer")


def test_a_loss_that_nothing_can_learn_from():
    run = MadeRun().run
    run.failure = ScriptFailure("RuntimeError", "element 0 of tensors does not require grad", place(6))
    finds("OPT02", run, 6, words="backward() failed")


@pytest.mark.parametrize(
    ("rates", "is_dead"), [((0.0, 0.0, 0.0), True), ((0.0, 1e-6, 2e-6), False), ((0.0, 0.0), False)]
)
def test_a_rate_of_zero_in_every_step_that_was_seen(rates, is_dead):
    made = MadeRun(TRAINED, {})
    for rate in rates:
        made.update(Grpo(made).backward()).learning_rate = rate
    assert (said("OPT02", made.run)[0] is State.FINDING) == is_dead


@pytest.mark.parametrize(("losses", "is_dead"), [((0.1, *[float("nan")] * 3), True), ((float("nan"), 0.1, 0.1), False)])
def test_losses_that_are_nan_to_the_end(losses, is_dead):
    made = MadeRun(TRAINED, {})
    for loss in losses:
        made.update(backward := Grpo(made).backward())
        backward.number = loss
    assert (said("NUM03", made.run)[0] is State.FINDING) == is_dead


def test_numbers_kept_with_their_graphs():
    run = MadeRun().run
    run.gradients.kept += [KeptGraphs(2, place(5)), KeptGraphs(3, place(5)), KeptGraphs(4, place(5))]
    finds("PERF02", run, 5, words="numbers of 3 earlier updates")


def test_losses_summed_after_their_backward():
    made = MadeRun(TRAINED)
    total = made.value("given", np.array(0.0))
    for number in range(2):
        loss = made.value("mean", np.array(1.0), grad=True)
        made.backward(loss)
        total = made.value("add", np.array(number), grad=True, line=50, input=total, other=loss)
    finds("PERF02", made.run, 50, words="sums losses that went backward already")
