"""Delivery robot, policy gradient with groups: every address is tried by a dozen robots."""
import numpy as np
import torch
import torch.nn as nn

torch.set_num_threads(1)

STREETS = 6
MAX_MOVES = 12
N_WORKERS = 4
ROBOTS_PER_WORKER = 3


class Robot:
    """Walks the street grid; draws its own moves; slips on ice one time in ten."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def deliver(self, brain, address):
        here = np.array([0, 0])
        log = []
        for m in range(MAX_MOVES):
            obs = np.array([*here, *address, *(address - here)], dtype=np.float32) / STREETS
            p = brain(obs)
            move = int(self.rng.choice(3, p=p))
            log.append((obs, move))
            if move == 2:                                  # ring the bell
                break
            step = np.array([1, 0]) if move == 0 else np.array([0, 1])
            if self.rng.random() >= 0.1:
                here = np.minimum(here + step, STREETS - 1)
        distance = np.abs(here - address).sum()
        return log, 1.0 - 0.25 * float(distance) - 0.01 * len(log)


class Worker:
    def __init__(self, rank, seed):
        self.rank = rank
        self.robots = [Robot(seed + rank) for _ in range(ROBOTS_PER_WORKER)]

    def run(self, brain, address):
        return [robot.deliver(brain, address) for robot in self.robots]


class Brain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 3))

    def forward(self, x):
        return torch.log_softmax(self.layers(x), dim=-1)

    def to_numpy(self):
        (w1, b1), (w2, b2) = [(l.weight.detach().numpy().astype(np.float64), l.bias.detach().numpy().astype(np.float64))
                              for l in (self.layers[0], self.layers[2])]

        def probs(obs):
            z = w2 @ np.maximum(w1 @ obs + b1, 0) + b2
            e = np.exp(z - z.max())
            return e / e.sum()

        return probs


def main(iterations=42, addresses=8, seed=100):
    torch.manual_seed(seed)
    town = np.random.default_rng(seed - 1)
    workers = [Worker(rank, seed) for rank in range(N_WORKERS)]
    brain = Brain()
    optimizer = torch.optim.Adam(brain.parameters(), lr=5e-3)
    for it in range(iterations):
        probs = brain.to_numpy()
        obs, moves, weights, scores = [], [], [], []
        for _ in range(addresses):
            address = town.integers(0, 4, 2)
            tries = [t for w in workers for t in w.run(probs, address)]
            r = np.array([score for _, score in tries])
            a = (r - r.mean()) / (r.std() + 1e-6)
            for (log, _), adv in zip(tries, a):
                for o, m in log:
                    obs.append(o)
                    moves.append(m)
                    weights.append(adv / len(log))
            scores.append(r.mean())
        obs_t = torch.from_numpy(np.stack(obs))
        moves_t = torch.tensor(moves)
        w_t = torch.tensor(weights, dtype=torch.float32)
        logp = brain(obs_t)[torch.arange(len(moves)), moves_t]
        loss = -(logp * w_t).sum() / (addresses * N_WORKERS * ROBOTS_PER_WORKER)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if it % 6 == 5:
            print(f"{it + 1:3d}  score {np.mean(scores):+.3f}")


if __name__ == "__main__":
    main()
