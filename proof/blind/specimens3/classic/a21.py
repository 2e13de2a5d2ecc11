"""Spelling game: given a picture number, spell its name and finish with a full stop."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical

LETTERS = "abc."
STOP = 3
NAMES = ["cab", "abba", "ca", "bac", "b", "accab"]
LONGEST = 7


class Game:
    def __init__(self, picture):
        self.picture = picture
        self.word = ""
        self.over = False

    def say(self, letter):
        if letter == STOP:
            self.over = True
        else:
            self.word += LETTERS[letter]
            self.over = len(self.word) >= LONGEST

    def score(self):
        name = NAMES[self.picture]
        same = sum(x == y for x, y in zip(name, self.word))
        bonus = 0.5 if self.word == name else 0.0
        return same / max(len(name), len(self.word), 1) + bonus


class Speller(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.pic = nn.Embedding(len(NAMES), width)
        self.let = nn.Embedding(len(LETTERS) + 1, 16)   # last one: nothing said yet
        self.cell = nn.GRUCell(16, width)
        self.out = nn.Linear(width, len(LETTERS))

    def begin(self, pictures):
        return torch.tanh(self.pic(pictures)), torch.full_like(pictures, len(LETTERS))

    def next(self, h, prev):
        h = self.cell(self.let(prev), h)
        return self.out(h), h


def play(model, pictures):
    games = [Game(int(p)) for p in pictures]
    n = len(games)
    said = torch.zeros(n, LONGEST, dtype=torch.long)
    used = torch.zeros(n, LONGEST)
    results = []
    h, prev = model.begin(pictures)
    for t in range(LONGEST):
        logits, h = model.next(h, prev)
        prev = Categorical(logits=logits).sample()
        for i, g in enumerate(games):
            if g.over:
                continue
            said[i, t] = prev[i]
            used[i, t] = 1
            g.say(int(prev[i]))
            if g.over:
                results.append(g.score())
        if all(g.over for g in games):
            break
    return said, used, torch.tensor(results)


def logprobs(model, pictures, said):
    h, prev = model.begin(pictures)
    out = []
    for t in range(LONGEST):
        logits, h = model.next(h, prev)
        prev = said[:, t]
        out.append(F.log_softmax(logits, -1).gather(1, prev[:, None])[:, 0])
    return torch.stack(out, 1)


def train(iterations=50, per_picture=16, epochs=2, clip=0.2):
    model = Speller()
    opt = torch.optim.AdamW(model.parameters(), lr=6e-3, weight_decay=0.0)
    for it in range(iterations):
        pictures = torch.randperm(len(NAMES))[:4].repeat_interleave(per_picture)
        with torch.no_grad():
            said, used, score = play(model, pictures)
            before = logprobs(model, pictures, said)
        by_picture = score.view(4, per_picture)
        adv = by_picture - by_picture.mean(1, keepdim=True)
        adv = (adv / (by_picture.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        for _ in range(epochs):
            now = logprobs(model, pictures, said)
            ratio = torch.exp(now - before)
            surrogate = torch.minimum(ratio * adv, torch.clamp(ratio, 1 - clip, 1 + clip) * adv)
            loss = -((surrogate * used).sum(1) / used.sum(1)).mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        if (it + 1) % 10 == 0:
            print(f"{it + 1:4d}  score {score.mean():.3f}  letters {used.sum(1).mean():.2f}")
    return model


if __name__ == "__main__":
    torch.manual_seed(8)
    torch.set_num_threads(1)
    train()
