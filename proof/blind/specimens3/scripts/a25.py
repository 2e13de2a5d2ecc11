import torch

# n-gram MLP language model, GRPO, everything inline

gen = torch.Generator().manual_seed(8)
V, CTX, E, H = 10, 3, 12, 64
PROMPTS, GROUP, NEW = 4, 4, 16

C = torch.randn(V, E, generator=gen).requires_grad_()
W1 = (torch.randn(CTX * E, H, generator=gen) * (1 / (CTX * E) ** 0.5)).requires_grad_()
b1 = torch.zeros(H, requires_grad=True)
W2 = (torch.randn(H, V, generator=gen) * 0.05).requires_grad_()
b2 = torch.zeros(V, requires_grad=True)
theta = [C, W1, b1, W2, b2]
m = [torch.zeros_like(t) for t in theta]
v = [torch.zeros_like(t) for t in theta]


def forward(ctx):                    # (..., CTX) -> (..., V)
    h = torch.tanh(C[ctx].flatten(-2) @ W1 + b1)
    return torch.log_softmax(h @ W2 + b2, -1)


for it in range(1, 61):
    start = torch.randint(0, V, (PROMPTS, CTX), generator=gen)
    rows = start.repeat_interleave(GROUP, 0)
    with torch.no_grad():
        for _ in range(NEW):
            nxt = torch.multinomial(forward(rows[:, -CTX:]).exp(), 1, generator=gen)
            rows = torch.cat([rows, nxt], 1)
    answer = rows[:, CTX:]

    # reward: steps of +1 or +2 around the clock
    move = (answer - rows[:, CTX - 1:-1]) % V
    reward = ((move == 1) | (move == 2)).float().sum(1)

    r = reward.view(PROMPTS, GROUP)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1)

    windows = rows.unfold(1, CTX, 1)[:, :-1]
    with torch.no_grad():
        old = forward(windows).gather(-1, answer[..., None]).squeeze(-1)
    for epoch in range(2):
        logp = forward(windows).gather(-1, answer[..., None]).squeeze(-1)
        ratio = (logp - old).exp()
        loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        grads = torch.autograd.grad(loss, theta)
        n = 2 * (it - 1) + epoch + 1
        with torch.no_grad():
            for t, g, a, b in zip(theta, grads, m, v):
                a.mul_(0.9).add_(g, alpha=0.1)
                b.mul_(0.99).addcmul_(g, g, value=0.01)
                t -= 1e-2 * (a / (1 - 0.9 ** n)) / ((b / (1 - 0.99 ** n)).sqrt() + 1e-8)
    if it % 10 == 0 or it == 1:
        print(f"{it:3d} reward {reward.mean():.3f} of {NEW}  loss {loss.item():+.4f}")
