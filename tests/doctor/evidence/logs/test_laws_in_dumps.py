"""Laws in dumped rollouts: rewards at other rows, copies in a group, ids that are not those of the text, masks."""

import json
import random

import numpy as np
import pytest

from assay.doctor.diagnosis import diagnose
from assay.doctor.evidence.open import open_evidence
from assay.doctor.facts.answers import is_right
from assay.verdict import Confidence, State

WORDS = "first then so we add take the number of apples left now and next it follows that this gives a total".split()
GROUP, PROMPTS, STEPS = 8, 6, 6


def question(draw):
    one, other = draw.randrange(10, 99), draw.randrange(10, 99)
    return f"Ada has {one} apples and finds {other} more. How many has she now?\nAnswer: ", one + other


def answer(draw, truth, share=0.5):
    value = truth if draw.random() < share else truth + draw.choice([-10, -1, 2, 5])
    return " ".join(draw.choice(WORDS) for _ in range(draw.randrange(15, 60))) + f" \\boxed{{{value}}}.", value == truth


def letters(text):
    return [ord(letter) + 3 for letter in text]


def pieces(text):
    """Ids of words and of what is between them: several letters each."""
    parts = [part for word in text.split(" ") for part in (word, " ")][:-1]
    return [100 + sum(ord(letter) * 31**at for at, letter in enumerate(part)) % 9973 for part in parts]


def dump(steps=STEPS, seed=1, ids=letters, **extra):
    draw = random.Random(seed)
    rows = []
    for step in range(1, steps + 1):
        for number in range(PROMPTS):
            prompt, truth = question(draw)
            for _ in range(GROUP):
                text, right = answer(draw, truth)
                rows.append(
                    {
                        "step": step, "uid": f"{step}-{number}", "prompt": prompt, "completion": text,
                        "ground_truth": str(truth), "reward": float(right), "prompt_ids": ids(prompt),
                        "completion_ids": [*ids(text), 1], "finish_reason": "stop", **extra,
                    }
                )  # fmt: skip
    return rows


def blocks(rows):
    size = GROUP * PROMPTS
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def said(tmp_path, rows):
    path = tmp_path / "dump.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    diagnosis = diagnose(open_evidence(path))
    assert not diagnosis.of(State.CRASHED)
    return {word.code: word.confidence for word in diagnosis.findings}


def sure(tmp_path, rows):
    return {code for code, confidence in said(tmp_path, rows).items() if confidence is not Confidence.POSSIBLE}


def with_rewards(rows, change, begin=0):
    """The rewards of each step, changed as a list from some step on."""
    for at, block in enumerate(blocks(rows)):
        rewards = [row["reward"] for row in block]
        for row, reward in zip(block, change(rewards) if at >= begin else rewards, strict=True):
            row["reward"] = reward
    return rows


def without(rows, *names):
    return [{name: value for name, value in row.items() if name not in names} for row in rows]


def shuffled(rewards):
    return random.Random(5).sample(rewards, len(rewards))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ids", [letters, pieces])
def test_a_sound_dump_is_silent(tmp_path, seed, ids):
    assert said(tmp_path, dump(seed=seed, ids=ids)) == {}


@pytest.mark.parametrize(
    "change",
    [
        shuffled,
        lambda rewards: rewards[1:] + rewards[:1],
        lambda rewards: rewards[-GROUP:] + rewards[:-GROUP],
        lambda rewards: rewards[::-1],
        lambda rewards: np.array(rewards).reshape(PROMPTS, GROUP).T.ravel().tolist(),
    ],
)
@pytest.mark.parametrize("begin", [0, 3])
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_rewards_at_other_rows_contradict_the_true_answers(tmp_path, change, begin, scale):
    rows = with_rewards(dump(ids=pieces), lambda rewards: [scale * reward - (scale - 1) for reward in rewards])
    assert "LAW10" in sure(tmp_path, with_rewards(rows, change, begin))


def test_a_reward_that_pays_for_wrong_answers_is_named(tmp_path):
    rows = with_rewards(dump(ids=pieces), lambda rewards: [1 - reward for reward in rewards])
    assert "LAW10" in sure(tmp_path, rows)


@pytest.mark.parametrize(
    "change",
    [
        lambda rewards: [reward + 0.1 * (at % 3) for at, reward in enumerate(rewards)],  # other parts
        lambda rewards: [2 * reward - 1 for reward in rewards],
        lambda rewards: [reward * (at % 20 != 0) for at, reward in enumerate(rewards)],  # some lack the format
        lambda rewards: [float(at % 7) / 7 for at, _ in enumerate(rewards)],  # of something else, a judge of style
        lambda rewards: [0.0 for _ in rewards],
    ],
)
def test_other_rewards_beside_a_true_answer_are_not_called_moved(tmp_path, change):
    assert "LAW10" not in sure(tmp_path, with_rewards(dump(ids=pieces), change))


def test_what_the_rows_answer_is_not_taken_for_the_truth(tmp_path):
    rows = dump()
    for row in rows:
        row["answer"] = row.pop("completion").rpartition("{")[2].rstrip("}.")
        row["completion"] = f"so \\boxed{{{row['answer']}}}"
        del row["ground_truth"]
    assert "LAW10" not in said(tmp_path, without(rows, "completion_ids", "prompt_ids"))


@pytest.mark.parametrize(
    ("text", "truth", "right"),
    [
        (r"\boxed{12}", "12", True), (r"\boxed{12.0}", "12", True), (r"\boxed{1{,}2}", "12", None),
        (r"\boxed{\text{12}}", "12", None), ("<answer> 12 </answer>", "#### 12", True), ("#### 13", "12", False),
        ("The answer is 12.", "12", True), ("the answer is: **13**", "12", False), ("12", "12", None),
        (r"\boxed{x}", "y", None), (r"\boxed{$1,200$}", "1200", True), (r"\boxed{", "3", None),
        (r"\boxed{0.5}", r"\frac{1}{2}", None), (r"\boxed{A}", "A", True),
    ],
)  # fmt: skip
def test_an_answer_is_judged_only_where_it_is_beyond_doubt(text, truth, right):
    assert is_right(text, truth) is right


def test_equal_answers_of_one_step_with_different_rewards_are_a_sign_of_it(tmp_path):
    rows = dump(steps=1, ids=pieces)
    for at, row in enumerate(rows):
        row["completion"], row["reward"] = f"it is \\boxed{{{at % 2}}}", float(at % 4 == 0)
    names = ("completion_ids", "prompt_ids", "ground_truth")
    assert "LAW10" in said(tmp_path, without(rows, *names))
    for row in rows:
        row["reward"] = float(row["completion"][-2] == "0")
    assert "LAW10" not in said(tmp_path, without(rows, *names))


def copied(rows, sources):
    for at in range(0, len(rows), GROUP):
        group = [dict(row) for row in rows[at : at + GROUP]]
        for place, source in enumerate(sources):
            for name in ("completion", "completion_ids", "reward"):
                rows[at + place][name] = group[source][name]
    return rows


@pytest.mark.parametrize("sources", [[0, 1, 2, 3] * 2, [0, 1] * 4, [0, 0, 2, 2, 4, 4, 6, 6], [0] * 4 + [4] * 4])
@pytest.mark.parametrize("drop", [(), ("completion_ids", "prompt_ids")])
def test_rows_that_repeat_rows_of_their_group_are_named(tmp_path, sources, drop):
    assert "LAW11" in sure(tmp_path, without(copied(dump(), sources), *drop))


def test_a_policy_that_is_nearly_certain_repeats_itself_anywhere(tmp_path):
    draw = random.Random(3)
    rows = dump()
    for at in range(0, len(rows), GROUP):
        copied(rows[at : at + GROUP], [draw.choice([0, 0, 0, 1, 2]) for _ in range(GROUP)])
    assert "LAW11" not in said(tmp_path, rows)


def test_a_step_that_repeats_the_answers_of_another_is_named_and_a_second_epoch_is_not(tmp_path):
    first, second = dump(steps=1, seed=1), dump(steps=1, seed=1)
    other = dump(steps=1, seed=9)
    for at, row in enumerate(second):
        row["step"], row["uid"] = 2, f"2-{at // GROUP}"
    assert "LAW11" in sure(tmp_path, first + second)
    for row, new in zip(second, other, strict=True):
        row["completion"], row["completion_ids"] = new["completion"], new["completion_ids"]
    assert "LAW11" not in said(tmp_path, without(first + second, "ground_truth"))


@pytest.mark.parametrize("ids", [letters, pieces])
@pytest.mark.parametrize("early", [3, 7])
def test_ids_that_begin_in_the_prompt_are_not_those_of_the_answer(tmp_path, ids, early):
    rows = dump(ids=ids)
    for row in rows[::3]:
        row["completion_ids"] = (row["prompt_ids"] + row["completion_ids"])[len(row["prompt_ids"]) - early :][
            : len(row["completion_ids"])
        ]
    assert "LAW02" in sure(tmp_path, rows)


def test_ids_of_other_rows_or_of_another_text_are_seen_where_ids_are_letters(tmp_path):
    moved = dump()
    for block in blocks(moved):
        block[3]["completion_ids"], block[4]["completion_ids"] = block[4]["completion_ids"], block[3]["completion_ids"]
    assert "LAW02" in sure(tmp_path, moved)
    late = dump()
    for row in late[::4]:
        row["completion_ids"] = row["completion_ids"][2:]
    assert "LAW02" in sure(tmp_path, late)


def begun(row, text, ids):
    row.update(completion=text + row["completion"], completion_ids=[*ids, *row["completion_ids"]])


@pytest.mark.parametrize(
    "edit",
    [
        lambda row: row.update(completion=row["completion"] + "\n"),
        lambda row: row.update(completion_ids=row["completion_ids"][:-1]),  # EOS is not dumped
        lambda row: begun(row, "Answer: ", letters("Answer: ")),  # the policy says it again
        lambda row: begun(row, "caf\u00e9 ", [70, 71, 72, 300, 301, 35]),  # a letter of two bytes
    ],
)
def test_dumps_that_strip_drop_or_repeat_are_not_accused(tmp_path, edit):
    rows = dump()
    for row in rows[::3]:
        edit(row)
    assert "LAW02" not in sure(tmp_path, rows)


def test_a_mask_of_a_dump_is_read_and_tool_output_inside_is_not_missed(tmp_path):
    rows = dump()
    for row in rows:
        row["completion_mask"] = [1] * len(row["completion_ids"])
    assert not sure(tmp_path, rows)
    for row in rows:
        row["completion_mask"][10:20] = [0] * 10
    assert not sure(tmp_path, rows)
    for row in rows:
        row["completion_mask"][-1] = 0
    assert {"MASK01", "LAW06"} & sure(tmp_path, rows)


def test_tool_output_that_is_trained_is_named(tmp_path):
    def rows(is_masked):
        made = dump()
        for row in made:
            row["completion"] = "<calc>2+2</calc>\n<result>4</result>\n" + row["completion"]
            row["completion_ids"] = [*letters(row["completion"]), 1]
            row["completion_mask"] = [1] * len(row["completion_ids"])
            if is_masked:
                row["completion_mask"][17:35] = [0] * 18
        return made

    assert "LAW06" in sure(tmp_path, rows(is_masked=False))
    assert said(tmp_path, rows(is_masked=True)) == {}


def test_a_judge_that_varies_is_not_called_rewards_of_other_rows(tmp_path):
    rows = without(dump(steps=3, ids=pieces), "completion_ids", "prompt_ids", "ground_truth")
    for at, row in enumerate(rows):
        row["completion"], row["reward"] = f"it is {at % 2}", 0.5 + 0.1 * (at % 5)
    assert "LAW10" not in sure(tmp_path, rows)


def test_truths_that_are_tiled_are_not_those_of_their_rows(tmp_path):
    rows = dump()
    for block in blocks(rows):
        truths = [block[at]["ground_truth"] for at in range(0, len(block), GROUP)] * GROUP
        for row, truth in zip(block, truths, strict=True):
            row["ground_truth"] = truth
            row["reward"] = float(bool(is_right(row["completion"], truth)))
    assert said(tmp_path, without(rows, "prompt_ids", "completion_ids"))["LAW10"] is Confidence.LIKELY


def test_truths_of_the_prompt_before_are_named_by_the_answers_that_hit_them(tmp_path):
    rows = dump()
    for block in blocks(rows):
        truths = [row["ground_truth"] for row in block]
        for row, truth in zip(block, truths[GROUP:] + truths[:GROUP], strict=True):
            row["ground_truth"], row["reward"] = truth, 0.0
    assert said(tmp_path, rows)["LAW10"] is Confidence.LIKELY


@pytest.mark.parametrize("begin", [0, 4])
def test_right_answers_that_get_nothing_are_surer_where_it_begins_at_some_step(tmp_path, begin):
    rows = dump()
    for row in rows:
        if row["step"] > begin and int(row["ground_truth"]) > 100:
            row["reward"] = 0.0
    assert said(tmp_path, rows)["LAW10"] is (Confidence.LIKELY if begin else Confidence.POSSIBLE)


def test_a_few_right_answers_without_a_reward_are_a_matter_of_format(tmp_path):
    rows = dump()
    for row in [row for row in rows if row["reward"]][::20]:
        row["reward"] = 0.0
    assert not sure(tmp_path, rows)


def test_prompts_that_stay_the_same_from_some_step_on_are_named(tmp_path):
    rows = dump()
    parts = blocks(rows)
    for part in parts[3:]:
        for row, source in zip(part, parts[2], strict=True):
            row |= {name: source[name] for name in ("prompt", "prompt_ids", "ground_truth")}
            row["reward"] = float(bool(is_right(row["completion"], row["ground_truth"])))
    assert said(tmp_path, rows)["LAW11"] is Confidence.LIKELY


def test_advantages_of_the_other_sign_are_named(tmp_path):
    rows = dump()
    for at in range(0, len(rows), GROUP):
        rewards = np.array([row["reward"] for row in rows[at : at + GROUP]])
        for row, advantage in zip(rows[at : at + GROUP], rewards.mean() - rewards, strict=True):
            row["advantage"] = float(advantage)
    assert said(tmp_path, rows)["LAW04"] is Confidence.LIKELY


@pytest.mark.parametrize("count", [0, 1, 5])
def test_rows_that_are_scored_otherwise_than_sampled_do_not_disappear_in_a_mean(tmp_path, count):
    rows = dump()
    draw = np.random.default_rng(5)
    for at, row in enumerate(rows):
        sampled = -np.abs(draw.normal(0.4, 0.5, len(row["completion_ids"])))
        row["rollout_logprobs"] = sampled.tolist()
        off = 1.5 if at % (GROUP * PROMPTS) < count else 0.003
        row["old_logprobs"] = (sampled - off * draw.random(len(sampled))).tolist()
    found = said(tmp_path, rows)
    assert found.get("SAMP06") is (Confidence.LIKELY if count else None)


CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def test_a_completion_that_goes_on_with_the_users_turn_was_not_stopped(tmp_path):
    rows = without(dump(), "prompt_ids", "completion_ids")
    for row in rows:
        row["prompt"] = CHAT.format(row["prompt"])
    assert not said(tmp_path, rows)
    for row in rows:
        row["completion"] += "<|im_end|>\n<|im_start|>user\nThank you!<|im_end|>"
    assert said(tmp_path, rows)["LAW06"] is Confidence.LIKELY


def test_a_chat_prompt_that_ends_before_the_assistants_turn_is_named_by_its_text(tmp_path):
    rows = without(dump(), "prompt_ids", "completion_ids")
    for row in rows:
        row["prompt"] = CHAT.format(row["prompt"]).removesuffix("<|im_start|>assistant\n")
    assert said(tmp_path, rows)["ALGN08"] is Confidence.LIKELY
