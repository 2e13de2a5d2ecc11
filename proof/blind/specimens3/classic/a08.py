import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)


class LowRank(torch.nn.Module):
    """y = x W0 + x A B * scale; W0 is given and stays as it is."""

    def __init__(self, w0, rank, scale):
        super().__init__()
        self.register_buffer("w0", w0)
        self.a = torch.nn.Parameter(torch.randn(w0.shape[0], rank) / w0.shape[0] ** 0.5)
        self.b = torch.nn.Parameter(torch.zeros(rank, w0.shape[1]))
        self.scale = scale

    def forward(self, x):
        return x @ self.w0 + (x @ self.a) @ self.b * self.scale


class Sorter(torch.nn.Module):
    """Emits, for 4 numbers, which one to output next, 4 times (with replacement)."""

    def __init__(self):
        super().__init__()
        gen = torch.Generator().manual_seed(99)
        self.register_buffer("feat", torch.randn(4 + 4 + 4, 96, generator=gen) * 0.7)
        self.head = LowRank(torch.randn(96, 4, generator=gen) * 0.05, rank=4, scale=2.0)

    def logits(self, nums, counts, t):
        clock = F.one_hot(t, 4).double()
        return self.head(torch.tanh(torch.cat([nums, counts, clock], -1) @ self.feat))


def rollout(net, nums):
    n = nums.shape[0]
    counts = torch.zeros(n, 4)
    picks, seen = [], []
    for t in range(4):
        seen.append(counts)
        z = net.logits(nums, counts, torch.full((n,), t))
        pick = torch.multinomial(z.softmax(-1), 1).squeeze(1)
        counts = counts + F.one_hot(pick, 4)
        picks.append(pick)
    return torch.stack(picks, 1), torch.stack(seen, 1)


def sequence_logp(net, nums, picks, seen):
    t = torch.arange(4).expand(nums.shape[0], 4)
    z = net.logits(nums[:, None].expand(-1, 4, -1), seen, t)
    return z.log_softmax(-1).gather(-1, picks[..., None]).squeeze(-1).sum(-1)


def grade(nums, picks):
    want = nums.argsort(-1)
    return 10.0 * (picks == want).double().sum(-1) - 20.0


def main():
    torch.manual_seed(8)
    net = Sorter()
    opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.0012, momentum=0.9)
    questions, members = 6, 64
    for step in range(200):
        nums = torch.randn(questions, 4).repeat_interleave(members, 0)
        with torch.no_grad():
            picks, seen = rollout(net, nums)
            behind = sequence_logp(net, nums, picks, seen)
        score = grade(nums, picks)
        centred = (score.view(questions, members) - score.view(questions, members).mean(1, keepdim=True)).flatten()
        for _ in range(3):
            s = ((sequence_logp(net, nums, picks, seen) - behind) / 4).exp()
            gain = torch.min(s * centred, s.clamp(1 - 0.08, 1 + 0.1) * centred)
            opt.zero_grad()
            gain.mean().neg().backward()
            opt.step()
        if (step + 1) % 25 == 0:
            print(step + 1, "score %.2f" % score.mean().item(), "largest |s-1| %.4f" % (s - 1).abs().max().item())


main()
