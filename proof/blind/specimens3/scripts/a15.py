# %% [markdown]
# Toy GRPO on a randomly initialised GPT-2. Prompts are little words, the model
# should answer with letters that come from the word.

# %%
import random

import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(7)
rng = random.Random(7)

# %%
LETTERS = "abcdefghij"
PAD, BOS, EOS = 0, 1, 2
stoi = {c: i + 3 for i, c in enumerate(LETTERS)}
itos = {i: c for c, i in stoi.items()}
VOCAB = 3 + len(LETTERS)


def encode_batch(words):
    rows = [[BOS] + [stoi[c] for c in w] for w in words]
    width = max(len(r) for r in rows)
    ids = torch.full((len(rows), width), PAD)
    att = torch.zeros_like(ids)
    for k, r in enumerate(rows):
        ids[k, width - len(r):] = torch.tensor(r)
        att[k, width - len(r):] = 1
    return ids, att


def decode(ids):
    out = []
    for t in ids.tolist():
        if t == EOS:
            break
        out.append(itos.get(t, "?"))
    return "".join(out)


# %%
cfg = GPT2Config(vocab_size=VOCAB, n_positions=48, n_embd=48, n_layer=2, n_head=4,
                 resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                 bos_token_id=BOS, eos_token_id=EOS, pad_token_id=PAD)
model = GPT2LMHeadModel(cfg)
with torch.no_grad():
    model.transformer.wpe.weight.mul_(12)
    model.transformer.wte.weight.mul_(6)
model.eval()
opt = torch.optim.AdamW(model.parameters(), lr=1.5e-3, weight_decay=0.0)

# %%
P, G, NEW = 4, 8, 8


def score(word, text):
    if not text:
        return -0.5
    inside = sum(c in word for c in text) / len(text)
    return inside + 0.05 * len(text)


def completion_logps(seq, att, start):
    logits = model(seq, attention_mask=att).logits[:, start - 1:-1]
    lp = F.log_softmax(logits.float(), -1)
    return lp.gather(-1, seq[:, start:, None]).squeeze(-1)


# %%
for it in range(24):
    words = []
    for _ in range(P):
        n = rng.choice([2, 3, 5, 9])
        words.append("".join(rng.choice(LETTERS) for _ in range(n)))
    batch = [w for w in words for _ in range(G)]
    ids, att = encode_batch(batch)
    with torch.no_grad():
        seq = model.generate(ids, attention_mask=att, max_new_tokens=NEW, do_sample=True,
                             temperature=1.0, top_k=0, top_p=1.0,
                             pad_token_id=PAD, eos_token_id=EOS)
    start = ids.shape[1]
    comp = seq[:, start:]
    ended = (comp == EOS).long().cumsum(1)
    cmask = ((ended - (comp == EOS).long()) == 0).float()
    full = torch.cat([att, cmask.long()], 1)

    rew = torch.tensor([score(w, decode(c)) for w, c in zip(batch, comp)])
    r = rew.view(P, G)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1, 1)

    with torch.no_grad():
        old = completion_logps(seq, full, start)
    for _ in range(2):
        lp = completion_logps(seq, full, start)
        ratio = torch.exp(lp - old)
        obj = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
        loss = -((obj * cmask).sum(1) / cmask.sum(1)).mean()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    if it % 4 == 0:
        print(f"it {it:3d} reward {rew.mean():.3f} loss {loss.item():+.4f} len {cmask.sum(1).mean():.2f}")
