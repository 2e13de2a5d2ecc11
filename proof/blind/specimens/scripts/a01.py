"""GRPO on a toy arithmetic-flavoured corpus: answer with digits that are larger than the last digit of the question."""
import random

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(11)
random.seed(11)

PAD, BOS, EOS = 0, 1, 2
CHARS = "0123456789+="
STOI = {c: i + 3 for i, c in enumerate(CHARS)}
ITOS = {i: c for c, i in STOI.items()}
VOCAB = len(CHARS) + 3

GROUP = 8
PROMPTS = 6
MAX_NEW = 7
BETA = 0.0
CLIP = 0.2


def new_model():
    cfg = GPT2Config(vocab_size=VOCAB, n_positions=48, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.0,
                     embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD)
    return GPT2LMHeadModel(cfg)


def question():
    n = random.randint(1, 5)
    return "+".join(str(random.randint(0, 9)) for _ in range(n)) + "="


def encode_left(texts):
    rows = [[BOS] + [STOI[c] for c in t] for t in texts]
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), PAD)
    att = torch.zeros(len(rows), width, dtype=torch.long)
    for i, r in enumerate(rows):
        ids[i, width - len(r):] = torch.tensor(r)
        att[i, width - len(r):] = 1
    return ids, att


def score(q, answer):
    last = int(q[-2])
    if not answer:
        return -0.5
    good = sum(1.0 for c in answer if c.isdigit() and int(c) >= last)
    return good / len(answer)


def completion_logps(model, ids, att, n_prompt):
    out = model(input_ids=ids, attention_mask=att)
    logits = out.logits[:, n_prompt - 1:-1].float()
    target = ids[:, n_prompt:]
    return torch.gather(F.log_softmax(logits, -1), 2, target.unsqueeze(-1)).squeeze(-1)


model = new_model()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)

for it in range(20):
    qs = [q for q in (question() for _ in range(PROMPTS)) for _ in range(GROUP)]
    p_ids, p_att = encode_left(qs)
    model.eval()
    with torch.no_grad():
        seq = model.generate(input_ids=p_ids, attention_mask=p_att, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                             max_new_tokens=MAX_NEW, pad_token_id=PAD, eos_token_id=EOS)
    n_p = p_ids.shape[1]
    comp = seq[:, n_p:]
    ended = (comp == EOS).int().cumsum(1)
    keep = ((ended - (comp == EOS).int()) == 0).float()
    att = torch.cat([p_att, keep.long()], 1)

    rewards = []
    for q, row, k in zip(qs, comp.tolist(), keep.tolist()):
        text = "".join(ITOS.get(t, "?") for t, m in zip(row, k) if m and t != EOS)
        rewards.append(score(q, text))
    r = torch.tensor(rewards).view(PROMPTS, GROUP)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).reshape(-1, 1)

    with torch.no_grad():
        old = completion_logps(model, seq, att, n_p)
    model.train()
    for _ in range(2):
        new = completion_logps(model, seq, att, n_p)
        ratio = (new - old).exp()
        surrogate = torch.min(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv)
        loss = -((surrogate * keep).sum(1) / keep.sum(1)).mean()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    if it % 3 == 0:
        print(f"iter {it:3d} reward {r.mean():.3f} len {keep.sum(1).mean():.2f} loss {loss.item():+.4f}")
print("final", r.mean().item())
