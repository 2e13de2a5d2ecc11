# Taxi-like line world. Explore a little, learn from groups.
import random
import torch
from torch import nn

random.seed(2); torch.manual_seed(2); torch.set_num_threads(1)
LEN, STAY, LEFT, RIGHT, PICK = 7, 0, 1, 2, 3

class Brain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2 * LEN + 1, 40), nn.ReLU(), nn.Linear(40, 4))
    def forward(self, x): return self.layers(x)

def see(pos, guest, loaded):
    v = torch.zeros(2 * LEN + 1); v[pos] = 1; v[LEN + guest] = 1; v[-1] = loaded
    return v

def choose(brain, obs):
    with torch.no_grad():
        dist = torch.distributions.Categorical(logits=brain(obs))
    action = dist.sample()
    if random.random() < 0.1:
        action = torch.tensor(random.randrange(4))
    return action, dist.log_prob(action)

def drive(brain, pos, guest, T=7):
    loaded, memory, gain = 0, [], 0.0
    for _ in range(T):
        obs = see(pos, guest, loaded)
        a, logp = choose(brain, obs)
        memory.append((obs, a, logp))
        if a == LEFT: pos = max(pos - 1, 0)
        elif a == RIGHT: pos = min(pos + 1, LEN - 1)
        elif a == PICK:
            if pos == guest and not loaded: loaded = 1; gain += 3
            else: gain -= 0.3
        if not loaded: gain -= 0.1 * abs(pos - guest)
        else: gain += 0.2
    return memory, gain

brain = Brain()
adam = torch.optim.Adam(brain.parameters(), lr=1e-2)
for day in range(45):
    mem, adv, gains = [], [], []
    for _ in range(4):
        pos, guest = random.randrange(LEN), random.randrange(LEN)
        trips = [drive(brain, pos, guest) for _ in range(8)]
        g = torch.tensor([t[1] for t in trips])
        gains.append(g.mean().item())
        for t, a in zip(trips, (g - g.mean()) / (g.std() + 1e-6)):
            mem += t[0]; adv += [a] * len(t[0])
    obs, act, old = (torch.stack(z) for z in zip(*mem)); adv = torch.stack(adv)
    for _ in range(2):
        new = torch.distributions.Categorical(logits=brain(obs)).log_prob(act)
        ratio = (new - old).exp()
        loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        adam.zero_grad(); loss.backward(); adam.step()
    if day % 9 == 8: print(day + 1, round(sum(gains) / 4, 3))
