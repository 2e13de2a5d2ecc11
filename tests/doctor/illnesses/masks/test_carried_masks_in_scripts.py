"""Masks that a buffer, a record or a padded batch carries from where they are made to the loss."""

import pytest

from tests.doctor.illnesses.read_script import edit_script, likely_codes_in

CARRIED = """
import torch
import torch.nn.functional as F
from dataclasses import dataclass
from transformers import AutoModelForCausalLM, AutoTokenizer
from task import prompts_of, rewards_of

model = AutoModelForCausalLM.from_pretrained("tiny")
tokenizer = AutoTokenizer.from_pretrained("tiny")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

@dataclass
class Sample:
    ids: torch.Tensor
    attention: torch.Tensor
    action_mask: torch.Tensor
    advantages: torch.Tensor

def rollout(prompt):
    batch = tokenizer([prompt] * 8, return_tensors="pt")
    ids = model.generate(**batch, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=64)
    answers = ids[:, batch["input_ids"].size(1):]
    action_mask = (answers.ne(tokenizer.eos_token_id) & answers.ne(tokenizer.pad_token_id)).long()
    rewards = rewards_of(answers)
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
    return Sample(ids, ids.ne(tokenizer.pad_token_id).long(), action_mask, advantages)

for step in range(100):
    samples = [rollout(prompt) for prompt in prompts_of(step)]
    kept = {"ids": [], "attention": [], "action_mask": [], "advantages": []}
    for sample in samples:
        kept["ids"].append(sample.ids)
        kept["attention"].append(sample.attention)
        kept["action_mask"].append(sample.action_mask)
        kept["advantages"].append(sample.advantages)
    ids = torch.cat(kept["ids"], dim=0)
    mask = torch.cat(kept["action_mask"], dim=0)
    advantages = torch.cat(kept["advantages"], dim=0)
    logits = model(ids, attention_mask=torch.cat(kept["attention"], dim=0)).logits[:, :-1].float()
    logprobs = F.log_softmax(logits, dim=-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)[:, -mask.size(1):]
    loss = -(logprobs * advantages.unsqueeze(1) * mask).sum() / mask.sum().clamp(min=1)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
SOUND = edit_script(
    CARRIED,
    (
        "(answers.ne(tokenizer.eos_token_id) & answers.ne(tokenizer.pad_token_id)).long()",
        "((answers == tokenizer.eos_token_id).cumsum(1) - (answers == tokenizer.eos_token_id).long() == 0).long()",
    ),
)
WRITTEN = """torch.zeros_like(ids)
    action_mask[:, batch["input_ids"].size(1):] = 1
    action_mask[ids == tokenizer.pad_token_id] = 0
    action_mask = action_mask[:, 1:]"""
BY_HAND = edit_script(
    CARRIED,
    ("(answers.ne(tokenizer.eos_token_id) & answers.ne(tokenizer.pad_token_id)).long()", WRITTEN),
    ("[:, -mask.size(1):]", ""),
)
JOINED = "{name: torch.cat(parts, dim=0) for name, parts in kept.items()}"
SHARED = ("optimizer = torch", "tokenizer.pad_token = tokenizer.eos_token\noptimizer = torch")


@pytest.mark.parametrize(
    ("script", "changes", "expected"),
    {
        "without the end": (CARRIED, [], {"MASK01"}),
        "with the end": (SOUND, [], set()),
        "cut to a length": (CARRIED, [("    answers =", "    ids = ids[:, :512]\n    answers =")], {"MASK01"}),
        "written by hand, padding of its own": (BY_HAND, [], set()),
        "written by hand, padding is the end": (BY_HAND, [SHARED], {"MASK01"}),
        "put together by a comprehension": (
            CARRIED,
            [
                ("    ids = torch.cat(kept", f"    joined = {JOINED}\n    ids = torch.cat(kept"),
                ('torch.cat(kept["action_mask"], dim=0)', 'joined["action_mask"]'),
            ],
            {"MASK01"},
        ),
    }.values(),
)  # fmt: skip
def test_a_mask_is_known_wherever_it_was_carried_to(script, changes, expected, tmp_path):
    assert likely_codes_in(edit_script(script, *changes), tmp_path, ["MASK01", "MASK02", "MASK03"]) == expected
