import copy
import torch
from torch import Tensor, nn
from torch.nn import functional as F

torch.set_num_threads(1)


def attention_block(d: int) -> nn.ModuleDict:
    return nn.ModuleDict({"ln": nn.LayerNorm(d), "qkv": nn.Linear(d, 3 * d, bias=False), "o": nn.Linear(d, d, bias=False),
                          "ln2": nn.LayerNorm(d), "up": nn.Linear(d, 3 * d), "down": nn.Linear(3 * d, d)})


class LM(nn.Module):
    def __init__(self, vocab: int, d: int = 64, depth: int = 2, ctx: int = 20):
        super().__init__()
        self.emb, self.pos = nn.Embedding(vocab, d), nn.Embedding(ctx, d)
        self.layers = nn.ModuleList(attention_block(d) for _ in range(depth))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.emb(x) + self.pos.weight[: x.shape[1]]
        for l in self.layers:
            q, k, v = l["qkv"](l["ln"](h)).chunk(3, -1)
            h = h + l["o"](F.scaled_dot_product_attention(q, k, v, is_causal=True))
            h = h + l["down"](F.silu(l["up"](l["ln2"](h))))
        return self.head(self.norm(h))


def gather_logp(model: LM, seq: Tensor, start: int) -> Tensor:
    logits = model(seq[:, :-1])[:, start - 1:]
    return logits.gather(-1, seq[:, start:, None]).squeeze(-1) - logits.logsumexp(-1)


def policy_term(logp: Tensor, old: Tensor, adv: Tensor, eps: float) -> Tensor:
    """The clipped surrogate, written by sign of the advantage; saves one tensor."""
    r = (logp - old).exp()
    bounded = torch.where(adv < 0, r.clamp(max=1 + eps), r.clamp(min=1 - eps))
    return bounded * adv


def kl_term(logp: Tensor, ref: Tensor) -> Tensor:
    x = ref - logp
    return x.exp() - x - 1


def sample(model: LM, prompt: Tensor, n: int, eos: int) -> tuple[Tensor, Tensor]:
    seq, alive, valid = prompt, torch.ones(len(prompt), dtype=torch.bool), []
    with torch.no_grad():
        for _ in range(n):
            nxt = torch.distributions.Categorical(logits=model(seq)[:, -1]).sample()
            nxt = torch.where(alive, nxt, eos)
            valid.append(alive)
            alive = alive & (nxt != eos)
            seq = torch.cat((seq, nxt[:, None]), 1)
    return seq, torch.stack(valid, 1).float()


def reward(seq: Tensor, valid: Tensor, start: int, eos: int) -> Tensor:
    body = valid * (seq[:, start:] != eos)
    same = (seq[:, start:] % 3 == seq[:, :1] % 3).float() * body
    return same.sum(1) / body.sum(1).clamp(min=1) + 0.3 * (body.sum(1) < valid.sum(1)).float()


def run(seed=6, vocab=22, prompts=6, group=8, plen=3, n=8, steps=20, epochs=4, lr=1.5e-3, eps=0.2, beta=0.01):
    torch.manual_seed(seed)
    eos = vocab - 1
    model = LM(vocab)
    ref = copy.deepcopy(model).eval().requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=lr)
    for s in range(steps):
        p = torch.randint(0, eos, (prompts, plen)).repeat_interleave(group, 0)
        seq, valid = sample(model, p, n, eos)
        r = reward(seq, valid, plen, eos)
        rg = r.view(prompts, group)
        adv = ((rg - rg.mean(1, keepdim=True)) / (rg.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        with torch.no_grad():
            old, base = gather_logp(model, seq, plen), gather_logp(ref, seq, plen)
        for _ in range(epochs):
            lp = gather_logp(model, seq, plen)
            obj = policy_term(lp, old, adv, eps) - beta * kl_term(lp, base)
            loss = -(obj * valid).sum() / valid.sum()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        if s % 3 == 0:
            ratio = (lp - old).exp()[valid.bool()]
            print(f"{s} reward {r.mean():.3f} ratio {ratio.min():.2f}..{ratio.max():.2f} kl {(kl_term(lp, base) * valid).sum() / valid.sum():.3f}")
    print("end", r.mean().item())


if __name__ == "__main__":
    run()
