"""Dumped rollouts: what is given is taken, what is not is not made up."""

import json

import numpy as np
import pytest

from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence.logs import LogError
from assay.doctor.evidence.open import open_evidence
from assay.verdict import State

REWARDS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0]
PROMPTS = ["2+2"] * 4 + ["3+3"] * 4


def written(tmp_path, rows, name="dump.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def verl(step=5, rewards=REWARDS, prompts=PROMPTS):
    return [
        {"input": prompt, "output": f"answer {at}", "gts": "4", "score": reward, "step": step, "acc": reward}
        for at, (prompt, reward) in enumerate(zip(prompts, rewards, strict=True))
    ]


def test_verl(tmp_path):
    (batch,) = open_evidence(written(tmp_path, verl())).batches
    assert batch.arrays["rewards"].tolist() == REWARDS
    assert batch.arrays["group_ids"].tolist() == [0] * 4 + [1] * 4
    assert batch.texts["completion"][7] == "answer 7"
    assert batch.step == 5
    assert set(batch.arrays) == {"rewards", "group_ids"}


def test_prime_rl_and_messages(tmp_path):
    rows = [
        {
            "example_id": at // 4, "prompt": [{"role": "user", "content": "2+2"}], "reward": reward, "task": "sums",
            "completion": [{"role": "assistant", "content": f"it is {at}"}], "is_truncated": at == 3, "metrics": {},
        }
        for at, reward in enumerate(REWARDS)
    ]  # fmt: skip
    (batch,) = open_evidence(written(tmp_path, rows)).batches
    assert batch.arrays["group_ids"].tolist() == [0] * 4 + [1] * 4  # by the id: the prompts are equal
    assert batch.texts["completion"][2] == "it is 2"
    assert batch.arrays["finished"].tolist() == [True] * 3 + [False] + [True] * 4
    assert batch.step is None


def test_open_instruct_a_step_a_line(tmp_path):
    row = {
        "scores": [10.0, 0.0, 0.0, 10.0], "finish_reasons": ["stop", "length", "stop", "stop"], "training_step": 3,
        "responses": [[5, 6], [7, 8, 9], [5], [6, 2]], "queries": [[1, 2], [1, 2], [3], [3]],
    }  # fmt: skip
    (batch,) = open_evidence(written(tmp_path, [row])).batches
    assert batch.arrays["rewards"].tolist() == [10.0, 0.0, 0.0, 10.0]
    assert batch.arrays["tokens"].tolist() == [[5, 6, 0], [7, 8, 9], [5, 0, 0], [6, 2, 0]]
    assert batch.arrays["lengths"].tolist() == [2, 3, 1, 2]
    assert batch.arrays["prompt_tokens"].tolist() == [[1, 2], [1, 2], [0, 3], [0, 3]]
    assert batch.arrays["prompt_mask"].tolist() == [[True, True]] * 2 + [[False, True]] * 2
    assert batch.arrays["finished"].tolist() == [True, False, True, True]
    assert batch.arrays["group_ids"].tolist() == [0, 0, 1, 1]
    assert batch.step == 3
    assert "completion" not in batch.texts


def test_a_list_of_rollouts_in_one_document(tmp_path):
    path = tmp_path / "dump.json"
    path.write_text(json.dumps([{"prompt": "a", "response": "b", "reward": True}] * 4))
    (batch,) = open_evidence(path).batches
    assert batch.arrays["rewards"].tolist() == [1.0] * 4


def test_of_many_steps_six_are_looked_at(tmp_path):
    path = written(tmp_path, [row for step in range(1, 31) for row in verl(step)])
    evidence = open_evidence(path)
    assert [batch.step for batch in evidence.batches] == [1, 7, 13, 18, 24, 30]
    assert all(len(batch.texts["prompt"]) == 8 for batch in evidence.batches)


def test_a_folder_of_dumps_is_read_step_by_step(tmp_path):
    for step in (2, 10, 9):
        written(tmp_path, verl(step), f"{step}.jsonl")
    assert [batch.step for batch in open_evidence(tmp_path).batches] == [2, 9, 10]
    deeper = tmp_path / "run" / "rollouts" / "step_4"
    deeper.mkdir(parents=True)
    written(deeper, [{"prompt": "a", "completion": "b", "reward": 1.0}] * 2, "train_rollouts.jsonl")
    assert len(open_evidence(tmp_path / "run").batches) == 1


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        (["a", "a", "b", "b", "a", "a", "c", "c"], [0, 0, 1, 1, 2, 2, 3, 3]),  # drawn twice: two groups
        (["a", "b", "b", "a", "b", "a", "a", "b"], [0, 1, 1, 0, 1, 0, 0, 1]),  # rows that were moved about
        (["a", "a", "b", "b", "a", "a", "b", "b"], None),  # drawn twice, or moved about
        (["a", "a", "a", "a", "b", "b", "c", "c"], None),  # a drawn twice in a row, or groups of two sizes
        ([str(at) for at in range(8)], None),  # no two rows can be compared
    ],
)
def test_groups_are_only_what_the_rows_show(tmp_path, prompts, expected):
    evidence = open_evidence(written(tmp_path, verl(prompts=prompts)))
    (batch,) = evidence.batches
    found = batch.get("group_ids")
    assert (None if found is None else found.tolist()) == expected
    assert bool(evidence.notes) == (expected is None)


def test_an_id_of_its_own_for_every_row_makes_no_groups(tmp_path):
    rows = [{**row, "uid": f"row {at}"} for at, row in enumerate(verl())]
    assert "group_ids" not in open_evidence(written(tmp_path, rows)).batches[0].arrays


def advantages(rewards, epsilon=1e-4):
    rewards_GS = np.array(rewards).reshape(2, 4)
    centred_GS = rewards_GS - rewards_GS.mean(axis=1, keepdims=True)
    return (centred_GS / (rewards_GS.std(axis=1, ddof=1, keepdims=True) + epsilon)).reshape(-1)


def with_advantages(values):
    return [{**row, "advantage": float(value)} for row, value in zip(verl(), values, strict=True)]


def test_sound_advantages_are_healthy_and_wrong_ones_are_found(tmp_path):
    sound = diagnose(open_evidence(written(tmp_path, with_advantages(advantages(REWARDS)))))
    assert not sound.findings
    assert {"ADV01", "ADV03", "ADV05"} <= {word.code for word in sound.of(State.HEALTHY)}
    batchwise = (np.array(REWARDS) - np.mean(REWARDS)) / np.std(REWARDS)
    wrong = diagnose(open_evidence(written(tmp_path, with_advantages(batchwise))))
    assert wrong.findings[0].code == "ADV01"


def test_parts_of_a_reward_that_do_not_explain_the_advantages_are_not_summed(tmp_path):
    def rows(weight):
        other = np.array([0.0, 1.0, 0.0, 1.0] * 2)
        values = advantages(np.array(REWARDS) + weight * other)
        return [
            {"prompt": prompt, "completion": "x", "right": right, "neat": neat, "advantage": value, "step": 1}
            for prompt, right, neat, value in zip(PROMPTS, REWARDS, other.tolist(), values.tolist(), strict=True)
        ]

    (batch,) = open_evidence(written(tmp_path, rows(1.0))).batches
    assert batch.arrays["rewards"].tolist() == [1.0, 1.0, 0.0, 1.0, 1.0, 2.0, 0.0, 2.0]
    evidence = open_evidence(written(tmp_path, rows(0.3)))
    assert "rewards" not in evidence.batches[0].arrays
    assert any("'right', 'neat' is not it" in note for note in evidence.notes)


def test_a_field_that_a_row_lacks_is_left_out(tmp_path):
    rows = with_advantages(advantages(REWARDS))
    del rows[3]["advantage"]
    (batch,) = open_evidence(written(tmp_path, rows)).batches
    assert set(batch.arrays) == {"rewards", "group_ids"}
    rows[4]["score"] = None
    (batch,) = open_evidence(written(tmp_path, rows)).batches
    assert np.isnan(batch.arrays["rewards"]).tolist() == [False] * 4 + [True] + [False] * 3


def test_a_step_that_is_solved_is_silent_and_one_that_is_hopeless_is_not(tmp_path):
    prompts = [f"question {at // 4}" for at in range(32)]
    solved = open_evidence(written(tmp_path, verl(rewards=[1.0] * 31 + [0.0], prompts=prompts)))
    assert solved.batches[0].settings == {"max_reward": 1.0, "min_reward": 0.0}
    assert not diagnose(solved).findings
    hopeless = open_evidence(written(tmp_path, verl(rewards=[0.0] * 32, prompts=prompts)))
    assert hopeless.batches[0].settings == {}
    assert [word.code for word in diagnose(hopeless).findings] == ["ADV09"]


def test_rollouts_without_anything_to_check_are_refused(tmp_path):
    path = written(tmp_path, [{"prompt": "a", "completion": "b"}] * 4)
    with pytest.raises(LogError, match="neither a reward nor an advantage"):
        open_evidence(path)


def test_a_torn_line_and_hostile_text_do_no_harm(tmp_path):
    path = written(tmp_path, verl(prompts=["\x1b[2J" + prompt for prompt in PROMPTS]))
    path.write_text(path.read_text() + '{"input": "2+2", "out')
    evidence = open_evidence(path)
    assert len(evidence.batches[0].texts["prompt"]) == 8
    assert any("cut off" in note for note in evidence.notes)
    assert not diagnose(evidence).of(State.CRASHED)


def test_a_number_that_two_sets_of_questions_share_is_no_group(tmp_path):
    rows = [{"example_id": 7, "prompt": prompt, "completion": "x", "reward": 1.0} for prompt in PROMPTS]
    (batch,) = open_evidence(written(tmp_path, rows)).batches
    assert batch.arrays["group_ids"].tolist() == [0] * 4 + [1] * 4
    (batch,) = open_evidence(written(tmp_path, [rows[0], rows[1], rows[4]])).batches
    assert "group_ids" not in batch.arrays
    (batch,) = open_evidence(written(tmp_path, [{**row, "uid": "u"} for row in rows])).batches
    assert batch.arrays["group_ids"].tolist() == [0] * 8


def test_a_set_of_questions_in_a_folder_is_no_dump(tmp_path):
    written(tmp_path, verl(step=3), "3.jsonl")
    written(tmp_path, verl(step=4), "math500.jsonl")
    assert [batch.step for batch in open_evidence(tmp_path).batches] == [3]
