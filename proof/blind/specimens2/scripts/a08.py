"""Character LM with a few merged symbols, trained on text rewards. All text goes through Vocabulary."""
import random
from typing import List, Tuple

import torch
from torch import Tensor, nn, optim


class Vocabulary:
    def __init__(self) -> None:
        self.pieces: List[str] = ["<pad>", "<end>"] + list("abcd=") + ["ab", "cd"]
        self.index = {p: i for i, p in enumerate(self.pieces)}
        self.pad, self.end = 0, 1

    def encode(self, text: str) -> List[int]:
        """longest match first"""
        out, i = [], 0
        while i < len(text):
            two = text[i:i + 2]
            piece = two if two in self.index else text[i]
            out.append(self.index[piece])
            i += len(piece)
        return out

    def decode(self, ids: List[int]) -> str:
        return "".join(self.pieces[i] for i in ids if i > 1)

    def __len__(self) -> int:
        return len(self.pieces)


class Model(nn.Module):
    def __init__(self, n: int, d: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(n, d)
        self.gru = nn.GRU(d, 64, batch_first=True)
        self.head = nn.Linear(64, n)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.gru(self.embed(ids))[0])


class Rollout:
    def __init__(self, prompt: List[int], answer: List[int], text: str, group: int) -> None:
        self.prompt, self.answer, self.text, self.group = prompt, answer, text, group
        self.reward = 0.0


VOC = Vocabulary()
GROUPS, SIZE, MAX_NEW, STEPS = 4, 8, 6, 45


def sample_one_batch(model: Model, rng: random.Random) -> List[Rollout]:
    rollouts: List[Rollout] = []
    model.eval()
    with torch.no_grad():
        for g in range(GROUPS):
            prompt = [VOC.index[rng.choice("abcd")], VOC.index["="]]
            ids = torch.tensor([prompt] * SIZE)
            open_ = torch.ones(SIZE, dtype=torch.bool)
            for _ in range(MAX_NEW):
                logits = model(ids)[:, -1]
                nxt = torch.multinomial(torch.softmax(logits, -1), 1)[:, 0]
                nxt = torch.where(open_, nxt, torch.zeros_like(nxt))
                open_ &= nxt != VOC.end
                ids = torch.cat([ids, nxt[:, None]], 1)
            for row in ids[:, 2:].tolist():
                if VOC.end in row:
                    row = row[: row.index(VOC.end) + 1]
                rollouts.append(Rollout(prompt, row, VOC.decode(row), g))
    model.train()
    return rollouts


def grade(r: Rollout) -> float:
    want = VOC.decode(r.prompt)[0]
    if not r.text:
        return 0.0
    return sum(c == want for c in r.text) / len(r.text) + 0.1 * min(len(r.text), 5)


def pad_batch(rollouts: List[Rollout]) -> Tuple[Tensor, Tensor]:
    seqs = []
    for r in rollouts:
        answer = VOC.encode(r.text) + [VOC.end] * (r.answer[-1] == VOC.end)
        seqs.append(r.prompt + answer)
    width = max(map(len, seqs))
    ids = torch.full((len(seqs), width), VOC.pad)
    mask = torch.zeros(len(seqs), width)
    for i, s in enumerate(seqs):
        ids[i, : len(s)] = torch.tensor(s)
        mask[i, 2: len(s)] = 1.0
    return ids, mask


def train() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(12)
    rng = random.Random(12)
    model = Model(len(VOC))
    opt = optim.Adam(model.parameters(), lr=4e-3)
    for step in range(1, STEPS + 1):
        batch = sample_one_batch(model, rng)
        for r in batch:
            r.reward = grade(r)
        rewards = torch.tensor([r.reward for r in batch]).view(GROUPS, SIZE)
        adv = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        adv = adv.flatten()
        ids, mask = pad_batch(batch)
        logp = torch.log_softmax(model(ids[:, :-1]), -1).gather(2, ids[:, 1:, None])[..., 0]
        m = mask[:, 1:]
        loss = -((logp * m).sum(1) * adv / m.sum(1)).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 5 == 0:
            print(f"{step:3d}  reward {rewards.mean():.3f}  e.g. {batch[0].text!r} for {VOC.decode(batch[0].prompt)!r}")


if __name__ == "__main__":
    train()
