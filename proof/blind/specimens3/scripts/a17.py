import random
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 11
torch.manual_seed(SEED)
random.seed(SEED)

# ---------------------------------------------------------------- tokenizer
PIECES = ["<pad>", "<eos>", "=", "+"] + list("0123456789") + ["10", "11", "12", "20", "21", "22", "100", "99"]
TABLE = {p: i for i, p in enumerate(PIECES)}
BY_LENGTH = sorted(PIECES[2:], key=len, reverse=True)


class PieceTokenizer:
    pad_id, eos_id = 0, 1

    def __len__(self):
        return len(PIECES)

    def encode(self, text):
        ids = []
        while text:
            for p in BY_LENGTH:
                if text.startswith(p):
                    ids.append(TABLE[p])
                    text = text[len(p):]
                    break
            else:
                raise ValueError(text)
        return ids

    def decode(self, ids):
        return "".join(PIECES[i] for i in ids if i > 1)


tok = PieceTokenizer()


# ---------------------------------------------------------------- model
class GRULM(nn.Module):
    def __init__(self, vocab, d=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.rnn = nn.GRU(d, d, num_layers=1, batch_first=True)
        self.head = nn.Linear(d, vocab)

    def forward(self, ids, h=None):
        y, h = self.rnn(self.emb(ids), h)
        logits = self.head(y)
        logits[..., tok.pad_id] = -1e9
        return logits, h


policy = GRULM(len(tok))
optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)

NUMBERS = [1, 2, 10, 11, 12, 13, 20, 21, 22, 25, 31, 42, 90, 99, 100, 102, 120, 210]
GROUP, N_PROMPTS, MAX_NEW, EPS = 8, 4, 7, 0.2


# ---------------------------------------------------------------- rollouts
@torch.no_grad()
def rollout(prompt_ids):
    """Sample GROUP answers to one prompt; returns the texts and whether each was finished."""
    x = torch.tensor([prompt_ids] * GROUP)
    logits, h = policy(x)
    nxt = torch.multinomial(logits[:, -1].softmax(-1), 1)
    rows = [[] for _ in range(GROUP)]
    done = [False] * GROUP
    for t in range(MAX_NEW):
        for g in range(GROUP):
            if not done[g]:
                rows[g].append(nxt[g].item())
                done[g] = nxt[g].item() == tok.eos_id
        if all(done) or t == MAX_NEW - 1:
            break
        logits, h = policy(nxt, h)
        nxt = torch.multinomial(logits[:, -1].softmax(-1), 1)
    return [tok.decode(r) for r in rows], done


def reward_fn(prompt, answer, finished):
    """Digits that the question has, few of anything else; a little for stopping."""
    if not answer:
        return 0.0
    good = sum(c.isdigit() and c in prompt for c in answer)
    bad = len(answer) - good
    return 0.2 * good - 0.2 * bad + (0.3 if finished else 0.0)


def build_batch(samples):
    """samples: list of (prompt_text, answer_text, finished)."""
    seqs, starts = [], []
    for prompt, answer, finished in samples:
        p = tok.encode(prompt)
        a = tok.encode(answer)
        if finished:
            a = a + [tok.eos_id]
        seqs.append(p + a)
        starts.append(len(p))
    width = max(map(len, seqs))
    ids = torch.zeros(len(seqs), width, dtype=torch.long)
    mask = torch.zeros(len(seqs), width)
    for i, (s, b) in enumerate(zip(seqs, starts)):
        ids[i, :len(s)] = torch.tensor(s)
        mask[i, b:len(s)] = 1.0
    return ids, mask[:, 1:]


def token_logps(ids):
    logits, _ = policy(ids[:, :-1])
    return F.log_softmax(logits, -1).gather(2, ids[:, 1:].unsqueeze(2)).squeeze(2)


# ---------------------------------------------------------------- training
for step in range(20):
    samples, rewards = [], []
    for _ in range(N_PROMPTS):
        prompt = f"{random.choice(NUMBERS)}+{random.choice(NUMBERS)}="
        texts, finished = rollout(tok.encode(prompt))
        for text, f in zip(texts, finished):
            samples.append((prompt, text, f))
            rewards.append(reward_fn(prompt, text, f))
    R = torch.tensor(rewards).view(N_PROMPTS, GROUP)
    A = (R - R.mean(1, keepdim=True)) / (R.std(1, keepdim=True) + 1e-6)
    A = A.flatten()

    ids, mask = build_batch(samples)
    with torch.no_grad():
        old = token_logps(ids)
    for epoch in range(2):
        new = token_logps(ids)
        ratio = (new - old).exp()
        gain = torch.minimum(ratio * A[:, None], ratio.clamp(1 - EPS, 1 + EPS) * A[:, None])
        loss = -(gain * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    if step % 4 == 0:
        print(f"step {step:02d} | reward {R.mean().item():.3f} | tokens {int(mask.sum())} | e.g. {samples[0][0]}{samples[0][1]}")
