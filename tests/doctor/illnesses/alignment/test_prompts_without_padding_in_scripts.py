"""generate() with a mask of ones (ALGN05): right for prompts of one length, wrong where their scoring hides padding."""

import pytest
from doctor.illnesses.read_script import codes_in

SCRIPT = """
import torch
from task import rewards_of, words
from transformers import LlamaConfig, LlamaForCausalLM

PAD, BOS, EOS, LENGTH = 0, 1, 2, 4
model = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=48))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

def rollouts(prompts):
    ids = model.generate(input_ids=prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0, top_p=1.0,
                         temperature=1.0, max_new_tokens=8, eos_token_id=EOS, pad_token_id=PAD)
    completions = ids[:, LENGTH:]
    ends = (completions == EOS).long()
    return ids, (ends.cumsum(1) - ends == 0).float()

for step in range(20):
    PROMPTS
    prompts = prompts.repeat_interleave(8, dim=0)
    ids, mask = rollouts(prompts)
    rewards = rewards_of(ids).view(-1, 8)
    advantages = ((rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-4)).view(-1, 1)
    attention = ATTENTION
    logits = model(input_ids=ids, attention_mask=attention).logits[:, LENGTH - 1:-1]
    logprobs = logits.log_softmax(-1).gather(-1, ids[:, LENGTH:, None]).squeeze(-1)
    loss = -(torch.exp(logprobs - logprobs.detach()) * advantages * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
DRAWN = "prompts = torch.randint(3, 32, (6, LENGTH))\n    prompts[:, 0] = BOS"
ONES = "torch.cat([torch.ones(len(ids), LENGTH), mask], 1).long()"
SOUND = {
    "a start token is written": (DRAWN, ONES),
    "ones like the prompt": (DRAWN, "torch.cat([torch.ones_like(prompts), mask.long()], 1)"),
    "new ones": (DRAWN, "torch.cat([mask.new_ones(prompts.shape), mask], 1).long()"),
    "a separator is written last": (
        "prompts = torch.randint(3, 32, (6, LENGTH))\n    prompts[:, -1] = 3",
        "torch.cat([torch.ones(prompts.shape), mask], 1).long()",
    ),
    "filled column by column": (
        "prompts = torch.full((6, LENGTH), BOS)\n    for t in range(1, LENGTH):\n        prompts[:, t] = words(t)",
        ONES,
    ),
}
FILLED = """prompts = torch.full((6, LENGTH), PAD)
    for i, row in enumerate(words(step)):
        prompts[i, LENGTH - len(row):] = torch.tensor(row)"""
FAULTY = {
    "compared with padding": (FILLED, "torch.cat([(prompts != PAD).long(), mask.long()], 1)"),
    "compared before": (
        FILLED + "\n    seen = (prompts != PAD).repeat_interleave(8, dim=0)",
        "torch.cat([seen.long(), mask.long()], 1)",
    ),
    "filled by hand": (
        FILLED + "\n    seen = torch.zeros(6, LENGTH)\n    for i, row in enumerate(words(step)):\n"
        "        seen[i, LENGTH - len(row):] = 1",
        "torch.cat([seen.repeat_interleave(8, dim=0), mask], 1).long()",
    ),
}


def found(form, folder):
    prompts, attention = form
    return codes_in(SCRIPT.replace("PROMPTS", prompts).replace("ATTENTION", attention), folder, ["ALGN05"])


@pytest.mark.parametrize("form", SOUND)
def test_prompts_of_one_length_are_drawn_after_with_a_mask_of_ones(form, tmp_path):
    assert found(SOUND[form], tmp_path) == set()


@pytest.mark.parametrize("form", FAULTY)
def test_a_mask_of_ones_on_prompts_whose_padding_is_hidden_later_is_found(form, tmp_path):
    assert found(FAULTY[form], tmp_path) == {"ALGN05"}
