"""Losses that nothing masks: a finding where rows end at different places and the whole way was followed."""

import pytest

from assay.doctor.examples.scripts import GRPO, LOOP
from tests.doctor.illnesses.read_script import edit_script, likely_codes_in

NO_MASK = (
    ("((-gain + 0.04 * kl) * mask).sum() / mask.sum().clamp(min=1)", "(-gain + 0.04 * kl).mean()"),
    ("    ends = (ids[:, start:] == policy.config.eos_token_id).int()\n", ""),
    ("    mask = (ends.cumsum(dim=1) - ends == 0).float()\n", ""),
)
SUMMED = (
    (
        "gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1)",
        "gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1).sum(1)",
    ),
    ("advantages = advantages.view(-1, 1)", "advantages = advantages.view(-1)"),
)
LOOP_WITH_ENDS = edit_script(
    LOOP, ("GROUP, LENGTH, TEMPERATURE = 8, 16, 0.8", "GROUP, LENGTH, TEMPERATURE, EOS = 8, 16, 0.8, 2")
)
ENCODED = """
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer
from task import episodes

model = AutoModelForCausalLM.from_pretrained("tiny")
tokenizer = AutoTokenizer.from_pretrained("tiny")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
for texts, rewards in episodes():
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    logits = model(batch.input_ids, attention_mask=batch.attention_mask).logits[:, :-1]
    chosen = F.log_softmax(logits, dim=-1).gather(-1, batch.input_ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    weights = torch.tensor([float(reward) for reward in rewards])
    loss = -(chosen * weights[:, None]).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(
    ("script", "changes", "expected"),
    {
        "generate, with a mask": (GRPO, [], set()),
        "generate, without": (GRPO, NO_MASK, {"MASK02"}),
        "sums of rows": (GRPO, [*NO_MASK, *SUMMED], {"MASK02"}),
        "log-probs that are masked before they are summed": (
            GRPO,
            [NO_MASK[0], *SUMMED, (".sum(1)\n", "\n"),
             ("        ratio =", "        new = (new * mask).sum(1)\n        ratio ="),
             ("        ref =", "        old = (old * mask).sum(1)\n        ref ="),
             ("ref = score(reference, ids, start)", "ref = (score(reference, ids, start) * mask).sum(1)")],
            set(),
        ),
        "advantages that may hold a mask": (
            GRPO,
            [NO_MASK[0], ("advantages = advantages.view(-1, 1)", "advantages = advantages.view(-1, 1) * mask")],
            set(),
        ),
        "rows that never end": (GRPO, [*NO_MASK, ("max_new_tokens=64", "max_new_tokens=64, min_new_tokens=64")], set()),
        "one row": (
            GRPO, [*NO_MASK, ("prompts_of(step).repeat_interleave(8, dim=0)", "prompts_of(step).unsqueeze(0)")], set()
        ),
        "a fixed length": (LOOP, [], set()),
        "a loop, and an end token": (LOOP_WITH_ENDS, [], {"MASK02"}),
        "padded by a tokenizer": (ENCODED, [], {"MASK04"}),
        "padded, and ignored": (
            ENCODED,
            [("F.log_softmax(logits, dim=-1).gather(-1, batch.input_ids[:, 1:].unsqueeze(-1)).squeeze(-1)",
              "-F.cross_entropy(logits.transpose(1, 2), batch.input_ids[:, 1:], reduction='none', ignore_index=0)")],
            set(),
        ),
        "one text after the other": (
            ENCODED, [("batch = tokenizer(texts, padding=True,", "batch = tokenizer(texts,")], set()
        ),
        "masked later": (
            ENCODED,
            [("loss = -(chosen * weights[:, None]).mean()",
              "loss = -(chosen * weights[:, None])[batch.attention_mask[:, 1:].bool()].mean()")],
            set(),
        ),
    }.values(),
)  # fmt: skip
def test_a_loss_without_a_mask_is_reported_where_rows_end_at_different_places(script, changes, expected, tmp_path):
    assert likely_codes_in(edit_script(script, *changes), tmp_path, ["MASK02", "MASK04"]) == expected
