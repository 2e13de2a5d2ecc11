"""
Colour mixing.

A colour is shown (three numbers). The painter makes four strokes, each one of six paints, and is scored by how near the
mean of the strokes comes to the colour. Group-relative policy optimisation with a clipped ratio.
"""
import torch
import torch.nn as nn

PAINTS = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0, 0, 1.0], [1.0, 1.0, 1.0], [0, 0, 0], [0.5, 0.5, 0.5]])
STROKES = 4


class Painter(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(3 + 3 + STROKES, hidden), nn.ReLU(), nn.Linear(hidden, len(PAINTS)))

    def inputs(self, colour, strokes):
        """what the painter sees before each of the strokes: the colour, the sum so far, the number of the stroke"""
        n = len(colour)
        paint = PAINTS[strokes]
        before = torch.cat([torch.zeros(n, 1, 3), paint.cumsum(1)[:, :-1]], 1) / STROKES
        number = torch.eye(STROKES).expand(n, STROKES, STROKES)
        return torch.cat([colour[:, None].expand(n, STROKES, 3), before, number], -1)

    def log_probs(self, colour, strokes):
        lp = torch.log_softmax(self.f(self.inputs(colour, strokes)), -1)
        return lp.gather(-1, strokes[..., None])[..., 0]

    @torch.no_grad()
    def paint(self, colour):
        n = len(colour)
        total = torch.zeros(n, 3)
        out = torch.zeros(n, STROKES, dtype=torch.long)
        for k in range(STROKES):
            number = torch.eye(STROKES)[k].expand(n, STROKES)
            p = torch.softmax(self.f(torch.cat([colour, total / STROKES, number], -1)), -1)
            out[:, k] = torch.multinomial(p, 1)[:, 0]
            total = total + PAINTS[out[:, k]]
        return out


def judge(colour, strokes):
    reward = torch.zeros_like(strokes[:, 0])
    for i in range(len(strokes)):
        made = PAINTS[strokes[i]].mean(0)
        reward[i] = torch.exp(-3 * (made - colour[i]).abs().sum())
    return reward


def train(colours=8, group=8, iterations=50, epochs=2, lr=3e-3):
    painter = Painter()
    opt = torch.optim.Adam(painter.parameters(), lr=lr)
    for it in range(iterations):
        colour = torch.rand(colours, 3).repeat_interleave(group, 0)
        strokes = painter.paint(colour)
        reward = judge(colour, strokes).float().view(colours, group)
        adv = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-6)
        adv = adv.view(-1, 1)
        with torch.no_grad():
            old = painter.log_probs(colour, strokes)
        for _ in range(epochs):
            ratio = torch.exp(painter.log_probs(colour, strokes) - old)
            loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if it % 10 == 0:
            print(f"{it:3d} likeness {reward.mean():.3f} best {reward.max():.3f} loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(6)
    train()
