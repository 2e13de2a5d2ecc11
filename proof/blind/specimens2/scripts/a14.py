import torch, math
import torch.nn as nn
from types import SimpleNamespace as NS

cfg = NS(vocab=16, width=32, prompt=3, new=5, n_prompts=4, n_samples=8, lr=3e-3, steps=45,
         temp_start=1.0, temp_end=0.5, temp_hold=12, clip_low=0.2, clip_high=0.28, seed=0)


def temperature_at(step):
    """hold, then cool down linearly"""
    if step < cfg.temp_hold:
        return cfg.temp_start
    f = (step - cfg.temp_hold) / (cfg.steps - cfg.temp_hold)
    return cfg.temp_start + f * (cfg.temp_end - cfg.temp_start)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        w = cfg.width
        self.emb = nn.Embedding(cfg.vocab, w)
        self.pos = nn.Parameter(torch.randn(cfg.prompt + cfg.new, w) * 0.02)
        self.attn = nn.MultiheadAttention(w, 4, batch_first=True)
        self.ff = nn.Sequential(nn.LayerNorm(w), nn.Linear(w, 3 * w), nn.SiLU(), nn.Linear(3 * w, w))
        self.ln = nn.LayerNorm(w)
        self.unemb = nn.Linear(w, cfg.vocab)

    def forward(self, tokens):
        n = tokens.shape[1]
        h = self.emb(tokens) + self.pos[:n]
        z = self.ln(h)
        block = torch.ones(n, n, dtype=torch.bool).triu(1)
        h = h + self.attn(z, z, z, attn_mask=block, need_weights=False)[0]
        return self.unemb(h + self.ff(h))


class Buffer(list):
    def stacked(self, key):
        return torch.stack([getattr(e, key) for e in self])


@torch.no_grad()
def explore(net, temp):
    buf = Buffer()
    for _ in range(cfg.n_prompts):
        prompt = torch.randint(0, cfg.vocab, (cfg.prompt,))
        toks = prompt.expand(cfg.n_samples, -1)
        for _ in range(cfg.new):
            nxt = torch.multinomial(torch.softmax(net(toks)[:, -1] / temp, -1), 1)
            toks = torch.cat([toks, nxt], 1)
        rew = grade(prompt, toks[:, cfg.prompt:])
        adv = (rew - rew.mean()) / (rew.std() + 1e-4)
        for t, r, a in zip(toks, rew, adv):
            buf.append(NS(toks=t, rew=r, adv=a))
    return buf


def grade(prompt, ans):
    centre = prompt.float().mean()
    return 1 - (ans - centre).abs().mean(1) / 8 - 0.25 * (ans[:, 1:] == ans[:, :-1]).float().mean(1)


def action_logp(net, toks, temp=cfg.temp_start):
    lp = torch.log_softmax(net(toks[:, :-1])[:, cfg.prompt - 1:] / temp, -1)
    return lp.gather(-1, toks[:, cfg.prompt:, None])[..., 0]


def main():
    torch.manual_seed(cfg.seed)
    torch.set_num_threads(1)
    net = Decoder()
    opt = torch.optim.Adam(net.parameters(), lr=cfg.lr)
    for step in range(cfg.steps):
        temp = temperature_at(step)
        buf = explore(net, temp)
        toks, adv = buf.stacked("toks"), buf.stacked("adv")[:, None]
        with torch.no_grad():
            old = action_logp(net, toks)
        for _ in range(2):
            ratio = (action_logp(net, toks) - old).exp()
            loss = -torch.min(ratio * adv, ratio.clamp(1 - cfg.clip_low, 1 + cfg.clip_high) * adv).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
        if step % 7 == 0:
            print(f"step {step} T {temp:.2f} reward {buf.stacked('rew').mean():.3f}")


main()
