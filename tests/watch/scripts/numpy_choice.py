"""PPO on a table of logits: actions are drawn by numpy, log-probs are those of cross_entropy, rows lie in lists."""

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

STATES, ACTIONS, ROWS, EPOCHS = 9, 4, 120, 2


def train(iterations=6):
    torch.manual_seed(3)
    chance = np.random.default_rng(3)
    theta = torch.zeros(STATES, ACTIONS, requires_grad=True)
    worth = chance.normal(size=(STATES, ACTIONS))
    optimizer = torch.optim.SGD([theta], lr=2.0)
    for iteration in range(iterations):
        states, actions, logps, rewards = [], [], [], []
        for _ in range(ROWS):
            state = int(chance.integers(STATES))
            with torch.no_grad():
                probabilities = F.softmax(theta[state], dim=-1).numpy().astype(np.float64)
            action = int(chance.choice(ACTIONS, p=probabilities / probabilities.sum()))
            states.append(state)
            actions.append(action)
            logps.append(float(np.log(probabilities[action])))
            rewards.append(worth[state, action] + 0.1 * chance.normal())
        s, a = torch.tensor(states), torch.tensor(actions)
        old = torch.tensor(logps, dtype=torch.float32)
        r = torch.tensor(rewards, dtype=torch.float32)
        advantages = (r - r.mean()) / (r.std() + 1e-8)
        for _ in range(EPOCHS):
            new = -F.cross_entropy(theta[s], a, reduction="none")
            ratio = torch.exp(new - old)
            loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"{iteration} {np.mean(rewards):.6f}", flush=True)


if __name__ == "__main__":
    train()
