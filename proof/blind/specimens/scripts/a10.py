"""Four passes over each batch in shuffled minibatches of whole rows, as PPO does."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(100)
S = dict(vocab=20, eos=19, plen=2, tmax=8, prompts=8, group=8, passes=4, mb=16, lr=2e-4, clip=0.2, iters=14)


def make_net(d=64):
    return nn.ModuleDict(dict(emb=nn.Embedding(S["vocab"], d), gru=nn.GRU(d, d, 2, batch_first=True), ln=nn.LayerNorm(d), out=nn.Linear(d, S["vocab"])))


def apply(net, ids):
    h, _ = net["gru"](net["emb"](ids))
    return net["out"](net["ln"](h))


def rollout(net, prompts):
    ids, stop = prompts, torch.zeros(len(prompts), dtype=torch.bool)
    with torch.no_grad():
        lps, masks = [], []
        for _ in range(S["tmax"]):
            dist = torch.distributions.Categorical(logits=apply(net, ids)[:, -1])
            a = dist.sample()
            lps.append(dist.log_prob(a))
            masks.append((~stop).float())
            a = torch.where(stop, torch.tensor(S["eos"]), a)
            stop = stop | (a == S["eos"])
            ids = torch.cat([ids, a[:, None]], 1)
    return ids, torch.stack(lps, 1), torch.stack(masks, 1)


def scores(ids, mask):
    y = ids[:, S["plen"]:]
    up = (y[:, 1:] > y[:, :-1]).float() * mask[:, 1:] * (y[:, 1:] != S["eos"])
    return up.sum(1).clamp(max=4) + 0.5 * ((y == S["eos"]).float() * mask).sum(1)


net = make_net()
optimizer = torch.optim.Adam(net.parameters(), lr=S["lr"], eps=1e-5)
for it in range(S["iters"]):
    prompts = torch.randint(0, 19, (S["prompts"], S["plen"])).repeat_interleave(S["group"], 0)
    ids, old, mask = rollout(net, prompts)
    r = scores(ids, mask)
    rg = r.view(S["prompts"], S["group"])
    adv = ((rg - rg.mean(1, keepdim=True)) / (rg.std(1, unbiased=False, keepdim=True) + 1e-5)).flatten()
    n = len(ids)
    for _ in range(S["passes"]):
        order = torch.randperm(n)
        for lo in range(0, n, S["mb"]):
            j = order[lo:lo + S["mb"]]
            lp = F.log_softmax(apply(net, ids[j, :-1])[:, S["plen"] - 1:], -1).gather(2, ids[j][:, S["plen"]:, None]).squeeze(2)
            ratio = torch.exp((lp - old[j]) * mask[j])
            a = adv[j, None]
            l1, l2 = -a * ratio, -a * ratio.clamp(1 - S["clip"], 1 + S["clip"])
            loss = (torch.maximum(l1, l2) * mask[j]).sum() / mask[j].sum()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
    print(it, "reward %.3f" % r.mean(), "clipped %.3f" % ((ratio - 1).abs() > S["clip"]).float().mean())
