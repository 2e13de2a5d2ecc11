"""Ends of rows that never reach the loss (MASK01), and prompts without padding (ALGN05), written in many ways."""

import pytest
from doctor.illnesses.read_script import codes_in

ROWS = """
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM, AutoTokenizer
from task import questions, reward

tokenizer = AutoTokenizer.from_pretrained("tiny")
policy = AutoModelForCausalLM.from_pretrained("tiny")
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)
eos = tokenizer.eos_token_id

for question in questions():
    prompt = tokenizer.encode(question)
    ids = torch.tensor([prompt])
    out = policy.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, temperature=1.0, top_k=0,
                          top_p=1.0, num_return_sequences=8)
    rows = []
    for row in out[:, ids.size(1):].tolist():
        if eos in row:
            row = CUT
        rows.append(row)
    longest = max(len(row) for row in rows)
    whole = torch.tensor([prompt + row + [tokenizer.pad_token_id] * (longest - len(row)) for row in rows])
    attention = torch.tensor([[1] * (len(prompt) + len(row)) + [0] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[0] * (len(prompt) - 1) + [1] * len(row) + [0] * (longest - len(row)) for row in rows])
    rewards = torch.tensor([reward(text) for text in tokenizer.batch_decode(TEXTS)])
    advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
    logits = policy(input_ids=whole, attention_mask=attention).logits[:, :-1].float()
    logprobs = torch.log_softmax(logits, -1).gather(-1, whole[:, 1:].unsqueeze(-1)).squeeze(-1)
    loss = -(logprobs * advantages[:, None] * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CUT_BEFORE = {
    "index": "row[:row.index(eos)]",
    "the attribute": "row[:row.index(tokenizer.eos_token_id)]",
    "from the start": "row[0:row.index(eos)]",
}
CUT_BEHIND = {
    "one more": "row[:row.index(eos) + 1]",
    "the end put back": "row[:row.index(eos)] + [eos]",
    "not cut": "list(row)",
}


def found(text, folder, *codes):
    return codes_in(text, folder, codes)


@pytest.mark.parametrize("form", CUT_BEFORE)
def test_rows_that_are_cut_before_their_end_are_named(form, tmp_path):
    text = ROWS.replace("CUT", CUT_BEFORE[form]).replace("TEXTS", "rows")
    assert found(text, tmp_path, "MASK01") == {"MASK01"}


@pytest.mark.parametrize("form", CUT_BEHIND)
def test_rows_that_keep_their_end_are_silent(form, tmp_path):
    text = ROWS.replace("CUT", CUT_BEHIND[form]).replace("TEXTS", "rows")
    assert found(text, tmp_path, "MASK01") == set()


def test_what_is_cut_for_its_text_alone_is_silent(tmp_path):
    text = ROWS.replace("CUT", "list(row)").replace("TEXTS", "[r[:r.index(eos)] if eos in r else r for r in rows]")
    assert found(text, tmp_path, "MASK01") == set()


def test_one_prompt_at_a_time_needs_no_mask_of_padding(tmp_path):
    text = ROWS.replace("CUT", "row[:row.index(eos) + 1]").replace("TEXTS", "rows")
    assert found(text, tmp_path, "ALGN05") == set()


PACKED = """
import torch
from task import rewards_of

EOS = 1

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(32, 16)
        self.out = torch.nn.Linear(16, 32)

    def forward(self, ids):
        return self.out(self.embed(ids))

net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(10):
    ids = torch.zeros(8, 1, dtype=torch.long)
    for _ in range(6):
        drawn = torch.multinomial(torch.softmax(net(ids)[:, -1], -1), 1)
        ids = torch.cat([ids, drawn], dim=1)
    targets = ids[:, 1:]
    advantages = rewards_of(targets)[:, None].expand(-1, 6)
    ended = (targets == EOS).long()
    inside = ended.cumsum(1) - ended == 0
    picked = MASK
    logprobs = torch.log_softmax(net(ids)[:, :-1].float(), -1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    loss = -(logprobs[picked] * advantages[picked]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("mask", ["inside & (targets != EOS)", "(targets != EOS) & inside", "targets != EOS"])
def test_tokens_that_are_picked_unless_they_are_the_end_are_named(mask, tmp_path):
    assert found(PACKED.replace("MASK", mask), tmp_path, "MASK01") == {"MASK01"}


@pytest.mark.parametrize("mask", ["inside", "inside & (ids[:, :-1] != EOS)", "inside | (targets != EOS)"])
def test_tokens_that_are_picked_with_the_end_are_silent(mask, tmp_path):
    assert found(PACKED.replace("MASK", mask), tmp_path, "MASK01") == set()
