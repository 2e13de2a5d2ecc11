"""CISPO on a word game: the clipped importance weight is a constant factor in front of the log-prob, so every decision keeps
its gradient. Four mini-epochs over stored episodes, mean over all decisions of the batch."""
import torch
import torch.nn as nn
import torch.nn.functional as F

LETTERS, MAXLEN, END = 7, 8, 7
WMAX = 1.3


def make_task(n):
    # a letter that should be repeated, and how often
    return torch.stack([torch.randint(0, LETTERS, (n,)), torch.randint(1, 6, (n,))], 1)


def grade(task, text, length):
    letter, times = task[:, 0], task[:, 1]
    inside = torch.arange(MAXLEN)[None] < length[:, None]
    right = ((text == letter[:, None]) & inside).sum(1)
    body = ((text != END) & inside).sum(1)
    closed = ((text == END) & inside).any(1)
    return right / body.clamp(min=1) - 0.3 * (body - times).abs() + 0.5 * closed.float()


class Speller(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter = nn.Embedding(LETTERS, 16)
        self.times = nn.Embedding(6, 16)
        self.pos = nn.Embedding(MAXLEN, 16)
        self.mlp = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, LETTERS + 1))

    def forward(self, task):
        """task [n, 2] -> log-probs [n, MAXLEN, LETTERS + 1]; the letters do not depend on each other, given the task"""
        n = len(task)
        h = torch.cat([self.letter(task[:, 0]), self.times(task[:, 1])], -1)[:, None].expand(n, MAXLEN, 32)
        p = self.pos.weight[None].expand(n, MAXLEN, 16)
        return F.log_softmax(self.mlp(torch.cat([h, p], -1)), -1)


def spell(model, task):
    lp = model(task)
    text = torch.distributions.Categorical(logits=lp).sample()
    ended = (text == END).float()
    before = ended.cumsum(1) - ended
    mask = (before == 0).float()          # up to and with the first END; all of it if there is none
    return text, mask, lp.gather(2, text[..., None])[..., 0]


def main():
    torch.manual_seed(303)
    model = Speller()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-4)
    tasks, group = 12, 8
    for it in range(40):
        task = make_task(tasks).repeat_interleave(group, 0)
        with torch.no_grad():
            text, mask, old = spell(model, task)
        r = grade(task, text, mask.sum(1)).view(tasks, group)
        adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)).view(-1, 1)
        for _ in range(4):
            for rows in torch.randperm(len(task)).split(48):
                new = model(task[rows]).gather(2, text[rows][..., None])[..., 0]
                weight = torch.exp(new.detach() - old[rows]).clamp(max=WMAX)
                loss = -(weight * adv[rows] * new * mask[rows]).sum() / mask[rows].sum()
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
        if it % 10 == 9:
            print(f"{it + 1:3d} grade {r.mean():+.3f} length {mask.sum(1).mean():.2f}")


main()
