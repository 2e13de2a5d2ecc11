"""Sound scripts that look like what the checks of masks, precision and draws hunt."""

import pytest
from doctor.illnesses.read_script import edit_script, likely_codes_in

FIXED = """
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer
tok = AutoTokenizer.from_pretrained("gpt2", padding_side="left")
tok.pad_token = tok.eos_token
policy = AutoModelForCausalLM.from_pretrained("gpt2")
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)
def score(ids, attention, start):
    logits = policy(ids, attention_mask=attention).logits[:, start - 1 : -1].float()
    return F.log_softmax(logits, dim=-1).gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1)
for prompts in [["a", "b"]]:
    enc = tok(prompts, return_tensors="pt", padding=True)
    start = enc.input_ids.shape[1]
    with torch.no_grad():
        drawn = dict(do_sample=True, top_k=0, num_return_sequences=4)
        ids = policy.generate(**enc, **drawn, max_new_tokens=16, min_new_tokens=16)
    attention = torch.cat([enc.attention_mask.repeat_interleave(4, 0), torch.ones_like(ids[:, start:])], 1)
    rewards = torch.tensor([float(len(t)) for t in tok.batch_decode(ids[:, start:], skip_special_tokens=True)])
    groups = rewards.view(-1, 4)
    adv = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-4)).view(-1)
    loss = -(score(ids, attention, start) * adv[:, None]).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
ANY_LENGTH = ("max_new_tokens=16, min_new_tokens=16", "max_new_tokens=16")
LOSS = "    loss = -(score(ids, attention, start) * adv[:, None]).mean()\n"
REWARDS = "    rewards = "
ENDED = "    ended = (ids[:, start:] == tok.eos_token_id).int()\n"

SOUND = {
    "answers of one length": FIXED,
    "no end token": edit_script(FIXED, (ANY_LENGTH[0], "max_new_tokens=16, eos_token_id=None")),
    "rows cut at their end": edit_script(
        FIXED,
        ANY_LENGTH,
        (
            LOSS,
            """    losses = []
    for row, a, att in zip(ids, adv, attention):
        end = (row[start:] == tok.eos_token_id).nonzero()
        stop = start + int(end[0]) + 1 if len(end) else len(row)
        losses.append(-(score(row[None, :stop], att[None, :stop], start) * a).mean())
    loss = torch.stack(losses).mean()
""",
        ),
    ),
    "weights of 0": edit_script(
        FIXED,
        ANY_LENGTH,
        (REWARDS, ENDED + "    weight = torch.where(ended.cumsum(1) - ended > 0, 0.0, 1.0)\n" + REWARDS),
        (LOSS, "    loss = -(score(ids, attention, start) * adv[:, None] * weight).sum() / weight.sum()\n"),
    ),
    "log-probs set to 0 after the end": edit_script(
        FIXED,
        ANY_LENGTH,
        (
            LOSS,
            """    lp = score(ids, attention, start)
    for row in range(len(lp)):
        seen = (ids[row, start:] == tok.eos_token_id).nonzero()
        if len(seen):
            lp[row, int(seen[0]) + 1 :] = 0
    loss = -(lp.sum(1) * adv).mean()
""",
        ),
    ),
    "float32 copies that are stepped": edit_script(
        FIXED,
        ('from_pretrained("gpt2")\n', 'from_pretrained("gpt2", torch_dtype=torch.bfloat16)\n'),
        (
            "optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)",
            "masters = [p.detach().clone().float().requires_grad_() for p in policy.parameters()]\n"
            "optimizer = torch.optim.AdamW(masters, lr=1e-6)",
        ),
        (
            "    optimizer.step()\n",
            """    for master, p in zip(masters, policy.parameters()):
        master.grad, p.grad = p.grad.float(), None
    optimizer.step()
    with torch.no_grad():
        for master, p in zip(masters, policy.parameters()):
            p.copy_(master)
""",
        ),
    ),
    "exponential noise below the probabilities": """
import torch
from transformers import AutoModelForCausalLM
policy = AutoModelForCausalLM.from_pretrained("gpt2")
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)
def pick(probs, q):
    return torch.argmax(probs / q, dim=-1, keepdim=True).to(dtype=torch.int)
def sample(logits, q=None):
    probs = torch.softmax(logits, dim=-1)
    if q is None:
        q = torch.empty_like(probs).exponential_(1)
    return pick(probs, q)
def roll(ids, rng):
    with torch.no_grad():
        for _ in range(8):
            logits = policy(ids).logits[:, -1]
            q = torch.empty((ids.size(0), 50257), device=ids.device).exponential_(1, generator=rng)
            ids = torch.cat([ids, sample(logits, q=q)], -1)
    return ids
def train(prompt, advantages, rng):
    ids = roll(prompt, rng)
    logp = torch.log_softmax(policy(ids).logits[:, :-1], -1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    loss = -(logp[:, prompt.size(1) - 1 :].mean(1) * advantages).mean()
    loss.backward()
    optimizer.step()
""",
}
CODES = ["MASK02", "MASK04", "OPT01", "SAMP04", "ADV08"]


@pytest.mark.parametrize("form", SOUND)
def test_sound_scripts_are_left_alone(form, tmp_path):
    assert likely_codes_in(SOUND[form], tmp_path, CODES) == set()


def test_answers_of_any_length_without_a_mask_are_found(tmp_path):
    assert "MASK02" in likely_codes_in(edit_script(FIXED, ANY_LENGTH), tmp_path, CODES)


def test_the_likeliest_token_is_found_without_the_noise(tmp_path):
    text = SOUND["exponential noise below the probabilities"].replace("torch.argmax(probs / q,", "torch.argmax(probs,")
    assert likely_codes_in(text, tmp_path, CODES) == {"SAMP04"}
