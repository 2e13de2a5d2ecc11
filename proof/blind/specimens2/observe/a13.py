"""Near misses pay too: a GRU learns to say the number after the prompt, three times. Gumbel noise draws the tokens."""
import torch
from torch import nn

import assay

torch.manual_seed(9)
NUMBERS, TIMES, GROUP = 7, 3, 5


class Follower(nn.Module):
    def __init__(self):
        super().__init__()
        self.lookup = nn.Embedding(NUMBERS, 32)
        self.cell = nn.GRU(32, 32, batch_first=True)
        self.vote = nn.Linear(32, NUMBERS)

    def forward(self, ids):
        return self.vote(self.cell(self.lookup(ids))[0])


def draw(logits):
    noise = -torch.log(-torch.log(torch.rand_like(logits).clamp_min(1e-9)))
    return (logits + noise).argmax(-1, keepdim=True)


def whiten(x, size):
    x = x.view(-1, size)
    return ((x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)).view(-1)


net = Follower()
opt = torch.optim.Adam(net.parameters(), lr=0.04)
group = torch.arange(NUMBERS).repeat_interleave(GROUP)
prompt = group.unsqueeze(1)
for step in range(1, 16):
    with torch.no_grad():
        ids = prompt
        for _ in range(TIMES):
            ids = torch.cat([ids, draw(net(ids)[:, -1])], 1)
    said = ids[:, 1:]
    off = (said - (prompt + 1) % NUMBERS).abs().float()
    reward = 1 - (off / NUMBERS).mean(1)
    advantage = whiten(reward, GROUP)
    new = net(ids)[:, :-1].log_softmax(-1).gather(2, said.unsqueeze(2)).squeeze(2)
    loss = -((new - new.detach()).exp() * advantage.unsqueeze(1)).mean()
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    assay.observe(
        step=step, update=0, tokens=said, mask=torch.ones_like(said), new_logprobs=new, old_logprobs=new.detach(),
        rewards=reward, advantages=advantage, group_ids=group, loss=loss.item(), gradient_norm=norm.item(),
        prompt_tokens=prompt, objective="grpo",
    )
    opt.step()
    print(step, f"{reward.mean():.3f} {loss.item():.4f}")
