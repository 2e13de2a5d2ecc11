# Pricing bandit: pick one of 7 prices for a customer; revenue is paid in cents.
# Two quotes per customer, each is the other's baseline (leave-one-out).
import torch

torch.manual_seed(11)
N_PRICES, DIM, CUSTOMERS = 7, 5, 64
prices = torch.linspace(400., 2200., N_PRICES)
taste = torch.randn(DIM)


def revenue(x, k):
    limit = 1300. + 450. * torch.tanh(x @ taste) + 60. * torch.randn(len(x))
    return torch.where(prices[k] <= limit, prices[k], torch.zeros(()))


def init():
    W1 = (torch.randn(DIM, 32) / DIM ** .5).requires_grad_()
    b1 = torch.zeros(32, requires_grad=True)
    W2 = (torch.randn(32, N_PRICES) * .05).requires_grad_()
    b2 = torch.zeros(N_PRICES, requires_grad=True)
    return [W1, b1, W2, b2]


def logits(theta, x):
    W1, b1, W2, b2 = theta
    return torch.relu(x @ W1 + b1) @ W2 + b2


theta = init()
ascent = torch.optim.SGD(theta, lr=2e-4, maximize=True)

for step in range(150):
    x = torch.randn(CUSTOMERS, DIM)
    both = torch.cat([x, x])                        # quote 1 of everybody, then quote 2 of everybody
    with torch.no_grad():
        k = torch.multinomial(logits(theta, both).softmax(-1), 1)[:, 0]
    r = revenue(both, k)
    r1, r2 = r.chunk(2)
    a = torch.cat([r1 - r2, r2 - r1])
    lp = torch.log_softmax(logits(theta, both), -1)[torch.arange(2 * CUSTOMERS), k]
    J = (a * lp).mean()
    ascent.zero_grad(set_to_none=True)
    J.backward()
    ascent.step()
    if step % 25 == 0 or step == 149:
        print(step, "mean revenue %.0f" % r.mean().item(), "J %.1f" % J.item())
