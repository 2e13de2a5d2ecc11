# no nn, no optim: weights are two tensors, gradients come from autograd.grad, the step is written out (climbing, with a
# momentum and a cap on the norm)
import torch

torch.manual_seed(81)
torch.set_num_threads(1)
W = (0.3 * torch.randn(8, 24)).requires_grad_()
U = torch.zeros(24, 4).requires_grad_()
vel = [torch.zeros_like(W), torch.zeros_like(U)]


def logpi(x):
    return torch.log_softmax(torch.tanh(x @ W) @ U, -1)


def pull(x, a):
    """the good lever is the largest of the four pair sums of x; payment 1 with probability 0.9, else 0"""
    good = x.view(-1, 4, 2).sum(-1).argmax(-1)
    p = torch.where(a == good, 0.9, 0.1)
    return torch.bernoulli(p)


for step in range(200):
    x = torch.randn(8, 8).repeat_interleave(12, 0)
    lp = logpi(x)
    a = torch.distributions.Categorical(logits=lp.detach()).sample()
    r = pull(x, a).view(8, 12)
    adv = (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 0.1)
    J = (adv.view(-1) * lp[torch.arange(96), a]).mean()
    grads = torch.autograd.grad(J, [W, U])
    norm = torch.sqrt(sum((g * g).sum() for g in grads))
    scale = min(1.0, 1.0 / float(norm + 1e-8))
    with torch.no_grad():
        for p, g, v in zip((W, U), grads, vel):
            v.mul_(0.8).add_(g * scale)
            p.add_(0.15 * v)
    if step % 40 == 39:
        print(step + 1, "paid", round(r.mean().item(), 3), "|g|", round(float(norm), 3))
