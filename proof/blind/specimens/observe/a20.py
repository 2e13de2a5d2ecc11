import copy
import itertools
import random

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import assay

EOS = 1
PAD = EOS
GROUP, ROWS, MAX_NEW, BETA, TEMP = 4, 24, 6, 0.05, 1.0
rng = random.Random(7)
torch.manual_seed(7)

config = GPT2Config(
    vocab_size=10, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    bos_token_id=None, eos_token_id=EOS, pad_token_id=PAD,
)  # fmt: skip
policy = GPT2LMHeadModel(config)
with torch.no_grad():
    policy.transformer.wpe.weight.mul_(20.0)
    policy.transformer.wte.weight.mul_(8.0)
reference = copy.deepcopy(policy).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=2e-3, weight_decay=0.0)


def questions():
    while True:
        yield [rng.randrange(2, 10) for _ in range(rng.randint(1, 6))]


def pad_left(rows):
    width = max(len(r) for r in rows)
    ids = torch.tensor([[PAD] * (width - len(r)) + r for r in rows])
    keep = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
    return ids, keep


def positions(attention):
    return (attention.cumsum(-1) - 1).clamp(min=0)


@torch.no_grad()
def generate(model, ids, attention):
    done = torch.zeros(len(ids), dtype=torch.bool)
    start = ids.shape[1]
    for _ in range(MAX_NEW):
        logits = model(input_ids=ids, attention_mask=attention, position_ids=positions(attention)).logits[:, -1]
        nxt = torch.multinomial(torch.softmax(logits / TEMP, -1), 1)[:, 0]
        nxt = torch.where(done, PAD, nxt)
        ids = torch.cat([ids, nxt[:, None]], 1)
        attention = torch.cat([attention, (~done).long()[:, None]], 1)
        done |= nxt == EOS
    return ids[:, start:], attention[:, start:], done


def per_token_logps(model, ids, attention, n):
    out = model(input_ids=ids, attention_mask=attention, position_ids=positions(attention))
    logits = out.logits[:, :-1][:, -n:]
    return torch.log_softmax(logits / TEMP, -1).gather(-1, ids[:, -n:, None])[..., 0]


def reward(question, answer):
    body = [t for t in answer if t != EOS]
    known = sum(t in question for t in body) / max(len(body), 1)
    return known + (0.5 if answer and answer[-1] == EOS else 0.0)


stream = (q for q in questions() for _ in range(GROUP))
for step in range(1, 11):
    batch = list(itertools.islice(stream, ROWS))
    prompt_ids, prompt_keep = pad_left(batch)
    completion, keep, done = generate(policy, prompt_ids, prompt_keep)
    answers = [c[k.bool()].tolist() for c, k in zip(completion, keep)]
    rewards = torch.tensor([reward(q, a) for q, a in zip(batch, answers)])
    grouped = rewards.view(-1, GROUP)
    advantages = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)).view(-1)

    input_ids = torch.cat([prompt_ids, completion], 1)
    attention = torch.cat([prompt_keep, keep], 1)
    n = completion.shape[1]
    with torch.no_grad():
        ref_logps = per_token_logps(reference, input_ids, attention, n)
    logps = per_token_logps(policy, input_ids, attention, n)
    logps.retain_grad()
    ratio = torch.exp(logps - logps.detach())
    delta = ref_logps - logps
    kl = torch.exp(delta) - delta - 1
    token_loss = -ratio * advantages[:, None] + BETA * kl
    loss = ((token_loss * keep).sum(1) / keep.sum(1)).mean()
    optimizer.zero_grad()
    loss.backward()
    assay.observe(
        step=step, update=0, tokens=completion, mask=keep, prompt_tokens=prompt_ids, prompt_mask=prompt_keep,
        input_ids=input_ids, attention_mask=attention, new_logprobs=logps.detach(), old_logprobs=logps.detach(),
        ref_logprobs=ref_logps, kl=kl.detach(), gradients=logps.grad, rewards=rewards, advantages=advantages,
        group_ids=torch.arange(ROWS) // GROUP, loss=loss.item(), finished=done, temperature=TEMP, kl_coef=BETA,
        kl_estimator="k3", kl_placement="loss", objective="grpo", std="sample", advantage_epsilon=1e-4,
        eos_ids=[EOS], pad_id=PAD, max_tokens=MAX_NEW, group_size=GROUP, model=policy if step < 4 else None,
    )  # fmt: skip
    torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    print(f"step {step} reward {rewards.mean():.3f} kl {(kl * keep).sum() / keep.sum():.4f}")
