"""Functional style: parameters are a dict, the model is a function, torch.func does the forward pass."""
import torch
import torch.nn as nn
from torch.func import functional_call

torch.set_num_threads(1)


def make_model(vocab, dim):
    class Lm(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(vocab, dim)
            self.decay = nn.Parameter(torch.linspace(-2, 3, dim))
            self.mix = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, vocab))

        def forward(self, ids):
            e = self.table(ids)
            a = torch.sigmoid(self.decay)
            state, outs = torch.zeros_like(e[:, 0]), []
            for t in range(ids.shape[1]):
                state = a * state + (1 - a) * e[:, t] * 2
                outs.append(state)
            return self.mix(torch.stack(outs, 1))
    return Lm()


def logp(model, params, ids, start):
    z = functional_call(model, params, (ids[:, :-1],))
    return torch.log_softmax(z, -1).gather(2, ids[:, 1:, None])[:, start - 1:, 0]


def sample(model, params, prompt, n):
    ids = prompt
    with torch.no_grad():
        for _ in range(n):
            z = functional_call(model, params, (ids,))[:, -1]
            ids = torch.cat([ids, torch.multinomial(z.softmax(-1), 1)], 1)
    return ids


def group_advantage(r, k):
    g = r.view(-1, k)
    return ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1, 1)


def surrogate(new, old, adv, eps):
    ratio = torch.exp(new - old)
    clipped = torch.clamp(ratio, 1 - eps, 1 + eps)
    return -(torch.min(ratio, clipped) * adv).mean()


def reward(ids, start):
    a = ids[:, start:]
    pairs = (a[:, 1:] + a[:, :-1]) % 3 == 0
    return pairs.float().mean(1) + (a[:, 0] == ids[:, start - 1]).float()


def main(vocab=12, dim=32, start=3, n=6, prompts=4, k=8, epochs=6, eps=0.05, lr=3e-3, steps=35):
    torch.manual_seed(19)
    model = make_model(vocab, dim)
    params = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    opt = torch.optim.Adam(list(params.values()), lr=lr)
    for step in range(steps):
        q = torch.randint(0, vocab, (prompts, start)).repeat_interleave(k, 0)
        ids = sample(model, params, q, n)
        r = reward(ids, start)
        adv = group_advantage(r, k)
        old = logp(model, params, ids, start).detach()
        for _ in range(epochs):
            loss = surrogate(logp(model, params, ids, start), old, adv, eps)
            grads = torch.autograd.grad(loss, list(params.values()))
            for p, g in zip(params.values(), grads):
                p.grad = g
            opt.step()
        if step % 5 == 4:
            print(step + 1, f"reward {r.mean():.3f} loss {loss.item():.4f}")


main()
