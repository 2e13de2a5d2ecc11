import numpy as np
import torch
import torch.nn as nn
from torch.distributions import Categorical


class BoatEnv:
    """Cross a river with a current. State: x, y, speed of the current, time."""

    def __init__(self, rng):
        self.rng = rng
        self.state = np.zeros(4, dtype=np.float32)

    def reset(self, x0, current):
        self.state[:] = (x0, 0.0, current, 0.0)
        return self.state

    def step(self, action):
        # 0: straight on, 1: steer left, 2: steer right
        self.state[0] += self.state[2] * 0.3 + (0.0, -0.25, 0.25)[action]
        self.state[1] += (0.25, 0.15, 0.15)[action]
        self.state[3] += 0.1
        arrived = self.state[1] >= 2.0
        done = bool(arrived or self.state[3] >= 1.55)
        reward = float(1.5 - abs(self.state[0]) - self.state[3] * 0.3) if done else 0.0
        if done and not arrived:
            reward -= 1.0
        return self.state, reward, done


class Memory:
    def __init__(self):
        self.states, self.actions, self.logprobs, self.episode = [], [], [], []

    def clear(self):
        del self.states[:], self.actions[:], self.logprobs[:], self.episode[:]


class ActorNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 3))

    def act(self, state, memory, episode):
        state = torch.from_numpy(state)
        dist = Categorical(logits=self.net(state))
        action = dist.sample()
        memory.states.append(state)
        memory.actions.append(action)
        memory.logprobs.append(dist.log_prob(action))
        memory.episode.append(episode)
        return action.item()

    def evaluate(self, state, action):
        dist = Categorical(logits=self.net(state))
        return dist.log_prob(action), dist.entropy()


class PPO:
    def __init__(self, lr=4e-3, k_epochs=3, eps_clip=0.2):
        self.policy = ActorNet()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=lr)
        self.k_epochs, self.eps_clip = k_epochs, eps_clip

    def update(self, memory, advantage):
        old_states = torch.stack(memory.states).detach()
        old_actions = torch.stack(memory.actions).detach()
        old_logprobs = torch.stack(memory.logprobs).detach()
        adv = advantage[torch.tensor(memory.episode)]
        for _ in range(self.k_epochs):
            logprobs, entropy = self.policy.evaluate(old_states, old_actions)
            ratios = torch.exp(logprobs - old_logprobs)
            surr1 = ratios * adv
            surr2 = torch.clamp(ratios, 1 - self.eps_clip, 1 + self.eps_clip) * adv
            loss = -torch.min(surr1, surr2) - 0.005 * entropy
            self.optimizer.zero_grad()
            loss.mean().backward()
            self.optimizer.step()


def main():
    torch.manual_seed(14)
    rng = np.random.default_rng(14)
    env, memory, ppo = BoatEnv(rng), Memory(), PPO()
    rivers, boats = 4, 8
    for i in range(1, 31):
        returns = torch.zeros(rivers, boats)
        with torch.no_grad():
            for r in range(rivers):
                x0, current = rng.uniform(-0.5, 0.5), rng.uniform(-0.6, 0.6)
                for b in range(boats):
                    state, done = env.reset(x0, current), False
                    while not done:
                        action = ppo.policy.act(state, memory, r * boats + b)
                        state, reward, done = env.step(action)
                        returns[r, b] += reward
        advantage = (returns - returns.mean(1, keepdim=True)) / (returns.std(1, keepdim=True) + 1e-6)
        ppo.update(memory, advantage.view(-1))
        memory.clear()
        if i % 6 == 0:
            print("Iteration {} \t mean return {:.3f}".format(i, returns.mean().item()))


if __name__ == "__main__":
    main()
