"""Vectorised gridworld with sticky controls, in the manner of the Atari wrappers: now and then the machine repeats the
previous key. Trained with group advantages, several mini-epochs per batch."""
import torch
from torch import nn
from torch.distributions import Categorical

SIZE = 7


class Grid:
    n_actions = 4

    def __init__(self, tasks, copies):
        self.tasks, self.copies, self.n = tasks, copies, tasks * copies

    def reset(self):
        p = torch.randint(0, SIZE, (self.tasks, 4))
        p = p.repeat_interleave(self.copies, 0)
        self.pos, self.goal = p[:, :2].clone(), p[:, 2:].clone()
        return self.obs()

    def obs(self):
        return torch.cat([self.pos, self.goal, self.goal - self.pos], 1).float() / (SIZE - 1)

    def step(self, action):
        move = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])[action]
        before = (self.pos - self.goal).abs().sum(1)
        self.pos = (self.pos + move).clamp(0, SIZE - 1)
        after = (self.pos - self.goal).abs().sum(1)
        return self.obs(), (before - after).float() * 0.2 + 0.3 * (after == 0).float(), {}


class StickyKeys:
    def __init__(self, env, p):
        self.env, self.p = env, p

    def __getattr__(self, name):
        return getattr(self.env, name)

    def reset(self):
        self.last = None
        return self.env.reset()

    def step(self, action):
        if self.last is not None:
            repeat = torch.rand(self.env.n) < self.p
            action[repeat] = self.last[repeat]
        self.last = action.clone()
        return self.env.step(action)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.m = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, Grid.n_actions))

    def dist(self, obs):
        return Categorical(logits=self.m(obs))


def collect(env, net, horizon):
    batch = {"obs": [], "actions": [], "logp": [], "rewards": []}
    obs = env.reset()
    for _ in range(horizon):
        with torch.no_grad():
            dist = net.dist(obs)
            action = dist.sample()
            logp = dist.log_prob(action)
            next_obs, reward, _ = env.step(action)
        for k, v in zip(batch, (obs, action, logp, reward)):
            batch[k].append(v)
        obs = next_obs
    return {k: torch.stack(v, 1) for k, v in batch.items()}


def group_advantage(returns, copies):
    g = returns.view(-1, copies)
    return ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-6)).view(-1)


def main():
    torch.manual_seed(50)
    tasks, copies, horizon = 10, 8, 10
    env = StickyKeys(Grid(tasks, copies), p=0.25)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    for it in range(60):
        b = collect(env, net, horizon)
        adv = group_advantage(b["rewards"].sum(1), copies)
        for epoch in range(3):
            for mb in torch.randperm(tasks * copies).chunk(2):
                dist = net.dist(b["obs"][mb])
                ratio = (dist.log_prob(b["actions"][mb]) - b["logp"][mb]).exp()
                a = adv[mb, None]
                loss = -torch.min(ratio * a, ratio.clamp(0.8, 1.25) * a).mean() - 0.003 * dist.entropy().mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
        if it % 10 == 9:
            print(it + 1, "return", round(b["rewards"].sum(1).mean().item(), 3))


if __name__ == "__main__":
    main()
