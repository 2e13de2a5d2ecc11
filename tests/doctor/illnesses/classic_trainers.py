"""Five sound trainers of small policies over a few actions, as people write them: no tokens, no end, no padding."""

WALK = """
import torch
import torch.nn as nn
from torch.distributions import Categorical


class Walk:
    def __init__(self, size=9):
        self.size = size

    def reset(self):
        self.at, self.t = self.size // 2, 0
        return self.state()

    def state(self):
        x = torch.zeros(self.size)
        x[self.at] = 1.0
        return x

    def step(self, action):
        self.at += 1 if action == 1 else -1
        self.t += 1
        done = self.at in (0, self.size - 1) or self.t >= 20
        return self.state(), 1.0 if self.at == self.size - 1 else 0.0, done


class Policy(nn.Module):
    def __init__(self, size=9, actions=2):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(size, 32), nn.Tanh(), nn.Linear(32, actions))

    def forward(self, x):
        return self.net(x)


def rollout(env, policy):
    states, actions, logps, total = [], [], [], 0.0
    s, done = env.reset(), False
    while not done:
        with torch.no_grad():
            dist = Categorical(logits=policy(s))
            a = dist.sample()
            logps.append(dist.log_prob(a))
        states.append(s)
        actions.append(a)
        s, r, done = env.step(a.item())
        total += r
    return torch.stack(states), torch.stack(actions), torch.stack(logps), total


torch.manual_seed(0)
env, policy = Walk(), Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
GROUP, EPOCHS, CLIP = 16, 4, 0.2
for it in range(100):
    group = [rollout(env, policy) for _ in range(GROUP)]
    returns = torch.tensor([g[3] for g in group])
    adv = (returns - returns.mean()) / (returns.std() + 1e-8)
    for epoch in range(EPOCHS):
        loss = 0.0
        for (states, actions, old_logps, _), a in zip(group, adv):
            logps = Categorical(logits=policy(states)).log_prob(actions)
            ratio = torch.exp(logps - old_logps)
            loss = loss - torch.min(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a).mean()
        loss = loss / GROUP
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if it % 10 == 0:
        print(it, returns.mean().item())
"""

PPO = """
import torch
import torch.nn as nn
import torch.nn.functional as F

N_ENVS, STEPS, ACTIONS = 8, 32, 4
GAMMA, LAM, CLIP = 0.99, 0.95, 0.2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 64), nn.ReLU())
        self.pi = nn.Linear(64, ACTIONS)
        self.v = nn.Linear(64, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


class Env:
    def reset(self):
        self.x = torch.randn(N_ENVS, 6)
        return self.x

    def step(self, a):
        reward = (self.x.argmax(1) % ACTIONS == a).float()
        self.x = torch.randn(N_ENVS, 6)
        return self.x, reward, torch.rand(N_ENVS) < 0.05


env, net = Env(), Net()
opt = torch.optim.Adam(net.parameters(), lr=3e-4)
obs = env.reset()
for update in range(50):
    buf = {k: [] for k in ("obs", "act", "logp", "rew", "done", "val")}
    for t in range(STEPS):
        with torch.no_grad():
            logits, value = net(obs)
            probs = F.softmax(logits, dim=-1)
            act = torch.multinomial(probs, 1).squeeze(1)
            logp = torch.log(probs.gather(1, act[:, None]).squeeze(1))
        nxt, rew, done = env.step(act)
        for k, v in zip(buf, (obs, act, logp, rew, done.float(), value)):
            buf[k].append(v)
        obs = nxt
    data = {k: torch.stack(v) for k, v in buf.items()}
    with torch.no_grad():
        last = net(obs)[1]
        adv = torch.zeros(STEPS, N_ENVS)
        gae = 0.0
        for t in reversed(range(STEPS)):
            nv = last if t == STEPS - 1 else data["val"][t + 1]
            delta = data["rew"][t] + GAMMA * nv * (1 - data["done"][t]) - data["val"][t]
            gae = delta + GAMMA * LAM * (1 - data["done"][t]) * gae
            adv[t] = gae
        ret = adv + data["val"]
    flat = {k: v.reshape(STEPS * N_ENVS, *v.shape[2:]) for k, v in data.items()}
    adv, ret = adv.reshape(-1), ret.reshape(-1)
    for epoch in range(4):
        for idx in torch.randperm(STEPS * N_ENVS).split(64):
            logits, value = net(flat["obs"][idx])
            logp = F.log_softmax(logits, dim=-1).gather(1, flat["act"][idx, None]).squeeze(1)
            ratio = (logp - flat["logp"][idx]).exp()
            a = adv[idx]
            a = (a - a.mean()) / (a.std() + 1e-8)
            pg = -torch.min(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a).mean()
            vf = F.mse_loss(value, ret[idx])
            ent = -(F.softmax(logits, -1) * F.log_softmax(logits, -1)).sum(-1).mean()
            loss = pg + 0.5 * vf - 0.01 * ent
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            opt.step()
"""

BANDIT = """
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)
CONTEXTS, ARMS, GROUP, MINI_EPOCHS = 4, 5, 16, 3
BEST = torch.tensor([0, 3, 2, 4])
policy = nn.Sequential(nn.Embedding(CONTEXTS, 16), nn.Linear(16, ARMS))
opt = torch.optim.Adam(policy.parameters(), lr=1e-2)

for step in range(200):
    ctx = torch.randint(0, CONTEXTS, (6,)).repeat_interleave(GROUP)
    with torch.no_grad():
        old_logits = policy(ctx)
        actions = torch.multinomial(F.softmax(old_logits, -1), 1)
        old_logp = F.log_softmax(old_logits, -1).gather(1, actions).squeeze(1)
    rewards = (actions.squeeze(1) == BEST[ctx]).float() + 0.1 * torch.randn(len(ctx))
    grouped = rewards.view(6, GROUP)
    adv = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-6)).view(-1)
    for _ in range(MINI_EPOCHS):
        logp = F.log_softmax(policy(ctx), -1).gather(1, actions).squeeze(1)
        ratio = torch.exp(logp - old_logp)
        loss = -torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
"""

AGENT = """
import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical


class Memory:
    def __init__(self):
        self.clear()

    def clear(self):
        self.states, self.actions, self.logprobs, self.rewards, self.dones = [], [], [], [], []


class ActorCritic(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(n_in, 64), nn.Tanh(), nn.Linear(64, n_out), nn.Softmax(dim=-1))
        self.critic = nn.Sequential(nn.Linear(n_in, 64), nn.Tanh(), nn.Linear(64, 1))

    def act(self, state):
        dist = Categorical(self.actor(state))
        action = dist.sample()
        return action, dist.log_prob(action)

    def evaluate(self, states, actions):
        dist = Categorical(self.actor(states))
        return dist.log_prob(actions), self.critic(states).squeeze(-1), dist.entropy()


class PPO:
    def __init__(self, n_in, n_out):
        self.policy = ActorCritic(n_in, n_out)
        self.policy_old = ActorCritic(n_in, n_out)
        self.policy_old.load_state_dict(self.policy.state_dict())
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=3e-4)
        self.memory = Memory()

    def select_action(self, state):
        state = torch.as_tensor(state, dtype=torch.float32)
        with torch.no_grad():
            action, logprob = self.policy_old.act(state)
        self.memory.states.append(state)
        self.memory.actions.append(action)
        self.memory.logprobs.append(logprob)
        return action.item()

    def update(self):
        returns, total = [], 0.0
        for reward, done in zip(reversed(self.memory.rewards), reversed(self.memory.dones)):
            total = reward + 0.99 * total * (1 - done)
            returns.insert(0, total)
        returns = torch.tensor(returns, dtype=torch.float32)
        returns = (returns - returns.mean()) / (returns.std() + 1e-7)
        states = torch.stack(self.memory.states)
        actions = torch.stack(self.memory.actions)
        old_logprobs = torch.stack(self.memory.logprobs)
        for _ in range(10):
            logprobs, values, entropy = self.policy.evaluate(states, actions)
            ratios = torch.exp(logprobs - old_logprobs)
            advantages = returns - values.detach()
            surr1 = ratios * advantages
            surr2 = torch.clamp(ratios, 0.8, 1.2) * advantages
            loss = -torch.min(surr1, surr2) + 0.5 * nn.functional.mse_loss(values, returns) - 0.01 * entropy
            self.optimizer.zero_grad()
            loss.mean().backward()
            self.optimizer.step()
        self.policy_old.load_state_dict(self.policy.state_dict())
        self.memory.clear()


env = gym.make("CartPole-v1")
agent = PPO(4, 2)
for episode in range(500):
    state, _ = env.reset()
    for t in range(200):
        action = agent.select_action(state)
        state, reward, terminated, truncated, _ = env.step(action)
        agent.memory.rewards.append(reward)
        agent.memory.dones.append(float(terminated or truncated))
        if terminated or truncated:
            break
    if episode % 5 == 4:
        agent.update()
"""

TRAJECTORIES = """
import random
import torch
from torch import nn, optim

random.seed(0)


class GridWorld:
    ACTIONS = [(0, 1), (0, -1), (1, 0), (-1, 0)]

    def __init__(self, n=5):
        self.n, self.goal = n, (n - 1, n - 1)

    def reset(self):
        self.pos = (0, 0)
        return self.pos

    def step(self, a):
        dx, dy = self.ACTIONS[a]
        x = min(max(self.pos[0] + dx, 0), self.n - 1)
        y = min(max(self.pos[1] + dy, 0), self.n - 1)
        self.pos = (x, y)
        return self.pos, (1.0 if self.pos == self.goal else -0.01), self.pos == self.goal


policy = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 4), nn.LogSoftmax(dim=-1))
optimizer = optim.Adam(policy.parameters(), lr=1e-3)


def sample_trajectory(env, max_steps=30):
    traj = {"states": [], "actions": [], "log_probs": [], "rewards": []}
    state = env.reset()
    for _ in range(max_steps):
        s = torch.tensor(state, dtype=torch.float32) / 5
        logp = policy(s)
        action = torch.multinomial(logp.exp(), 1).item()
        nxt, reward, done = env.step(action)
        traj["states"].append(s)
        traj["actions"].append(action)
        traj["log_probs"].append(logp[action].detach())
        traj["rewards"].append(reward)
        state = nxt
        if done:
            break
    return traj


def update(trajs, mini_epochs=4, eps=0.2):
    totals = torch.tensor([sum(t["rewards"]) for t in trajs])
    adv = (totals - totals.mean()) / (totals.std() + 1e-8)
    for _ in range(mini_epochs):
        losses = []
        for t, a in zip(trajs, adv):
            states = torch.stack(t["states"])
            actions = torch.tensor(t["actions"])
            old = torch.stack(t["log_probs"])
            new = policy(states)[torch.arange(len(actions)), actions]
            ratio = torch.exp(new - old)
            losses.append(-torch.min(ratio * a, torch.clamp(ratio, 1 - eps, 1 + eps) * a).mean())
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


env = GridWorld()
for it in range(200):
    update([sample_trajectory(env) for _ in range(8)])
"""
