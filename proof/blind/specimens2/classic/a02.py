"""PPO-style GRPO on a one-dimensional walk, with an entropy bonus that fades out and a soft clip in log space."""
import numpy as np
import torch
import torch.nn as nn


class Walk:
    """start anywhere on 0..10, goal given in the observation; two steps left/right of size 1 or 2"""
    MOVES = (-2, -1, 1, 2)

    def __init__(self, rng):
        self.rng = rng

    def new_task(self):
        return int(self.rng.integers(0, 11)), int(self.rng.integers(0, 11))

    def obs(self, x, goal):
        o = np.zeros(22, dtype=np.float32)
        o[x] = 1
        o[11 + goal] = 1
        return o

    def step(self, x, a):
        return int(np.clip(x + self.MOVES[a], 0, 10))


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(22, 48), nn.ReLU(), nn.Linear(48, 4))

    def forward(self, o):
        return torch.distributions.Categorical(logits=self.body(o))


def episode(env, agent, start, goal, T=5):
    x, O, A, LP, ret = start, [], [], [], 0.0
    for _ in range(T):
        o = torch.from_numpy(env.obs(x, goal))
        with torch.no_grad():
            d = agent(o)
            a = d.sample()
        O.append(o)
        A.append(a)
        LP.append(d.log_prob(a))
        x = env.step(x, a.item())
        ret -= abs(x - goal)
    return torch.stack(O), torch.stack(A), torch.stack(LP), ret


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    env, agent = Walk(np.random.default_rng(0)), Agent()
    opt = torch.optim.Adam(agent.parameters(), lr=1e-2)
    for it in range(40):
        obs, act, old, adv, rets = [], [], [], [], []
        for _ in range(4):
            task = env.new_task()
            eps = [episode(env, agent, *task) for _ in range(6)]
            r = torch.tensor([e[3] for e in eps])
            a = (r - r.mean()) / (r.std() + 1e-6)
            for e, ai in zip(eps, a):
                obs.append(e[0]), act.append(e[1]), old.append(e[2]), adv.append(ai.expand(len(e[1])))
            rets.append(r.mean().item())
        obs, act, old, adv = (torch.cat(z) for z in (obs, act, old, adv))
        for _ in range(3):
            d = agent(obs)
            log_ratio = d.log_prob(act) - old
            clipped = log_ratio.clamp(np.log(0.8), np.log(1.2))
            obj = torch.minimum(log_ratio.exp() * adv, clipped.exp() * adv).mean()
            loss = -obj - 0.02 * (1 - it / 40) * d.entropy().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if it % 8 == 0 or it == 39:
            print(it, "return", round(float(np.mean(rets)), 2))


main()
