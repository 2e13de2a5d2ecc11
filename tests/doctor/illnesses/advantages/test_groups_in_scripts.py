"""Groups in the source, written in many ways: one mean for all (ADV01), rows of others (ADV02), signs and shapes."""

import pytest
from doctor.illnesses.read_script import codes_in

from assay.doctor.examples.scripts import GRPO

SHAPED = "rewards = rewards_of(ids[:, start:]).view(-1, 8)"
CENTRED = "advantages = (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std(dim=1, keepdim=True) + 1e-4)"
COLUMN = "advantages = advantages.view(-1, 1)"


def found(text, folder, *codes):
    return codes_in(text, folder, codes)


def credited(rewards=SHAPED, advantages=CENTRED, column=COLUMN):
    text = GRPO
    for old, new in ((SHAPED, rewards), (CENTRED, advantages), (COLUMN, column)):
        assert text.count(old) == 1
        text = text.replace(old, "\n    ".join(new.splitlines()))
    return text.replace("repeat_interleave(8", "repeat_interleave(GROUP").replace(
        "import torch\n", "import torch\n\nPROMPTS, GROUP = 4, 8\n", 1
    )


ONE_GROUP = {
    "as wide as all rows": ("rewards = rewards_of(ids[:, start:]).view(-1, PROMPTS * GROUP)", CENTRED),
    "one row": ("rewards = rewards_of(ids[:, start:]).view(1, -1)", CENTRED),
    "over every dimension": (
        "rewards = rewards_of(ids[:, start:]).view(-1, GROUP)",
        "advantages = rewards - rewards.mean()",
    ),
    "a sum over the list": (
        "scores = [judge(row) for row in [p for p in questions(step) for _ in range(GROUP)]]",
        "level = sum(scores) / len(scores)\nadvantages = torch.tensor([score - level for score in scores])",
    ),
    "a mean outside of the loop over groups": (
        "scores = [judge(row) for row in [p for p in questions(step) for _ in range(GROUP)]]",
        "advantages = []\nfor g in range(PROMPTS):\n    level = sum(scores) / len(scores)\n"
        "    for i in range(g * GROUP, (g + 1) * GROUP):\n        advantages.append(scores[i] - level)\n"
        "advantages = torch.tensor(advantages)",
    ),
}
BY_GROUP = {
    "as wide as a group": ("rewards = rewards_of(ids[:, start:]).view(-1, GROUP)", CENTRED),
    "prompts by group": ("rewards = rewards_of(ids[:, start:]).view(PROMPTS, GROUP)", CENTRED),
    "a slice of the list": (
        "scores = [judge(row) for row in [p for p in questions(step) for _ in range(GROUP)]]",
        "advantages = []\nfor g in range(PROMPTS):\n    chunk = scores[g * GROUP:(g + 1) * GROUP]\n"
        "    level = sum(chunk) / len(chunk)\n    advantages.extend(score - level for score in chunk)\n"
        "advantages = torch.tensor(advantages)",
    ),
    "members by number": (
        "scores = [judge(row) for row in [p for p in questions(step) for _ in range(GROUP)]]",
        "advantages = []\nfor g in range(PROMPTS):\n    member = range(g * GROUP, (g + 1) * GROUP)\n"
        "    level = sum(scores[i] for i in member) / GROUP\n"
        "    for i in member:\n        advantages.append(scores[i] - level)\nadvantages = torch.tensor(advantages)",
    ),
}
IMPORTS = ("import prompts_of, rewards_of", "import judge, prompts_of, questions, rewards_of")


@pytest.mark.parametrize("form", ONE_GROUP)
def test_one_mean_for_the_answers_to_all_prompts_is_named(form, tmp_path):
    assert found(credited(*ONE_GROUP[form]).replace(*IMPORTS), tmp_path, "ADV01") == {"ADV01"}


@pytest.mark.parametrize("form", BY_GROUP)
def test_a_mean_for_each_prompt_is_silent(form, tmp_path):
    assert found(credited(*BY_GROUP[form]).replace(*IMPORTS), tmp_path, "ADV01") == set()


ONE_PROMPT = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from task import encode, reward

tokenizer = AutoTokenizer.from_pretrained("tiny")
policy = AutoModelForCausalLM.from_pretrained("tiny")
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)

for question in ["a", "b"]:
    ENCODED
    ids = policy.generate(GIVEN, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, num_return_sequences=8)
    start = WIDTH
    rewards = torch.tensor([reward(text) for text in tokenizer.batch_decode(ids[:, start:])])
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    logits = policy(ids).logits[:, start - 1:-1].float()
    logprobs = torch.log_softmax(logits, -1).gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1)
    ends = (ids[:, start:] == tokenizer.eos_token_id).int()
    mask = (ends.cumsum(1) - ends == 0).float()
    loss = -(logprobs * advantages[:, None] * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
GIVEN = {
    "one text": ('given = tokenizer(question, return_tensors="pt")', "**given", "given.input_ids.shape[1]"),
    "one text in a list": (
        'given = tokenizer([question], return_tensors="pt", padding=True)',
        "**given",
        'given["input_ids"].shape[1]',
    ),
    "one chat": (
        'chat = [{"role": "user", "content": question}]\n'
        "    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)\n"
        '    given = tokenizer(text, return_tensors="pt", padding=True)',
        'given["input_ids"].repeat(8, 1)',
        'given["input_ids"].shape[1]',
    ),
    "one row of ids": ("given = torch.tensor([tokenizer.encode(question)])", "given", "given.shape[1]"),
    "by a tokenizer of which nothing is known": (
        'given = encode(question, return_tensors="pt").to("cuda")',
        'given["input_ids"].repeat(8, 1)',
        'given["input_ids"].shape[1]',
    ),
    "one text, repeated": (
        'given = tokenizer(question, return_tensors="pt")',
        'given["input_ids"].repeat(8, 1)',
        'given["input_ids"].shape[1]',
    ),
    "a dimension in front": (
        "given = torch.tensor(tokenizer.encode(question)).unsqueeze(0)",
        "input_ids=given",
        "given.shape[1]",
    ),
}


@pytest.mark.parametrize("form", GIVEN)
def test_all_answers_to_one_prompt_are_one_group(form, tmp_path):
    text = ONE_PROMPT
    for name, part in zip(("ENCODED", "GIVEN", "WIDTH"), GIVEN[form], strict=True):
        text = text.replace(name, part)
    by_group = text.replace("batch_decode(ids[:, start:])])", "batch_decode(ids[:, start:])]).view(-1, 8)").replace(
        "rewards.mean()) / (rewards.std()", "rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True)"
    )
    assert by_group != text
    assert found(text, tmp_path, "ADV01", "ADV02", "ALGN05") == set()
    assert found(by_group, tmp_path, "ADV01", "ADV02", "ALGN05") == set()


def test_several_prompts_of_one_call_are_not_one_group(tmp_path):
    given = ('given = tokenizer(pair_with(question), return_tensors="pt", padding=True)', "**given")
    text = (
        ONE_PROMPT.replace("ENCODED", given[0]).replace("GIVEN", given[1]).replace("WIDTH", "given.input_ids.shape[1]")
    )
    assert found(text.replace("import encode, reward", "import pair_with, reward"), tmp_path, "ADV01") == {"ADV01"}


NUMBERED = (
    "rewards = rewards_of(ids[:, start:])\nowner = torch.arange(len(rewards)) // GROUP\n"
    "level = torch.zeros(PROMPTS).index_add(0, owner, rewards) / GROUP"
)


@pytest.mark.parametrize(
    ("repeats", "codes"), [("repeat(GROUP, 1)", {"ADV02"}), ("repeat_interleave(GROUP, dim=0)", set())]
)
def test_rows_that_are_numbered_by_neighbours_want_prompts_repeated_in_place(repeats, codes, tmp_path):
    text = credited(NUMBERED, "advantages = rewards - level[owner]")
    assert text.count("repeat_interleave(GROUP, dim=0)") == 1
    assert found(text.replace("repeat_interleave(GROUP, dim=0)", repeats), tmp_path, "ADV02") == codes


ADDED = {
    "mean added": "rewards + rewards.mean(dim=1, keepdim=True)",
    "mean first": "rewards.mean(dim=1, keepdim=True) + rewards",
    "added and scaled": "(rewards + rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)",
}
NOT_ADDED = {
    "mean subtracted": "rewards - rewards.mean(dim=1, keepdim=True)",
    "mean taken away as a negative": "rewards + -rewards.mean(dim=1, keepdim=True)",
    "a mixture": "(0.9 * rewards + 0.1 * rewards.mean(1, keepdim=True)) - rewards.mean(1, keepdim=True)",
}


@pytest.mark.parametrize("form", ADDED)
def test_a_mean_that_is_added_is_named(form, tmp_path):
    assert found(credited(advantages=f"advantages = {ADDED[form]}"), tmp_path, "ADV05") == {"ADV05"}


@pytest.mark.parametrize("form", NOT_ADDED)
def test_a_mean_that_is_not_added_is_silent(form, tmp_path):
    assert found(credited(advantages=f"advantages = {NOT_ADDED[form]}"), tmp_path, "ADV05") == set()


STACKED = "rewards = torch.stack([row.float().mean() + row.numel() / 64 for row in ids[:, start:]]).view(-1, GROUP)"
STRETCHED = {
    "two columns too many": "advantages = advantages.view(-1).unsqueeze(-1).unsqueeze(-1)",
    "a view of three": "advantages = advantages.view(-1, 1).unsqueeze(1)",
}
FITTING = {
    "a column": "advantages = advantages.view(-1).unsqueeze(-1)",
    "a column by index": "advantages = advantages.view(-1)[:, None]",
}


@pytest.mark.parametrize("form", STRETCHED)
def test_advantages_that_stretch_the_tokens_are_named(form, tmp_path):
    assert found(credited(STACKED, column=STRETCHED[form]), tmp_path, "ADV08") == {"ADV08"}


@pytest.mark.parametrize("form", FITTING)
def test_advantages_in_a_column_fit_the_tokens(form, tmp_path):
    assert found(credited(STACKED, column=FITTING[form]), tmp_path, "ADV08") == set()


def test_a_script_that_asks_for_the_number_of_dimensions_is_left_alone(tmp_path):
    column = STRETCHED["two columns too many"]
    text = credited(STACKED, column=f"{column}\nif advantages.dim() == 3:\n    print('by token')")
    assert found(text, tmp_path, "ADV08") == set()
