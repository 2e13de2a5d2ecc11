"""PPO with GAE on walkers side by side in numpy, buffers of torch, shuffled minibatches."""

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.distributions.categorical import Categorical


class VectorWalk:
    """Walkers on a line of 9 cells: +1 at the right end, -1 at the left one."""

    def __init__(self, n, seed):
        self.n, self.rng = n, np.random.default_rng(seed)
        self.pos = self.rng.integers(2, 7, n)
        self.age = np.zeros(n, dtype=int)

    def observe(self):
        eye = np.eye(9, dtype=np.float32)[self.pos]
        return np.concatenate([eye, (self.age / 20.0)[:, None].astype(np.float32)], 1)

    def step(self, action):
        slip = self.rng.random(self.n) < 0.1
        self.pos = self.pos + np.where(slip, 0, np.asarray(action) - 1)
        self.age += 1
        reward = (self.pos >= 8).astype(np.float32) - (self.pos <= 0) - 0.02 + 0.01 * self.rng.standard_normal(self.n)
        done = (self.pos >= 8) | (self.pos <= 0) | (self.age >= 20)
        self.pos = np.where(done, self.rng.integers(2, 7, self.n), self.pos)
        self.age = np.where(done, 0, self.age)
        return self.observe(), reward.astype(np.float32), done


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 1))
        self.actor = nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 3))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


num_steps, num_envs, gamma, gae_lambda, clip_coef, ent_coef, vf_coef = 32, 6, 0.98, 0.9, 0.2, 0.01, 0.5
torch.manual_seed(4)
np.random.seed(4)
envs = VectorWalk(num_envs, 4)
agent = Agent()
optimizer = optim.Adam(agent.parameters(), lr=2.5e-3, eps=1e-5)
obs = torch.zeros((num_steps, num_envs, 10))
actions = torch.zeros((num_steps, num_envs))
logprobs = torch.zeros((num_steps, num_envs))
rewards = torch.zeros((num_steps, num_envs))
dones = torch.zeros((num_steps, num_envs))
values = torch.zeros((num_steps, num_envs))
next_obs = torch.tensor(envs.observe())
next_done = torch.zeros(num_envs)
for update in range(1, 7):
    for step in range(num_steps):
        obs[step] = next_obs
        dones[step] = next_done
        with torch.no_grad():
            action, logprob, _, value = agent.get_action_and_value(next_obs)
            values[step] = value.flatten()
        actions[step] = action
        logprobs[step] = logprob
        o, reward, done = envs.step(action.numpy())
        rewards[step] = torch.tensor(reward).view(-1)
        next_obs, next_done = torch.Tensor(o), torch.Tensor(done.astype(np.float32))
    with torch.no_grad():
        next_value = agent.get_value(next_obs).reshape(1, -1)
        advantages = torch.zeros_like(rewards)
        lastgaelam = 0
        for t in reversed(range(num_steps)):
            if t == num_steps - 1:
                nextnonterminal = 1.0 - next_done
                nextvalues = next_value
            else:
                nextnonterminal = 1.0 - dones[t + 1]
                nextvalues = values[t + 1]
            delta = rewards[t] + gamma * nextvalues * nextnonterminal - values[t]
            advantages[t] = lastgaelam = delta + gamma * gae_lambda * nextnonterminal * lastgaelam
        returns = advantages + values
    b_obs = obs.reshape((-1, 10))
    b_logprobs = logprobs.reshape(-1)
    b_actions = actions.reshape(-1)
    b_advantages = advantages.reshape(-1)
    b_returns = returns.reshape(-1)
    b_inds = np.arange(num_steps * num_envs)
    for _epoch in range(2):
        np.random.shuffle(b_inds)
        for start in range(0, len(b_inds), 48):
            mb_inds = b_inds[start : start + 48]
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[mb_inds], b_actions.long()[mb_inds])
            logratio = newlogprob - b_logprobs[mb_inds]
            ratio = logratio.exp()
            mb_advantages = b_advantages[mb_inds]
            mb_advantages = (mb_advantages - mb_advantages.mean()) / (mb_advantages.std() + 1e-8)
            pg_loss1 = -mb_advantages * ratio
            pg_loss2 = -mb_advantages * torch.clamp(ratio, 1 - clip_coef, 1 + clip_coef)
            pg_loss = torch.max(pg_loss1, pg_loss2).mean()
            v_loss = 0.5 * ((newvalue.view(-1) - b_returns[mb_inds]) ** 2).mean()
            entropy_loss = entropy.mean()
            loss = pg_loss - ent_coef * entropy_loss + v_loss * vf_coef
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()
    print(update, rewards.mean().item())
