"""counting: the prompt is a number n, the answer should be n times 'x' and then stop."""
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
random.seed(3)
torch.manual_seed(3)

PAD, EOS, X, Y, Z, SEP = range(6)
NUM0 = 6
VOCAB = NUM0 + 6
LIMIT = 8
GROUP = 8
PER_STEP = 4


class Lm(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, NUM0)

    def forward(self, ids, h=None):
        y, h = self.rnn(self.emb(ids), h)
        return self.out(y), h


def make_prompts():
    ns = [random.randint(1, 6) for _ in range(PER_STEP)]
    rows = [[NUM0 + n - 1, SEP] for n in ns for _ in range(GROUP)]
    return torch.tensor(rows), [n for n in ns for _ in range(GROUP)]


@torch.no_grad()
def rollout(lm, prompts):
    logits, h = lm(prompts)
    logits = logits[:, -1]
    alive = torch.ones(len(prompts), dtype=torch.bool)
    toks, lps = [], []
    for _ in range(LIMIT):
        lp = F.log_softmax(logits, -1)
        t = torch.multinomial(lp.exp(), 1).squeeze(1)
        t = torch.where(alive, t, torch.full_like(t, PAD))
        toks.append(t)
        lps.append(lp.gather(1, t[:, None]).squeeze(1))
        alive = alive & (t != EOS)
        logits, h = lm(t[:, None], h)
        logits = logits[:, -1]
    return torch.stack(toks, 1), torch.stack(lps, 1)


def answer_mask(toks):
    hit = toks.eq(EOS)
    last = hit.int().argmax(1)
    return (torch.arange(LIMIT)[None, :] <= last[:, None]).float()


def score(toks, n):
    toks = toks.tolist()
    ended = EOS in toks
    body = toks[:toks.index(EOS)] if ended else toks
    good = sum(t == X for t in body) / max(len(body), 1)
    return good - abs(len(body) - n) / LIMIT + (0.25 if ended else 0.0)


def logprobs(lm, prompts, toks):
    logits, _ = lm(torch.cat([prompts, toks], 1))
    logits = logits[:, prompts.size(1) - 1:-1]
    return F.log_softmax(logits, -1).gather(2, toks[..., None]).squeeze(-1)


def main():
    lm = Lm()
    opt = torch.optim.AdamW(lm.parameters(), lr=4e-3, weight_decay=0.0)
    for step in range(60):
        prompts, ns = make_prompts()
        toks, old = rollout(lm, prompts)
        r = torch.tensor([score(t, n) for t, n in zip(toks, ns)])
        g = r.view(PER_STEP, GROUP)
        adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        mask = answer_mask(toks)
        for _ in range(2):
            new = logprobs(lm, prompts, toks)
            ratio = torch.exp(new - old)
            obj = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
            loss = -(obj * mask).sum() / mask.sum()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
            opt.step()
        if step % 10 == 0 or step == 59:
            print(f"{step:3d} reward {r.mean():.3f} len {mask.sum(1).mean():.2f} loss {loss.item():.4f}")


main()
