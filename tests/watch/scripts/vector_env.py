"""PPO on a line of cells, several environments side by side: buffers [T, B], GAE, shuffled minibatches, mini-epochs."""

import torch
from torch import nn
from torch.distributions import Categorical

CELLS, ACTIONS, ENVS, LENGTH, EPOCHS, MINIBATCH, CLIP = 7, 3, 16, 12, 2, 48, 0.2


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(CELLS, 32), nn.Tanh(), nn.Linear(32, ACTIONS))
        self.critic = nn.Sequential(nn.Linear(CELLS, 32), nn.Tanh(), nn.Linear(32, 1))

    def act(self, obs, action=None):
        dist = Categorical(logits=self.actor(obs))
        if action is None:
            action = dist.sample()
        return action, dist.log_prob(action), dist.entropy(), self.critic(obs).squeeze(-1)


def observe(places):
    return nn.functional.one_hot(places, CELLS).float()


def move(places, action):
    places = (places + action - 1).clamp(0, CELLS - 1)
    done = places == CELLS - 1
    reward = done.float() - 0.01
    return torch.where(done, torch.randint(0, CELLS - 1, places.shape), places), reward, done


def train(iterations=5):
    torch.manual_seed(0)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=3e-3)
    places = torch.randint(0, CELLS - 1, (ENVS,))
    obs_buf = torch.zeros(LENGTH, ENVS, CELLS)
    act_buf = torch.zeros(LENGTH, ENVS, dtype=torch.long)
    logp_buf, rew_buf = torch.zeros(LENGTH, ENVS), torch.zeros(LENGTH, ENVS)
    val_buf, done_buf = torch.zeros(LENGTH, ENVS), torch.zeros(LENGTH, ENVS)
    for iteration in range(iterations):
        for t in range(LENGTH):
            obs = observe(places)
            with torch.no_grad():
                action, logp, _, value = agent.act(obs)
            obs_buf[t], act_buf[t], logp_buf[t], val_buf[t] = obs, action, logp, value
            places, reward, done = move(places, action)
            rew_buf[t], done_buf[t] = reward, done.float()
        with torch.no_grad():
            following = agent.act(observe(places))[3]
            adv_buf, last = torch.zeros(LENGTH, ENVS), torch.zeros(ENVS)
            for t in reversed(range(LENGTH)):
                going = 1 - done_buf[t]
                delta = rew_buf[t] + 0.95 * following * going - val_buf[t]
                last = delta + 0.95 * 0.9 * going * last
                adv_buf[t], following = last, val_buf[t]
            returns = adv_buf + val_buf
        b_obs, b_act, b_logp = obs_buf.reshape(-1, CELLS), act_buf.reshape(-1), logp_buf.reshape(-1)
        b_adv, b_ret = adv_buf.reshape(-1), returns.reshape(-1)
        for _ in range(EPOCHS):
            order = torch.randperm(LENGTH * ENVS)
            for start in range(0, LENGTH * ENVS, MINIBATCH):
                rows = order[start : start + MINIBATCH]
                _, new, entropy, value = agent.act(b_obs[rows], b_act[rows])
                ratio = (new - b_logp[rows]).exp()
                adv = b_adv[rows]
                adv = (adv - adv.mean()) / (adv.std() + 1e-8)
                pg = torch.max(-adv * ratio, -adv * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
                loss = pg + 0.5 * (value - b_ret[rows]).pow(2).mean() - 0.01 * entropy.mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        print(f"{iteration} {rew_buf.mean().item():.6f}", flush=True)


if __name__ == "__main__":
    train()
