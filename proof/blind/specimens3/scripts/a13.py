# Teaching a subword model to go on with a two-letter motif: "cd" -> "cdcdcd".
import copy
import random

import torch
import torch.nn as nn

# ----------------------------------------------------------------- tokenizer
PIECES = list("abcdef") + ["ab", "bc", "cd", "de", "ef", "fa"]
PAD, EOS, COLON = len(PIECES), len(PIECES) + 1, len(PIECES) + 2
VOCAB_SIZE = len(PIECES) + 3


class Tokenizer:
    def __init__(self):
        self.id_of = {p: i for i, p in enumerate(PIECES)}
        self.longest = max(map(len, PIECES))

    def encode(self, text):
        ids, i = [], 0
        while i < len(text):
            for n in range(self.longest, 0, -1):
                piece = text[i:i + n]
                if len(piece) == n and piece in self.id_of:
                    ids.append(self.id_of[piece])
                    i += n
                    break
        return ids

    def decode(self, ids):
        return "".join(PIECES[i] for i in ids if i < len(PIECES))


# ----------------------------------------------------------------- model
class SubwordGRU(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.emb = nn.Embedding(VOCAB_SIZE, dim, padding_idx=PAD)
        self.rnn = nn.GRU(dim, dim, num_layers=2, batch_first=True)
        self.out = nn.Linear(dim, VOCAB_SIZE)
        self.register_buffer("banned", torch.tensor([PAD, COLON]), persistent=False)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(h).index_fill(-1, self.banned, -30.0)


# ----------------------------------------------------------------- rollouts
LIMIT = 7
TARGET = 6


@torch.no_grad()
def sample(model, prompt_ids, n):
    """n continuations of one prompt, each a list of ids that ends with EOS if it was finished"""
    ids = torch.tensor([prompt_ids] * n)
    for _ in range(LIMIT):
        probs = torch.softmax(model(ids)[:, -1], dim=-1)
        ids = torch.cat([ids, torch.multinomial(probs, 1)], dim=1)
    rows = []
    for row in ids[:, len(prompt_ids):].tolist():
        rows.append(row[: row.index(EOS) + 1] if EOS in row else row)
    return rows


def reward(motif, text):
    want = motif * (TARGET // 2)
    same = sum(a == b for a, b in zip(text, want))
    return same / TARGET - 0.05 * max(0, len(text) - TARGET)


def build_batch(tok, samples):
    """samples: dicts with prompt ids, completion text and whether it was finished"""
    rows = []
    for s in samples:
        completion = tok.encode(s["text"]) + ([EOS] if s["finished"] else [])
        rows.append((s["prompt"], completion))
    width = max(len(p) + len(c) for p, c in rows)
    ids = torch.full((len(rows), width), PAD)
    mask = torch.zeros(len(rows), width)
    for i, (p, c) in enumerate(rows):
        ids[i, : len(p) + len(c)] = torch.tensor(p + c)
        mask[i, len(p): len(p) + len(c)] = 1.0
    return ids, mask[:, 1:]


def logps(model, ids):
    lp = torch.log_softmax(model(ids[:, :-1]), dim=-1)
    return torch.gather(lp, -1, ids[:, 1:, None])[..., 0]


# ----------------------------------------------------------------- training
def main():
    random.seed(6)
    torch.manual_seed(6)
    tok = Tokenizer()
    policy = SubwordGRU()
    frozen = copy.deepcopy(policy).requires_grad_(False)
    opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
    motifs = ["ab", "bc", "cd", "de", "ef", "fa", "ac", "bd", "ce", "df"]
    group, per_step, beta = 8, 5, 0.01

    for step in range(60):
        samples, rewards = [], []
        for motif in random.sample(motifs, per_step):
            prompt = tok.encode(motif) + [COLON]
            for ids in sample(policy, prompt, group):
                text = tok.decode(ids)
                samples.append({"prompt": prompt, "text": text, "finished": ids[-1] == EOS})
                rewards.append(reward(motif, text) + (0.1 if text and ids[-1] == EOS else 0.0))
        r = torch.tensor(rewards).view(per_step, group)
        adv = (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)
        adv = adv.view(-1, 1)

        ids, mask = build_batch(tok, samples)
        new = logps(policy, ids)
        with torch.no_grad():
            ref = logps(frozen, ids)
        ratio = torch.exp(new - new.detach())
        kl = torch.exp(ref - new) - (ref - new) - 1
        loss = ((-ratio * adv + beta * kl) * mask).sum() / mask.sum()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        if step % 6 == 0:
            print(f"step {step:2d} reward {r.mean():.3f} kl {(kl * mask).sum() / mask.sum():.4f} e.g. {samples[0]['text']!r}")


if __name__ == "__main__":
    main()
