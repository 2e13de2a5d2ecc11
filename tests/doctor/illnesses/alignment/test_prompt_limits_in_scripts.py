"""A limit on the length of prompts: how sure it is that a prompt from elsewhere is cut on the right."""

import pytest

from assay.doctor.examples.scripts import GENERATE
from tests.doctor.illnesses.read_script import edit_script, likely_codes_in

DEFAULT_SIDE = (', truncation_side="left"', "")
AS_TEXT = (
    "    texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]\n",
    "    texts = [question for question in questions for _ in range(GROUP)]\n",
)
DRAWN = (
    "for questions, answers in batches():\n",
    "for answers in range(9):\n    questions = [f'{randint(1, 9)} + 1 =']\n",
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    {
        "a chat within 512 tokens": ([DEFAULT_SIDE], {"ALGN07"}),
        "a plain question within 256": ([DEFAULT_SIDE, AS_TEXT, ("max_length=512", "max_length=256")], {"ALGN07"}),
        "a plain question within 512": ([DEFAULT_SIDE, AS_TEXT], set()),
        "a wide limit": ([DEFAULT_SIDE, ("max_length=512", "max_length=2048")], set()),
        "a side that is set later": (
            [DEFAULT_SIDE, ("GROUP = 8", "GROUP = 8\ntokenizer.truncation_side = 'left'")],
            set(),
        ),
        "numbers in a question": (
            [DEFAULT_SIDE, DRAWN, ("import torch\n", "import torch\nfrom random import randint\n")],
            set(),
        ),
    }.values(),
)
def test_a_limit_that_prompts_from_elsewhere_may_well_pass_is_reported(changes, expected, tmp_path):
    assert likely_codes_in(edit_script(GENERATE, *changes), tmp_path, ["ALGN07"]) == expected
