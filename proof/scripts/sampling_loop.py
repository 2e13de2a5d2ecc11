# grpo from scratch, sampling loop written by hand (gpt2 architecture + kv cache, no generate())
# log-probs are stored while sampling and used as the old log-probs
from types import SimpleNamespace
import copy, random

import torch
from torch.distributions import Categorical
from transformers import GPT2Config, GPT2LMHeadModel

cfg = SimpleNamespace(
    seed=7,
    iters=5,
    n_prompts=4,
    G=6,
    ppo_epochs=2,
    minibatch=12,
    max_new=7,
    max_prompt=6,
    temp=1.2,
    lr=2e-3,
    clip=0.2,
    kl_coef=0.02,
    ent_coef=0.001,
)

chars = "_.abcdefgh>"          # "_" is padding, "." is the end
stoi = {c: i for i, c in enumerate(chars)}
itos = {i: c for c, i in stoi.items()}
pad_id, eos_id = stoi["_"], stoi["."]


def tok(s):
    return [stoi[c] for c in s]


def detok(ids):
    out = ""
    for i in ids:
        if i == eos_id:
            return out + "."
        out += itos[i]
    return out


def get_prompts(n):
    # task: write the letter after ">" as often as you can, then stop
    res = []
    for _ in range(n):
        target = random.choice("abcd")
        filler = "".join(random.choice("efgh") for _ in range(random.randint(1, 6)))
        res.append(dict(text=filler + target + ">", target=target))
    return res


def left_pad(seqs):
    width = max(len(s) for s in seqs)
    ids = torch.full((len(seqs), width), pad_id)
    attn = torch.zeros(len(seqs), width, dtype=torch.long)
    for r, s in enumerate(seqs):
        ids[r, width - len(s):] = torch.tensor(s)
        attn[r, width - len(s):] = 1
    return ids, attn


def positions(attn):
    return (attn.cumsum(-1) - 1).clamp(min=0)


def score(text, target):
    r = sum(1.0 for c in text if c == target) / cfg.max_new
    if text.endswith("."):
        r += 0.3
    return r


@torch.no_grad()
def sample(model, ids, attn):
    bsz = ids.size(0)
    done = torch.zeros(bsz, dtype=torch.bool)
    toks, lps, masks = [], [], []
    past, cur, cur_attn = None, ids, attn
    pos = positions(attn)
    for t in range(cfg.max_new):
        out = model(cur, attention_mask=cur_attn, position_ids=pos, past_key_values=past, use_cache=True)
        past = out.past_key_values
        logits = out.logits[:, -1].float() / cfg.temp
        dist = Categorical(logits=logits)
        a = dist.sample()
        lp = dist.log_prob(a)
        alive = ~done
        a = torch.where(alive, a, torch.full_like(a, pad_id))
        toks.append(a)
        lps.append(lp * alive)
        masks.append(alive)
        done = done | (a == eos_id)
        cur = a[:, None]
        cur_attn = torch.cat([cur_attn, alive[:, None].long()], dim=1)
        pos = (cur_attn.sum(-1, keepdim=True) - 1).clamp(min=0)
    gen = torch.stack(toks, 1)
    return gen, torch.stack(lps, 1), torch.stack(masks, 1).float(), cur_attn


def logprobs_of(model, full, attn, gen):
    out = model(full, attention_mask=attn, position_ids=positions(attn))
    T = gen.size(1)
    logits = out.logits[:, -T - 1:-1].float() / cfg.temp
    dist = Categorical(logits=logits)
    return dist.log_prob(gen), dist.entropy()


def compute_advantage(r):
    r = r.reshape(cfg.n_prompts, cfg.G)
    adv = (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)
    return adv.flatten()


def build():
    conf = GPT2Config(
        vocab_size=len(chars), n_positions=32, n_embd=32, n_layer=2, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=eos_id, eos_token_id=eos_id,
    )
    return GPT2LMHeadModel(conf)


random.seed(cfg.seed)
torch.manual_seed(cfg.seed)
model = build()
ref = copy.deepcopy(model).eval()
for p in ref.parameters():
    p.requires_grad = False
opt = torch.optim.Adam(model.parameters(), lr=cfg.lr)
sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.5, total_iters=100)

for it in range(cfg.iters):
    batch = get_prompts(cfg.n_prompts)
    batch = [b for b in batch for _ in range(cfg.G)]
    ids, attn = left_pad([tok(b["text"])[-cfg.max_prompt:] for b in batch])
    model.eval()
    gen, old_lp, mask, attn_full = sample(model, ids, attn)
    model.train()
    full = torch.cat([ids, gen], dim=1)

    rewards = torch.tensor([score(detok(g), b["target"]) for g, b in zip(gen.tolist(), batch)])
    adv = compute_advantage(rewards)
    with torch.no_grad():
        ref_lp, _ = logprobs_of(ref, full, attn_full, gen)

    for ep in range(cfg.ppo_epochs):
        order = torch.randperm(len(batch))
        for start in range(0, len(batch), cfg.minibatch):
            mb = order[start:start + cfg.minibatch]
            m = mask[mb]
            lp, ent = logprobs_of(model, full[mb], attn_full[mb], gen[mb])
            A = adv[mb][:, None]
            logr = (lp - old_lp[mb]) * m
            r = logr.exp()
            pg = torch.max(-A * r, -A * r.clamp(1 - cfg.clip, 1 + cfg.clip))
            d = (ref_lp[mb] - lp) * m
            kl = d.exp() - 1 - d
            ntok = m.sum().clamp(min=1)
            loss = ((pg + cfg.kl_coef * kl) * m).sum() / ntok - cfg.ent_coef * (ent * m).sum() / ntok
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
    sched.step()
    print("iter %d | reward %.6f | loss %.10f | clipfrac %.4f" % (
        it, rewards.mean(), loss.item(), (((r - 1).abs() > cfg.clip).float() * m).sum() / ntok))

total = sum(p.detach().double().abs().sum() for p in model.parameters())
print("final %.10f" % total)
