import torch
import torch.nn as nn
from torch.func import functional_call


class CausalEncoder(nn.Module):
    def __init__(self, n_tokens, dim, n_layers, max_len):
        super().__init__()
        self.tokens = nn.Embedding(n_tokens, dim)
        self.register_buffer("timing", self._sinusoid(max_len, dim))
        self.register_buffer("blocked", torch.ones(max_len, max_len).triu(1).bool())
        layer = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, n_layers, enable_nested_tensor=False)
        self.readout = nn.Linear(dim, n_tokens)

    @staticmethod
    def _sinusoid(n, d):
        t = torch.arange(n).unsqueeze(1) / 100 ** (torch.arange(0, d, 2) / d)
        return torch.stack([t.sin(), t.cos()], -1).reshape(n, d)

    def forward(self, ids):
        n = ids.size(1)
        h = self.tokens(ids) + self.timing[:n]
        return self.readout(self.body(h, mask=self.blocked[:n, :n]))


class PolicyWithAnchor:
    """The trained policy, and the anchor that it is pulled towards."""

    def __init__(self, net):
        self.net = net
        self.anchor = {name: p.detach() for name, p in net.named_parameters()}

    def logits(self, ids):
        return self.net(ids)

    @torch.no_grad()
    def anchor_logits(self, ids):
        return functional_call(self.net, self.anchor, (ids,))


def pick(logits, ids, n_prompt):
    lp = logits[:, n_prompt - 1:-1].log_softmax(-1)
    return lp.gather(-1, ids[:, n_prompt:].unsqueeze(-1)).squeeze(-1)


@torch.no_grad()
def continue_(pol, ids, n):
    for _ in range(n):
        nxt = torch.multinomial(pol.logits(ids)[:, -1].softmax(-1), 1)
        ids = torch.cat([ids, nxt], 1)
    return ids


def alternation(ids, n_prompt):
    """+1 for every change of side (low half / high half) against the token before, in [0, 1]."""
    side = (ids >= 8).long()
    flips = (side[:, n_prompt:] != side[:, n_prompt - 1:-1]).float()
    return flips.mean(1)


def main(n_prompt=4, n_new=10, groups=4, size=6, beta=0.08, steps=24):
    torch.manual_seed(2)
    pol = PolicyWithAnchor(CausalEncoder(16, 32, 2, n_prompt + n_new))
    opt = torch.optim.Adam(pol.net.parameters(), lr=1.5e-3)
    for step in range(steps):
        q = torch.randint(16, (groups, n_prompt)).repeat_interleave(size, 0)
        ids = continue_(pol, q, n_new)
        rew = alternation(ids, n_prompt)
        by_group = rew.view(groups, size)
        adv = ((by_group - by_group.mean(1, True)) / (by_group.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        anchor_lp = pick(pol.anchor_logits(ids), ids, n_prompt)
        with torch.no_grad():
            old_lp = pick(pol.logits(ids), ids, n_prompt)
        for inner in range(2):
            lp = pick(pol.logits(ids), ids, n_prompt)
            ratio = (lp - old_lp).exp()
            surr = torch.min(adv * ratio, adv * ratio.clamp(0.8, 1.2))
            gap = anchor_lp - lp
            kl = gap.exp() - 1 - gap
            loss = (beta * kl - surr).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(pol.net.parameters(), 1.0)
            opt.step()
        if step % 4 == 0 or step == steps - 1:
            print(f"step {step}: reward={rew.mean():.3f} kl={kl.mean():.5f} loss={loss:.4f}")


main()
