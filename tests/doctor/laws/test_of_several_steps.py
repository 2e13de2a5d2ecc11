"""Laws that look at the batches of several steps, and at what was asked again."""

import numpy as np
import pytest

from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence import Evidence
from assay.doctor.examples import edit_batch, healthy_batch
from assay.doctor.laws import freshness, reference, reward, sampling, supply
from assay.doctor.live import LiveDoctor
from assay.record.batch import Batch
from assay.verdict import Confidence, Missing, State


def drawn(step, *, sharper=1.0, rows=8, width=6, first_row_greedy=False, seed=0):
    """Tokens drawn from softmax(sharper * logits) and scored under softmax(logits), two rows in a group."""
    random = np.random.default_rng([seed, step])
    logits = random.standard_normal((rows, width, 6)) * 1.5
    scored, sampled = (np.exp(logits * f) / np.exp(logits * f).sum(-1, keepdims=True) for f in (1.0, sharper))
    tokens = (random.random((rows, width, 1)) > sampled.cumsum(-1)[..., :-1]).sum(-1)
    if first_row_greedy:
        tokens[::2] = scored[::2].argmax(-1)
    logprobs = np.log(np.take_along_axis(scored, tokens[..., None], -1)[..., 0])
    entropy = -(scored * np.log(scored)).sum(-1)
    return Batch.of(
        {
            "tokens": tokens,
            "mask": np.ones_like(tokens, dtype=bool),
            "lengths": [width] * rows,
            "group_ids": np.arange(rows) // 2,
            "plain_logprobs": logprobs,
            "plain_entropy": entropy,
            "plain_variance": (scored * np.log(scored) ** 2).sum(-1) - entropy**2,
            "step": step,
            "update": 0,
        }
    )


def test_what_one_step_cannot_show_all_steps_together_can():
    steps = [drawn(step, sharper=1.4) for step in range(1, 17)]
    assert all(sampling.check_batch(batch).state is not State.FINDING for batch in steps)
    verdict = sampling.check_batches(steps)
    assert verdict.state is State.FINDING
    assert "likelier" in verdict.message
    sound = [drawn(step) for step in range(1, 17)]
    assert sampling.check_batches(sound).state is State.HEALTHY


def test_a_row_of_every_group_that_is_decoded_greedily_is_found():
    steps = [drawn(step, first_row_greedy=True, seed=3) for step in range(1, 13)]
    assert "row 0 of every group" in sampling.check_batches(steps).message


@pytest.mark.parametrize("seed", range(6))
def test_draws_of_a_sharp_policy_are_not_accused(seed):
    """Rare tokens weigh much: the sum is far from normal."""
    random = np.random.default_rng(seed)
    p = 0.985
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p))
    steps = []
    for step in range(1, 9):
        rare = random.random((16, 12)) > p
        logprobs = np.where(rare, np.log(1 - p), np.log(p))
        steps.append(
            edit_batch(
                drawn(step, rows=16, width=12),
                plain_logprobs=logprobs,
                plain_entropy=np.full_like(logprobs, entropy),
                plain_variance=np.full_like(logprobs, p * (1 - p) * np.log(p / (1 - p)) ** 2),
            )
        )
    assert sampling.check_batches(steps).state is State.HEALTHY


def test_a_sampler_that_stays_behind_is_told_from_one_that_was_never_right():
    sound, wrong = [drawn(1)], [drawn(step, sharper=0.4, rows=32) for step in (2, 3, 4)]
    assert freshness.check_batches([*sound, *wrong]).state is State.FINDING
    assert freshness.check_batches([drawn(1, sharper=0.2, rows=64), *wrong]).state is State.NOT_APPLICABLE
    corrected = [edit_batch(batch, correction="token") for batch in (*sound, *wrong)]
    assert freshness.check_batches(corrected).state is State.NOT_APPLICABLE
    with pytest.raises(Missing, match="first step"):
        freshness.check_batches(wrong)


def prompts_of(step, tokens, **more):
    rows = len(tokens)
    fields = {"tokens": np.arange(rows)[:, None] + 10 * step, "mask": np.ones((rows, 1)), "lengths": [1] * rows}
    groups = np.arange(rows) // 2
    return Batch.of({**fields, "prompt_tokens": tokens, "group_ids": groups, "step": step, "update": 0, **more})


def test_the_same_prompts_in_every_step_count_by_what_the_data_set_holds():
    same = [[1], [1], [2], [2]]
    for size, sure in ((100, Confidence.LIKELY), (None, Confidence.POSSIBLE)):
        verdict = supply.check_batches([prompts_of(step, same, dataset_size=size) for step in (1, 2, 3)])
        assert (verdict.state, verdict.confidence) == (State.FINDING, sure)
    whole = supply.check_batches([prompts_of(step, same, dataset_size=2) for step in (1, 2, 3)])
    assert whole.state is State.NOT_APPLICABLE
    other = [prompts_of(step, [[step], [step], [9], [9]]) for step in (1, 2, 3)]
    assert supply.check_batches(other).state is State.HEALTHY


def test_groups_of_several_prompts_and_prompts_of_several_tokens_are_found():
    assert supply.check_batch(prompts_of(1, [[1], [2], [3], [3]])).state is State.FINDING
    assert supply.check_batch(prompts_of(1, [[1], [1], [2], [2]])).state is State.HEALTHY
    rows = prompts_of(1, [[1], [1], [2], [2]])
    mixed = Batch(rows.arrays, rows.numbers, rows.settings, {"prompt": ["a", "b", "a", "b"]})
    assert "mixed up" in supply.check_batch(mixed).message
    right = Batch(rows.arrays, rows.numbers, rows.settings, {"prompt": ["a", "a", "b", "b"]})
    assert supply.check_batch(right).state is State.HEALTHY


def test_a_seed_that_is_set_again_gives_the_same_answers_in_every_step():
    batch = edit_batch(healthy_batch(), plain_logprobs=np.full_like(healthy_batch().arrays["plain_logprobs"], -6.0))
    steps = [edit_batch(batch, step=step, update=0) for step in (1, 2)]
    assert "random numbers" in supply.check_batches(steps).message
    certain = [edit_batch(step, plain_logprobs=np.full_like(step.arrays["plain_logprobs"], -0.01)) for step in steps]
    with pytest.raises(Missing):  # answers that are certain come again by right
        supply.check_batches(certain)


def test_an_answer_that_comes_again_must_get_its_reward_again():
    def step_of(number, rewards):
        batch = prompts_of(number, [[1], [1], [1], [2], [2], [2]], rewards=rewards)
        return edit_batch(batch, tokens=np.array([[5], [5], [6], [7], [7], [8]]))

    before = step_of(1, [0.0, 0.0, 1.0, 0.0, 0.0, 1.0])
    assert reward.check_batches([before, step_of(2, [0.0, 0.0, 1.0, 0.0, 0.0, 1.0])]).state is State.HEALTHY
    mixed = [step_of(1, [0.0, 1.0, 0.0, 0.0, 1.0, 0.0]), step_of(2, [1.0, 0.0, 1.0, 0.0, 0.0, 1.0])]
    verdict = reward.check_batches(mixed)
    assert (verdict.state, verdict.confidence) == (State.FINDING, Confidence.LIKELY)
    scheduled = reward.check_batches([before, step_of(2, [0.5, 0.5, 1.5, 0.5, 0.5, 1.5])])  # equal within each step
    assert scheduled.confidence is Confidence.POSSIBLE


def test_the_reference_is_compared_with_the_policy_and_never_with_old():
    batch = healthy_batch()
    plain = batch.arrays["plain_logprobs"]
    first = edit_batch(batch, step=1, update=0, ref_logprobs=plain, old_logprobs=plain - 0.3)
    assert reference.check_batch(first).state is State.HEALTHY
    other = edit_batch(batch, step=1, update=0, ref_logprobs=plain - 0.3, old_logprobs=plain - 0.3)
    assert reference.check_batch(other).state is State.FINDING
    later = edit_batch(batch, step=9, update=0, ref_logprobs=plain, update_norm=0.1)
    assert "last bit" in reference.check_batch(later).message


def test_the_doctor_beside_a_run_remembers_its_steps_and_forgets_those_of_another_run():
    said = []
    doctor = LiveDoctor("warn", said.append)
    same = [[1], [1], [2], [2]]
    for step in (1, 2, 3):
        diagnosis = doctor.examined(prompts_of(step, same, dataset_size=100))
    assert "LAW11" in [word.code for word in diagnosis.findings]
    assert "LAW11" in said[-1]
    again = doctor.examined(prompts_of(1, same, dataset_size=100))
    assert "LAW11" not in [word.code for word in again.findings]


def test_without_the_data_each_law_says_what_it_lacked():
    empty = Batch.of({"tokens": [[1, 2]], "mask": [[1, 1]], "step": 1})
    for word in diagnose(Evidence(batches=(empty,))).words:
        if word.code.startswith("LAW"):
            assert word.verdict.state in (State.NOT_ENOUGH_DATA, State.NOT_APPLICABLE), word.code
            assert word.verdict.message


def scored(rewards, again, **more):
    rows = len(rewards)
    fields = {"tokens": np.arange(rows)[:, None], "mask": np.ones((rows, 1)), "lengths": [1] * rows, "trainer": "trl"}
    groups = {"prompt_tokens": np.arange(rows)[:, None] // 4, "prompt_mask": np.ones((rows, 1))}
    return Batch.of({**fields, **groups, "rewards": rewards, "rewards_again": again, **more})


def test_a_plain_move_of_rows_that_gives_the_rewards_on_record_is_proven():
    alone = np.arange(8) / 10
    verdict = reward.check_batch(scored(np.roll(alone, 1), np.roll(alone, -1), rewards_alone=alone))
    assert "each row has the reward of another one, all are off by 1 row" in verdict.message
    assert verdict.confidence is Confidence.PROVEN
    unknown = scored(alone[[3, 1, 0, 2, 7, 6, 4, 5]], alone, rewards_alone=alone)
    assert reward.check_batch(unknown).confidence is Confidence.LIKELY


def test_rewards_that_depend_on_the_order_are_found_though_they_are_no_exchange():
    """Each row is held against the truth of another one, so that the values are new ones."""
    verdict = reward.check_batch(scored([0.1, 0.2, 0.35, 0.4], [0.15, 0.2, 0.3, 0.45]))
    assert "3 of 4 rows" in verdict.message
    elsewhere = scored([0.1, 0.2, 0.35, 0.4], [0.15, 0.2, 0.3, 0.45], trainer="assay")
    assert reward.check_batch(elsewhere).state is State.NOT_APPLICABLE


def test_a_bonus_for_the_first_of_equal_answers_is_no_finding():
    copies = {"tokens": np.array([[5], [5], [6], [7]])}
    first, last = [1.0, 0.5, 0.2, 0.3], [0.5, 1.0, 0.2, 0.3]
    assert reward.check_batch(scored(first, last, **copies)).state is State.NOT_APPLICABLE
    assert reward.check_batch(scored(first, last)).state is State.FINDING


def test_rewards_that_compare_the_rows_of_a_group_are_the_same_in_any_order():
    relative = np.array([0.5, -0.5, 0.25, -0.25])
    assert reward.check_batch(scored(relative, relative, rewards_alone=np.zeros(4))).state is State.HEALTHY
