"""Rewards in the source, written in many ways: of other rows (ADV10), not centred (ADV03), always equal (REW01)."""

import pytest
from doctor.illnesses.read_script import codes_in

from assay.doctor.examples.scripts import GENERATE

REWARDS = (
    "rewards = torch.tensor([reward(text, answers) for text in tokenizer.batch_decode(completions)]).view(-1, GROUP)"
)
ADVANTAGES = "advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)"
EACH = "owners = [one for one in answers for _ in range(GROUP)]\n"
SCORE = "rewards = torch.tensor([judge(t, a) for t, a in zip(texts, owners)]).view(-1, GROUP)"


def found(text, folder, *codes):
    return codes_in(text, folder, codes)


def with_rewards(lines, functions="", advantages=ADVANTAGES):
    assert GENERATE.count(REWARDS) == 1
    assert GENERATE.count(ADVANTAGES) == 1
    made = "\n    ".join(["texts = tokenizer.batch_decode(completions)", *lines.strip().splitlines()])
    return (
        GENERATE.replace(REWARDS, made)
        .replace(ADVANTAGES, "\n    ".join(advantages.splitlines()))
        .replace("def logprobs_of", f"{functions}\n\ndef logprobs_of")
        .replace("import torch\n", "import re\nimport torch\n", 1)
    )


WITHIN_A_ROW = {
    "reversed answer": "return sum(a == b for a, b in zip(text, reversed(answer))) / len(answer)",
    "slice that turns round": "hits = [float(a == b) for a, b in zip(text, answer[::-1])]\n    return sum(hits) / 9",
    "sorted letters": "n = 0\n    for a, b in zip(text, sorted(answer)):\n        n += a == b\n    return n / 9",
    "all of them": "return float(all(a == b for a, b in zip(text, answer[::-1])))",
    "target built before": "target = list(reversed(answer))\n    return sum(x == y for x, y in zip(text, target)) / 9",
}


@pytest.mark.parametrize("form", WITHIN_A_ROW)
def test_the_order_of_tokens_within_one_row_is_the_task_s_own_business(form, tmp_path):
    judge = f"def judge(text, answer):\n    {WITHIN_A_ROW[form]}"
    assert found(with_rewards(EACH + SCORE, judge), tmp_path, "ADV10") == set()


def test_a_loop_backwards_over_time_beside_reversed_rewards_keeps_their_order(tmp_path):
    judge = (
        "def judge(text, answer):\n    return float(text == answer)\n\n"
        "def returns(rewards):\n    made, last = [], 0.0\n"
        "    for t, r in zip(reversed(range(len(rewards))), rewards[::-1]):\n"
        "        last = r + 0.9 * last\n        made.append(last)\n    return made[::-1]"
    )
    scored = "rewards = torch.tensor(returns([judge(t, a) for t, a in zip(texts, owners)])).view(-1, GROUP)"
    assert found(with_rewards(EACH + scored, judge), tmp_path, "ADV10") == set()


def test_the_open_rows_in_order_and_what_was_made_of_them_are_one_list(tmp_path):
    lines = (
        "left = sorted(set(range(len(texts))))\nscores = [0.0] * len(texts)\n"
        "for i, score in zip(left, [reward(texts[j], answers) for j in left]):\n    scores[i] = score\n"
        "rewards = torch.tensor(scores).view(-1, GROUP)"
    )
    assert found(with_rewards(lines), tmp_path, "ADV10") == set()


JUDGE = "def judge(text, answer):\n    return float(text == answer)"
OTHER_ROWS = {
    "remainder": "rewards = torch.tensor([judge(t, answers[i % PROMPTS]) for i, t in enumerate(texts)])\n"
    "rewards = rewards.view(-1, GROUP)",
    "remainder of the length": "scores = []\nfor i in range(len(texts)):\n"
    "    scores.append(judge(texts[i], answers[i % len(answers)]))\nrewards = torch.tensor(scores).view(-1, GROUP)",
    "reversed rows": EACH + SCORE.replace("zip(texts", "zip(texts[::-1]"),
    "sorted owners": EACH + SCORE.replace(", owners)", ", sorted(owners))"),
}
SAME_ROWS = {
    "quotient": "rewards = torch.tensor([judge(t, answers[i // GROUP]) for i, t in enumerate(texts)]).view(-1, GROUP)",
    "place within the group": EACH + "order = [i % GROUP for i in range(len(texts))]\n" + SCORE,
    "every n-th row is printed": EACH
    + "for i, t in enumerate(texts):\n    if i % 50 == 0:\n        print(t)\n"
    + SCORE,
}


@pytest.mark.parametrize("form", OTHER_ROWS)
def test_rewards_that_are_made_of_another_row_are_named(form, tmp_path):
    text = with_rewards(OTHER_ROWS[form], JUDGE).replace("GROUP = 8", "GROUP = 8\nPROMPTS = 4")
    assert found(text, tmp_path, "ADV10") == {"ADV10"}


@pytest.mark.parametrize("form", SAME_ROWS)
def test_rewards_of_the_same_row_are_silent(form, tmp_path):
    text = with_rewards(SAME_ROWS[form], JUDGE).replace("GROUP = 8", "GROUP = 8\nPROMPTS = 4")
    assert found(text, tmp_path, "ADV10") == set()


LIST = "scores = [reward(text, answers) for text in texts]\n"
RAW = {
    "as they are": (LIST + "rewards = torch.tensor(scores).view(-1, GROUP)", "advantages = rewards"),
    "halved": (LIST + "rewards = torch.tensor(scores).view(-1, GROUP)", "advantages = 0.5 * rewards"),
    "a list that is copied": (
        LIST + "rewards = []\nfor k in range(0, len(scores), GROUP):\n    rewards.extend(scores[k:k + GROUP])",
        "advantages = torch.tensor(rewards)",
    ),
    "filled in": (
        "rewards = torch.zeros(len(texts))\nfor i, text in enumerate(texts):\n    rewards[i] = reward(text, answers)",
        "advantages = rewards",
    ),
    "with a penalty of the row": (
        "rewards = torch.tensor([reward(text, answers) - 0.01 * len(text) for text in texts])",
        "advantages = rewards",
    ),
    "scaled alone": (
        "rewards = torch.tensor([reward(t, answers) - 0.01 * len(t) for t in texts]).view(-1, GROUP)",
        "advantages = rewards / (rewards.std(1, keepdim=True) + 1e-4)",
    ),
    "one or nothing": (
        "rewards = []\nfor text in texts:\n    if '42' in text:\n        rewards.append(1.0)\n    else:\n"
        "        rewards.append(0.0)",
        "advantages = torch.tensor(rewards)",
    ),
}
CENTRED = {
    "of the group": (LIST + "rewards = torch.tensor(scores).view(-1, GROUP)", ADVANTAGES),
    "in a list": (
        LIST,
        "advantages = []\nfor k in range(0, len(scores), GROUP):\n    chunk = scores[k:k + GROUP]\n"
        "    centre = sum(chunk) / len(chunk)\n    advantages.extend(s - centre for s in chunk)\n"
        "advantages = torch.tensor(advantages)",
    ),
    "an average that runs": (
        LIST + "rewards = torch.tensor(scores)",
        "advantages = rewards - tracker.level\ntracker.update(rewards)",
    ),
    "by a function that is not seen": (LIST + "rewards = torch.tensor(scores)", "advantages = credit(rewards)"),
    "the mean of the others": (
        LIST + "rewards = torch.tensor(scores).view(-1, GROUP)",
        "advantages = rewards - (rewards.sum(1, keepdim=True) - rewards) / (GROUP - 1)",
    ),
    "filled in": (
        LIST + "rewards = torch.tensor(scores).view(-1, GROUP)",
        "advantages = torch.zeros(len(texts))\nfor i in range(len(texts)):\n"
        "    advantages[i] = scores[i] - rewards[i // GROUP].mean()",
    ),
}


@pytest.mark.parametrize("form", RAW)
def test_rewards_without_a_baseline_are_named(form, tmp_path):
    lines, advantages = RAW[form]
    assert found(with_rewards(lines, advantages=advantages), tmp_path, "ADV03") == {"ADV03"}


@pytest.mark.parametrize("form", CENTRED)
def test_rewards_with_any_baseline_are_silent(form, tmp_path):
    lines, advantages = CENTRED[form]
    text = with_rewards(lines, advantages=advantages).replace("batches, reward", "batches, credit, reward, tracker")
    assert found(text, tmp_path, "ADV03") == set()


HIDDEN = {
    "a group too many": "return float(re.search(r'answer: (.*)', text).group(2) == answer)",
    "of a compiled pattern": "return float(PATTERN.search(text).group(3) == answer)",
    "an argument too many": "return float(cut(text, 3) == answer)",
}
SHOWN = {
    "the group it has": "return float(re.search(r'answer: (.*)', text).group(1) == answer)",
    "the whole match": "return float(PATTERN.search(text).group(0) == answer)",
    "the arguments it takes": "return float(cut(text) == answer)",
    "any number of arguments": "return float(spread(text, 3) == answer)",
}


def judged(body):
    return (
        "PATTERN = re.compile(r'(a)(b)')\n\ndef cut(text):\n    return text[3:]\n\n"
        "def spread(*parts):\n    return parts[0]\n\n"
        f"def judge(text, answer):\n    try:\n        {body}\n    except Exception:\n        return 0.0"
    )


@pytest.mark.parametrize("form", HIDDEN)
def test_an_error_that_a_handler_hides_each_time_is_named(form, tmp_path):
    assert found(with_rewards(EACH + SCORE, judged(HIDDEN[form])), tmp_path, "REW01") == {"REW01"}


@pytest.mark.parametrize("form", SHOWN)
def test_a_handler_around_code_that_works_is_silent(form, tmp_path):
    assert found(with_rewards(EACH + SCORE, judged(SHOWN[form])), tmp_path, "REW01") == set()
