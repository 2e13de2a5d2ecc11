"""Answers with a tool: after the token CALL the environment writes one token (the tool's result) into the context.
That token was not sampled, so it takes part in the context and not in the loss."""
import torch
import torch.nn as nn

torch.manual_seed(320)
DIG, CALL, EOS, NV = 10, 10, 11, 12
LIMIT, NP, NG = 8, 8, 8


class Agent(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.emb = nn.Embedding(NV, d)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.head = nn.Linear(d, NV)

    def forward(self, x, h=None):
        y, h = self.gru(self.emb(x), h)
        return self.head(y), h


def tool(prompt):
    return (prompt[:, 0] * prompt[:, 1]) % 10


@torch.no_grad()
def episode(agent, prompt):
    logits, h = agent(prompt)
    n = len(prompt)
    live = torch.ones(n, dtype=torch.bool)
    answered = torch.zeros(n, dtype=torch.bool)     # the next token of this row comes from the tool
    toks, own = [], []
    result = tool(prompt)
    for _ in range(LIMIT):
        t = torch.multinomial(logits[:, -1].softmax(-1), 1).squeeze(1)
        t = torch.where(answered, result, t)
        t = torch.where(live, t, EOS)
        toks.append(t)
        own.append((live & ~answered).float())
        called = live & ~answered & (t == CALL)
        live = live & ((t != EOS) | answered)
        answered = called
        logits, h = agent(t[:, None], h)
    return torch.stack(toks, 1), torch.stack(own, 1)


def reward(prompt, toks, own):
    """The right product, said by the agent itself, and an end."""
    right = ((toks == tool(prompt)[:, None]) * own).sum(1).clamp(max=1)
    ended = ((toks == EOS) * own).sum(1)
    return right + 0.5 * ended - 0.05 * own.sum(1)


agent = Agent()
opt = torch.optim.AdamW(agent.parameters(), lr=3e-3)
for step in range(40):
    prompt = torch.randint(1, 10, (NP, 2)).repeat_interleave(NG, 0)
    toks, own = episode(agent, prompt)
    r = reward(prompt, toks, own)
    rg = r.view(NP, NG)
    adv = ((rg - rg.mean(1, keepdim=True)) / (rg.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    full = torch.cat([prompt, toks], 1)
    lp = agent(full[:, :-1])[0][:, 1:].log_softmax(-1).gather(-1, toks.unsqueeze(-1)).squeeze(-1)
    loss = -((lp - lp.detach()).exp() * adv * own).sum() / own.sum()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
    opt.step()
    if step % 5 == 0:
        print(f"{step} reward {r.mean():.3f} own tokens {own.sum(1).mean():.2f} calls {((toks == CALL) * own).sum(1).mean():.2f}")
print("end", r.mean().item())
