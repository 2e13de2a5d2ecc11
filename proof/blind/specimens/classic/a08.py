import random
import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


CFG = dict(seed=1, n_prompts=6, n_samples=10, board=9, horizon=12, lr=4e-3, n_iters=50, n_epochs=2, minibatch=30, clip_eps=0.2)


class CatchEnv:
    """A ball falls through a window of `board` columns with a sideways wind; move the paddle under it."""

    def __init__(self, n, board, horizon):
        self.n, self.board, self.horizon = n, board, horizon

    def reset(self, copies):
        ball = torch.randint(0, self.board, (self.n,))
        wind = torch.randint(-1, 2, (self.n,))
        paddle = torch.randint(0, self.board, (self.n,))
        self.ball = ball.repeat_interleave(copies)
        self.wind = wind.repeat_interleave(copies)
        self.paddle = paddle.repeat_interleave(copies)
        self.t = 0
        return self.obs()

    def obs(self):
        b = self.board - 1
        t = torch.full_like(self.ball, self.t)
        return torch.stack([self.ball / b, self.wind.float(), self.paddle / b, t / self.horizon, (self.ball - self.paddle) / b], 1)

    def step(self, a):
        self.paddle = (self.paddle + a - 1).clamp(0, self.board - 1)
        if self.t % 2 == 0:
            self.ball = (self.ball + self.wind) % self.board
        self.t += 1
        done = self.t == self.horizon
        reward = 1.0 - (self.ball - self.paddle).abs() / (self.board - 1) if done else torch.zeros(len(self.ball))
        return self.obs(), reward, done


class PolicyNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(5, 32)
        self.fc2 = nn.Linear(32, 32)
        self.fc3 = nn.Linear(32, 3)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        x = torch.relu(self.fc2(x))
        return self.fc3(x)


def collect(policy, env, cfg):
    # same numbers on every machine
    set_seed(cfg["seed"])
    states, actions, logps = [], [], []
    state, done = env.reset(cfg["n_samples"]), False
    returns = torch.zeros(cfg["n_prompts"] * cfg["n_samples"])
    with torch.no_grad():
        while not done:
            logp = torch.log_softmax(policy(state), dim=-1)
            action = torch.multinomial(logp.exp(), 1).squeeze(-1)
            states.append(state)
            actions.append(action)
            logps.append(logp.gather(-1, action[:, None]).squeeze(-1))
            state, reward, done = env.step(action)
            returns += reward
    return torch.stack(states, 1), torch.stack(actions, 1), torch.stack(logps, 1), returns


def update(policy, optimizer, states, actions, old_logps, returns, cfg):
    grouped = returns.view(cfg["n_prompts"], cfg["n_samples"])
    adv = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-8)
    adv = adv.flatten()
    losses = []
    for _ in range(cfg["n_epochs"]):
        order = torch.randperm(len(adv))
        for i in range(0, len(adv), cfg["minibatch"]):
            idx = order[i : i + cfg["minibatch"]]
            logp = torch.log_softmax(policy(states[idx]), -1).gather(-1, actions[idx].unsqueeze(-1)).squeeze(-1)
            ratio = torch.exp(logp - old_logps[idx])
            a = adv[idx].unsqueeze(1)
            loss = -torch.min(ratio * a, torch.clamp(ratio, 1 - cfg["clip_eps"], 1 + cfg["clip_eps"]) * a).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return float(np.mean(losses))


def main():
    cfg = CFG
    set_seed(cfg["seed"])
    policy = PolicyNet()
    optimizer = optim.Adam(policy.parameters(), lr=cfg["lr"])
    env = CatchEnv(cfg["n_prompts"], cfg["board"], cfg["horizon"])
    for it in range(cfg["n_iters"]):
        batch = collect(policy, env, cfg)
        loss = update(policy, optimizer, *batch, cfg)
        if it % 10 == 0 or it == cfg["n_iters"] - 1:
            print(f"iter {it:3d} | return {batch[-1].mean():.3f} | loss {loss:+.4f}")


if __name__ == "__main__":
    main()
