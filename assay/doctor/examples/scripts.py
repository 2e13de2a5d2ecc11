"""Three small clean trainers as text. The example scripts of several illnesses are these with a line or two changed."""

GRPO = """
import copy
import torch
from transformers import AutoModelForCausalLM
from task import prompts_of, rewards_of

policy = AutoModelForCausalLM.from_pretrained("tiny")
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-6)

def score(model, ids, start):
    logits = model(ids).logits[:, start - 1 : -1].float()
    return torch.log_softmax(logits, dim=-1).gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1)

for step in range(100):
    prompts = prompts_of(step).repeat_interleave(8, dim=0)
    start = prompts.shape[1]
    ids = policy.generate(prompts, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=64)
    ends = (ids[:, start:] == policy.config.eos_token_id).int()
    mask = (ends.cumsum(dim=1) - ends == 0).float()
    rewards = rewards_of(ids[:, start:]).view(-1, 8)
    advantages = (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std(dim=1, keepdim=True) + 1e-4)
    advantages = advantages.view(-1, 1)
    with torch.no_grad():
        old = score(policy, ids, start)
        ref = score(reference, ids, start)
    for epoch in range(2):
        new = score(policy, ids, start)
        ratio = torch.exp(new - old)
        clipped = torch.clamp(ratio, 1 - 0.2, 1 + 0.2)
        gain = torch.min(ratio * advantages, clipped * advantages)
        kl = torch.exp(ref - new) - (ref - new) - 1
        loss = ((-gain + 0.04 * kl) * mask).sum() / mask.sum().clamp(min=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def with_change(old: str, new: str) -> str:
    """The script with one text replaced."""
    assert GRPO.count(old) == 1, old
    return GRPO.replace(old, new)


# the same with an update in parts: their losses are divided by the tokens of the whole batch
IN_PARTS = with_change(
    GRPO[GRPO.index("        new = score(") :],
    """        optimizer.zero_grad()
        tokens = mask.sum()
        parts = torch.arange(len(ids)).chunk(4)
        for rows in parts:
            new = score(policy, ids[rows], start)
            ratio = torch.exp(new - old[rows])
            clipped = torch.clamp(ratio, 1 - 0.2, 1 + 0.2)
            gain = torch.min(ratio * advantages[rows], clipped * advantages[rows])
            loss = (-gain * mask[rows]).sum() / tokens
            loss.backward()
        optimizer.step()
""",
)

# the same with log-probs of the whole sequence, where the mask leaves the prompt out
WHOLE = (
    GRPO.replace("logits[:, start - 1 : -1]", "logits[:, :-1]")
    .replace("ids[:, start:].unsqueeze(-1)", "ids[:, 1:].unsqueeze(-1)")
    .replace(
        "mask = (ends.cumsum(dim=1) - ends == 0).float()",
        "sampled = (ends.cumsum(dim=1) - ends == 0).int()\n"
        "    mask = torch.cat([torch.zeros_like(prompts), sampled], dim=1)[:, 1:].float()",
    )
)

GENERATE = """
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from task import batches, reward

model = AutoModelForCausalLM.from_pretrained("tiny")
tokenizer = AutoTokenizer.from_pretrained("tiny", padding_side="left", truncation_side="left")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
GROUP = 8

def logprobs_of(ids, attention, kept):
    logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1].float() / 0.7
    logprobs = logits.log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    return logprobs[:, -kept:]

for questions, answers in batches():
    chats = [[{"role": "user", "content": question}] for question in questions for _ in range(GROUP)]
    texts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False) for chat in chats]
    prompts = tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors="pt")
    model.eval()
    with torch.no_grad():
        ids = model.generate(**prompts, do_sample=True, temperature=0.7, top_k=0, top_p=1.0, max_new_tokens=64)
    model.train()
    completions = ids[:, prompts["input_ids"].shape[1]:]
    is_end = completions == tokenizer.eos_token_id
    mask = (is_end.cumsum(1) - is_end.long() == 0).float()
    attention = torch.cat([prompts["attention_mask"], mask.long()], dim=1)
    rewards = torch.tensor([reward(text, answers) for text in tokenizer.batch_decode(completions)]).view(-1, GROUP)
    advantages = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    logprobs = logprobs_of(ids, attention, completions.shape[1])
    ratio = torch.exp(logprobs - logprobs.detach())
    loss = -(ratio * advantages.view(-1, 1) * mask).sum() / mask.sum().clamp(min=1)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

LOOP = """
import torch
import torch.nn.functional as F
from task import GPT, batches, reward

model = GPT(vocabulary=64)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
GROUP, LENGTH, TEMPERATURE = 8, 16, 0.8

@torch.no_grad()
def sample(prompts):
    ids = prompts
    for _ in range(LENGTH):
        logits = model(ids)[:, -1] / TEMPERATURE
        weights = F.softmax(logits, dim=-1)
        ids = torch.cat([ids, torch.multinomial(weights, 1)], dim=1)
    return ids

for prompts in batches():
    prompts = prompts.repeat_interleave(GROUP, dim=0)
    ids = sample(prompts)
    completions = ids[:, prompts.shape[1]:]
    rewards = reward(completions).view(-1, GROUP)
    advantages = (rewards - rewards.mean(1, keepdim=True)).view(-1, 1)
    logits = model(ids)[:, prompts.shape[1] - 1:-1] / TEMPERATURE
    logprobs = F.log_softmax(logits, dim=-1).gather(-1, completions.unsqueeze(-1)).squeeze(-1)
    loss = -(logprobs * advantages).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
