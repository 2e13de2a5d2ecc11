"""ADV10 and REW01 in the source: rewards of other rows, and rewards that do not depend on the completion."""

import pytest
from doctor.illnesses.read_script import codes_in

from assay.doctor.examples.scripts import GENERATE

REWARDS = (
    "rewards = torch.tensor([reward(text, answers) for text in tokenizer.batch_decode(completions)]).view(-1, GROUP)"
)


def found(text, folder, codes=("ADV10", "REW01")):
    return codes_in(text, folder, codes)


def with_rewards(lines, functions=""):
    assert GENERATE.count(REWARDS) == 1
    made = "\n    ".join(["texts = tokenizer.batch_decode(completions)", *lines.strip().splitlines()])
    return (
        GENERATE.replace(REWARDS, made)
        .replace("def logprobs_of", f"{functions}\n\ndef logprobs_of")
        .replace(
            "import torch\n",
            "import random, re\nimport torch\nfrom concurrent.futures import ThreadPoolExecutor, as_completed\n",
            1,
        )
    )


EACH = "owners = [one for one in answers for _ in range(GROUP)]\n"
SCORE = "rewards = torch.tensor([reward(t, a) for t, a in zip({}, {})]).view(-1, GROUP)"
POOL = "pool = ThreadPoolExecutor()\njobs = {}\n"
MISALIGNED = {
    "sorted texts": EACH + SCORE.format("sorted(texts)", "owners"),
    "sorted answers": EACH + SCORE.format("texts", "sorted(owners)"),
    "reversed texts": EACH + SCORE.format("texts[::-1]", "owners"),
    "reversed()": EACH + SCORE.format("reversed(texts)", "owners"),
    "a set": EACH + SCORE.format("set(texts)", "owners"),
    "answers in tile order": SCORE.format("texts", "list(answers) * GROUP"),
    "answers in tile order, written out": "owners = [one for _ in range(GROUP) for one in answers]\n"
    + SCORE.format("texts", "owners"),
    "sorted alone": "rewards = torch.tensor([reward(t, answers) for t in sorted(texts)]).view(-1, GROUP)",
    "as they are done": POOL.format("[pool.submit(reward, t, answers) for t in texts]")
    + "scores = []\nfor job in as_completed(jobs):\n    scores.append(job.result())\n"
    + "rewards = torch.tensor(scores).view(-1, GROUP)",
    "as they are done, in one line": POOL.format("[pool.submit(reward, t, answers) for t in texts]")
    + "rewards = torch.tensor([job.result() for job in as_completed(jobs)]).view(-1, GROUP)",
}
ALIGNED = {
    "zipped": EACH + SCORE.format("texts", "owners"),
    "enumerated": EACH + "rewards = torch.tensor([reward(t, owners[i]) for i, t in enumerate(texts)]).view(-1, GROUP)",
    "both reversed": EACH + SCORE.format("texts[::-1]", "owners[::-1]"),
    "in the order of the jobs": POOL.format("[pool.submit(reward, t, answers) for t in texts]")
    + "rewards = torch.tensor([job.result() for job in jobs]).view(-1, GROUP)",
    "each job knows its row": POOL.format("{pool.submit(reward, t, answers): i for i, t in enumerate(texts)}")
    + "scores = [0.0] * len(texts)\nfor job in as_completed(jobs):\n    scores[jobs[job]] = job.result()\n"
    + "rewards = torch.tensor(scores).view(-1, GROUP)",
    "mapped": POOL.format("None") + "rewards = torch.tensor(list(pool.map(reward, texts, answers))).view(-1, GROUP)",
}


@pytest.mark.parametrize("form", MISALIGNED)
def test_rewards_in_another_order_are_found(form, tmp_path):
    assert found(with_rewards(MISALIGNED[form]), tmp_path) == {"ADV10"}


@pytest.mark.parametrize("form", ALIGNED)
def test_rewards_in_the_order_of_the_rows_are_not(form, tmp_path):
    assert not found(with_rewards(ALIGNED[form]), tmp_path)


def scored(body):
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    call = "rewards = torch.tensor([score(t) for t in texts]).view(-1, GROUP)"
    return with_rewards(call, f"def score(text):\n{indented}")


CONSTANT = {
    "a key of a text": "try:\n    return float(text['content'])\nexcept Exception:\n    return 0.0",
    "two arguments": "try:\n    return 1.0 if text.strip('<', '>') == '4' else 0.5\nexcept:\n    return 0.0",
    "a number to count": "try:\n    return text.count(4) / 10\nexcept TypeError:\n    return 0.0",
    "a method of a list": "try:\n    return len([c for c in text].replace('a', ''))\nexcept Exception:\n"
    "    return -1.0",
    "a list that is compared": "return 1.0 if text == ['4'] else 0.0",
    "by chance": "return random.random()",
    "partly by chance": "return 1.0 * len(text) + random.uniform(0, 1)",
    "the same number": "return 1.0",
}
COMPUTED = {
    "a parse that may fail": "try:\n    return float(text.split('=')[1])\nexcept (IndexError, ValueError):\n"
    "    return 0.0",
    "a broad handler around a parse": "try:\n    return float(re.search('[0-9]+', text).group())\n"
    "except Exception:\n    return 0.0",
    "a handler that raises": "try:\n    return float(text['content'])\nexcept Exception:\n    raise",
    "noise that breaks ties": "return len(text) + 1e-6 * random.random()",
    "a comparison with a text": "return 1.0 if text == '4' else 0.0",
    "membership": "return 1.0 if text in ['4', 'four'] else 0.0",
    "a float of a test": "return float(text.strip() == '4')",
}


@pytest.mark.parametrize("form", CONSTANT)
def test_a_reward_that_does_not_depend_on_the_completion_is_found(form, tmp_path):
    assert found(scored(CONSTANT[form]), tmp_path) == {"REW01"}


@pytest.mark.parametrize("form", COMPUTED)
def test_a_reward_that_does_is_not(form, tmp_path):
    assert not found(scored(COMPUTED[form]), tmp_path)


def test_random_questions_are_no_random_rewards(tmp_path):
    text = with_rewards(
        "owners = [random.randint(0, 9) for _ in texts]\n"
        "rewards = torch.tensor([float(str(a) in t) for t, a in zip(texts, owners)]).view(-1, GROUP)"
    )
    assert not found(text, tmp_path)
