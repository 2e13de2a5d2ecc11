"""What a newcomer found unnamed or misnamed: NaN, prompts in the loss, endings of whole rows."""

import numpy as np
import pytest

from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.examples import EOS, PAD, edit_batch, healthy_batch, healthy_curves
from assay.doctor.illnesses.loss import zero_loss
from assay.doctor.illnesses.masks import eos_untrained, prompt_in_loss
from assay.doctor.illnesses.numerics import not_finite
from assay.doctor.illnesses.ratio import ratio_not_one
from assay.record.batch import Batch
from assay.verdict import Confidence, Missing, Severity, State

NAN = float("nan")
FLOW = ("advantages", "old_logprobs", "ref_logprobs", "new_logprobs", "ratio", "kl", "token_loss", "gradients")


def with_one(batch, name, value, row=2, token=1):
    values = batch.arrays[name].copy()
    values[(row, token)[: values.ndim]] = value
    return edit_batch(batch, **{name: values})


# ---------------------------------------------------------------- not_finite


@pytest.mark.parametrize("value", [NAN, np.inf, -np.inf])
@pytest.mark.parametrize("name", FLOW)
def test_a_number_that_is_not_finite_is_named_with_its_place(name, value):
    verdict = not_finite.check_batch(edit_batch(with_one(healthy_batch(update=1), name, value), gradient_norm=NAN))
    assert (verdict.state, verdict.confidence, verdict.severity) == (State.FINDING, Confidence.PROVEN, None)
    assert verdict.message.startswith(f"{name} of 1 of ")
    assert (verdict.facts[0].row, verdict.facts[0].token) == (2, None if name == "advantages" else 1)


@pytest.mark.parametrize("name", ["loss", "policy_loss", "kl_loss", "gradient_norm"])
def test_a_number_of_the_update_that_is_not_finite_is_named(name):
    diagnosis = diagnose(Evidence((edit_batch(healthy_batch(update=1), loss_again=None, **{name: NAN}),)))
    assert diagnosis.findings[0].code == "NUM03"
    assert diagnosis.findings[0].severity is Severity.FATAL or name in ("policy_loss", "kl_loss")
    assert f"{name} is not finite" in diagnosis.findings[0].verdict.message


def test_the_first_in_the_order_of_computation_is_the_source_and_the_rest_is_listed():
    batch = edit_batch(healthy_batch(update=1), loss=NAN, gradient_norm=NAN)
    for name in ("gradients", "new_logprobs", "ratio"):
        batch = with_one(batch, name, NAN)
    message = not_finite.check_batch(batch).message
    assert message.startswith("new_logprobs of 1 of ")
    assert "so are ratio, loss, gradients, gradient_norm" in message


def test_an_infinite_reward_is_shown_as_where_the_advantages_come_from():
    batch = with_one(with_one(edit_batch(healthy_batch(), loss=NAN), "advantages", NAN), "rewards", np.inf)
    assert [fact.what for fact in not_finite.check_batch(batch).facts] == ["advantages", "reward"]


@pytest.mark.parametrize(
    "changes",
    [
        {"rewards": np.full(16, NAN)},
        {"sampler_logprobs": np.full((16, 12), NAN)},
        {"ref_logprobs": np.full((16, 12), NAN), "kl_coef": 0.0},
        {"old_logprobs": np.full((16, 12), NAN)},  # the trainer does not have them, and did without
    ],
)
def test_what_may_be_nan_is_no_finding(changes):
    assert not_finite.check_batch(edit_batch(healthy_batch(update=1), **changes)).state is State.HEALTHY


@pytest.mark.parametrize("name", [name for name in FLOW if name != "advantages"])
def test_nan_under_the_mask_is_no_finding(name):
    batch = healthy_batch(update=1)
    values = np.where(batch.arrays["mask"], batch.arrays[name], NAN)
    assert not_finite.check_batch(edit_batch(batch, **{name: values})).state is State.HEALTHY


def test_with_a_finite_loss_the_nan_was_replaced_and_the_finding_is_likely():
    verdict = not_finite.check_batch(with_one(healthy_batch(update=1), "new_logprobs", NAN))
    assert (verdict.confidence, verdict.severity) == (Confidence.LIKELY, Severity.HARMFUL)
    assert "replaced on their way" in verdict.message


def test_without_a_mask_only_the_numbers_are_judged():
    assert not_finite.check_batch(Batch.of({"new_logprobs": [[NAN]], "loss": 0.5})).state is State.HEALTHY
    with pytest.raises(Missing, match="mask, loss"):
        not_finite.check_batch(Batch.of({"new_logprobs": [[NAN]]}))


@pytest.mark.parametrize(("every", "state"), [(1, State.FINDING), (2, State.FINDING), (4, State.HEALTHY)])
def test_skipped_updates_in_a_large_share_of_the_steps_are_a_possible_finding(every, state):
    curves = healthy_curves(updates_skipped=(np.arange(60) % every == 0).astype(int))
    (word,) = diagnose(Evidence(curves=curves), [not_finite.ILLNESS]).words
    verdict = word.verdict
    assert verdict.state is state
    if state is State.FINDING:
        assert verdict.confidence is Confidence.POSSIBLE
        assert verdict.severity is (None if every == 1 else Severity.HARMFUL)


def test_a_nan_loss_is_not_called_healthy_by_zero_loss():
    verdict = zero_loss.check_batch(healthy_batch(loss=NAN))
    assert (verdict.state, "NUM03" in verdict.message) == (State.NOT_APPLICABLE, True)


def test_ratio_not_one_leaves_nan_to_not_finite_and_judges_the_rest():
    batch = with_one(healthy_batch(), "new_logprobs", NAN)
    verdict = ratio_not_one.check_batch(batch)
    assert (verdict.state, "NUM03" in verdict.message) == (State.NOT_APPLICABLE, True)
    moved = ratio_not_one.check_batch(edit_batch(batch, new_logprobs=batch.arrays["new_logprobs"] - 0.5))
    assert (moved.state, moved.facts[0].value) == (State.FINDING, pytest.approx(0.5))
    assert "nan" not in moved.message


def test_nan_advantages_are_the_cause_and_the_rest_follows():
    batch = edit_batch(with_one(healthy_batch(update=1), "advantages", NAN), loss=NAN, gradient_norm=NAN)
    diagnosis = diagnose(Evidence((batch,)))
    assert diagnosis.findings[0].code == "ADV04"
    assert diagnosis.causes["NUM03"] == "ADV04"


# ---------------------------------------------------------------- prompt_in_loss


def whole_rows(prompt_lengths, *, prompt_trained, left=False, eos_trained=True, **rest):
    """Prompt and completion in one row; the prompts differ and every completion is 30 31 EOS."""
    widest = max(prompt_lengths)
    prompts = [[10 + 7 * row + column for column in range(size)] for row, size in enumerate(prompt_lengths)]
    pads = [[PAD] * (widest - size) for size in prompt_lengths]
    pairs = list(zip(prompts, pads, strict=True))
    padded = [([*pad, *prompt], [*[0] * len(pad), *[1] * len(prompt)]) for prompt, pad in pairs]
    marks = [[int(prompt_trained)] * len(prompt) for prompt in prompts]
    answer, trained = [90, 91, EOS], [1, 1, int(eos_trained)]
    values = {
        "tokens": [[*pad, *prompt, *answer] if left else [*prompt, *answer, *pad] for prompt, pad in pairs],
        "mask": [
            [*[0] * len(pad), *mark, *trained] if left else [*mark, *trained, *[0] * len(pad)]
            for mark, pad in zip(marks, pads, strict=True)
        ],
        "prompt_tokens": [tokens for tokens, _ in padded],
        "prompt_mask": [real for _, real in padded],
        "eos_ids": (EOS,),
        "pad_id": PAD,
    }
    return Batch.of({**values, **rest})


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("sizes", [[1, 2, 1, 2, 2], [2, 2, 5, 9, 2], [5, 4, 3, 5, 4]])
def test_a_short_prompt_in_the_loss_is_proven_by_the_lengths(sizes, left):
    sick = prompt_in_loss.check_batch(whole_rows(sizes, prompt_trained=True, left=left, lengths=[3] * 5))
    well = prompt_in_loss.check_batch(whole_rows(sizes, prompt_trained=False, left=left, lengths=[3] * 5))
    assert (sick.state, sick.confidence, sick.facts[0].value) == (State.FINDING, Confidence.PROVEN, sum(sizes))
    assert well.state is State.HEALTHY


def test_without_lengths_answers_that_repeat_a_short_prompt_are_no_finding():
    with pytest.raises(Missing):
        prompt_in_loss.check_batch(whole_rows([1, 2, 1, 2, 2], prompt_trained=True))


def test_completions_alone_do_not_show_that_no_prompt_is_trained():
    batch = healthy_batch()
    alone = {name: batch.arrays[name] for name in ("tokens", "mask", "prompt_tokens", "prompt_mask")}
    with pytest.raises(Missing, match="rows that hold the prompt too, or prompt_tokens and lengths"):
        prompt_in_loss.check_batch(Batch.of(alone))
    for name in ("lengths", "sampled_tokens"):
        assert prompt_in_loss.check_batch(Batch.of({**alone, name: batch.arrays[name]})).state is State.HEALTHY


# ---------------------------------------------------------------- eos_untrained


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("rest", [{"lengths": [3] * 9}, {"finished": [1] * 9}, {}])
@pytest.mark.parametrize("has_prompts", [True, False])
def test_the_eos_of_whole_rows_is_looked_at(left, rest, has_prompts):
    prompts = {} if has_prompts else {"prompt_tokens": None, "prompt_mask": None}
    for eos_trained, state in ((True, State.HEALTHY), (False, State.FINDING)):
        batch = whole_rows(
            [5, 4, 3, 5, 4, 3, 5, 4, 3], prompt_trained=False, left=left, eos_trained=eos_trained, **rest, **prompts
        )
        verdict = eos_untrained.check_batch(batch)
        assert verdict.state is state, verdict.message
        assert {fact.what: fact.value for fact in verdict.facts}["rows that ended by EOS"] == 9


def test_padding_that_is_eos_behind_a_row_of_unknown_end_is_only_possible():
    batch = whole_rows([5, 4, 3, 5, 4, 3, 5, 4, 3], prompt_trained=False, eos_trained=False, pad_id=EOS)
    assert eos_untrained.check_batch(batch).confidence is Confidence.POSSIBLE


def test_without_finished_the_last_trained_token_tells_it():
    batch = healthy_batch(finished=None, lengths=None)
    verdict = eos_untrained.check_batch(batch)
    assert (verdict.state, verdict.facts[0].value) == (State.HEALTHY, 14)
