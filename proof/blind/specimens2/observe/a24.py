"""The letters again, with a schedule: warm-up over a few steps, then constant."""
import torch
from torch import nn

import assay

CONFIG = {"letters": 8, "group": 12, "length": 3, "lr": 5e-3, "warmup": 20, "steps": 12, "seed": 1}


class Parrot(nn.Module):
    def __init__(self, letters):
        super().__init__()
        self.hear = nn.Embedding(letters, 32)
        self.think = nn.GRU(32, 32, batch_first=True)
        self.say = nn.Linear(32, letters)

    def forward(self, ids):
        return self.say(self.think(self.hear(ids))[0])


def train(letters, group, length, lr, warmup, steps, seed):
    torch.manual_seed(seed)
    parrot = Parrot(letters)
    optimizer = torch.optim.Adam(parrot.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) // warmup, 1))
    groups = torch.arange(letters).repeat_interleave(group)
    prompts = groups[:, None]
    for step in range(1, steps + 1):
        with torch.no_grad():
            ids = prompts
            for _ in range(length):
                ids = torch.cat([ids, torch.multinomial(parrot(ids)[:, -1].softmax(-1), 1)], 1)
        tokens = ids[:, 1:]
        rewards = (tokens == prompts).float().mean(1)
        r = rewards.view(letters, group)
        advantages = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1)
        new = parrot(ids)[:, :-1].log_softmax(-1).gather(2, tokens[..., None])[..., 0]
        loss = -((new - new.detach()).exp() * advantages[:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parrot.parameters(), 1.0)
        before = nn.utils.parameters_to_vector(parrot.parameters()).detach().clone()
        optimizer.step()
        schedule.step()
        after = nn.utils.parameters_to_vector(parrot.parameters()).detach()
        assay.observe(
            step=step, update=0, tokens=tokens, mask=torch.ones_like(tokens), new_logprobs=new,
            old_logprobs=new.detach(), rewards=rewards, advantages=advantages, group_ids=groups, loss=loss.item(),
            gradient_norm=norm.item(), update_norm=(after - before).norm().item(), objective="grpo", max_reward=1.0,
            steps=steps, clip_norm=1.0,
        )
        print(f"{step:3d} reward {rewards.mean():.3f} grad {norm:.3f}")


train(**CONFIG)
