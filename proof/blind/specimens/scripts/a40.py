"""One prompt per step and 64 samples of it; the reward is binary and rare at first."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(400)
ALPHABET = 10
END = 9
SAMPLES = 64


class Policy(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.embedding = nn.Embedding(ALPHABET, hidden)
        self.core = nn.GRU(hidden, hidden, batch_first=True)
        self.logits = nn.Linear(hidden, ALPHABET)

    def forward(self, tokens):
        return self.logits(self.core(self.embedding(tokens))[0])


def solve(prompt, answer):
    """Right if the answer holds an element of the prompt and ends within five tokens."""
    if END not in answer:
        return 0.0
    body = answer[: answer.index(END)]
    return float(0 < len(body) <= 4 and body[0] in prompt)


policy = Policy()
optimizer = torch.optim.RMSprop(policy.parameters(), lr=6e-4)
for step in range(60):
    prompt = torch.randint(0, 9, (1, 3)).expand(SAMPLES, 3)
    tokens, running, masks = prompt, torch.ones(SAMPLES, dtype=torch.bool), []
    with torch.no_grad():
        for _ in range(8):
            dist = torch.distributions.Categorical(logits=policy(tokens)[:, -1])
            nxt = dist.sample()
            nxt = torch.where(running, nxt, torch.tensor(END))
            masks.append(running.float())
            running = running & (nxt != END)
            tokens = torch.cat([tokens, nxt[:, None]], 1)
    mask = torch.stack(masks, 1)
    answers = tokens[:, 3:]
    rewards = torch.tensor([solve(p, a) for p, a in zip(prompt.tolist(), answers.tolist())])
    if rewards.std() == 0:
        continue
    adv = (rewards - rewards.mean()) / rewards.std()
    lp = F.log_softmax(policy(tokens[:, :-1]), -1)[:, 2:].gather(-1, answers.unsqueeze(-1)).squeeze(-1)
    ratio = torch.exp(lp - lp.detach())
    loss = -((ratio * adv.unsqueeze(1) * mask).sum(1) / mask.sum(1)).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    if step % 6 == 0:
        print(f"{step:3d} solved {rewards.mean():.3f} length {mask.sum(1).mean():.2f}")
print("end", rewards.mean().item())
