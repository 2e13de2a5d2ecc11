"""Chat prompts of a TRL run that end before the assistant's turn."""

from assay.adapters.trl_settings import ChatMarks


class Tokenizer:
    """Characters as ids, and a chat template like that of many models."""

    chat_template = "some"

    def apply_chat_template(self, turns, *, tokenize, add_generation_prompt):
        text = "".join(f"<|start|>{turn['role']}\n{turn['content']}<|end|>\n" for turn in turns)
        return text + "<|start|>assistant\n" * add_generation_prompt

    def decode(self, ids):
        return "".join(map(chr, ids))


def test_prompts_that_end_with_the_users_turn_are_counted():
    tokenizer = Tokenizer()
    marks = ChatMarks.of(tokenizer)
    turn = [{"role": "user", "content": "2 + 2"}]
    closed, opened = (
        tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=added) for added in (False, True)
    )
    prompts = [list(map(ord, text)) for text in (closed, opened, "no chat at all", closed + "<|start|>assistant")]
    assert marks.left_open(tokenizer, prompts) == 1


def test_a_tokenizer_without_a_template_has_no_marks():
    tokenizer = Tokenizer()
    tokenizer.chat_template = None
    assert ChatMarks.of(tokenizer) is None
