# Which of ten valves to open? Each valve is a coin of its own, the revenue is in thousands of euros and mostly negative at first.
import torch
import torch.nn as nn
from torch.distributions import Bernoulli

torch.manual_seed(4)
VALVES, SENSORS, BATCH = 10, 6, 64

secret = torch.randn(SENSORS, VALVES)
pairs = 0.3 * torch.randn(VALVES, VALVES)


def revenue(sensor, opened):
    direct = (opened * (sensor @ secret)).sum(1)
    together = torch.einsum("bi,ij,bj->b", opened, pairs, opened)
    return 12_000.0 * (direct + together) - 30_000.0 + 2_000.0 * torch.randn(len(sensor))


net = nn.Sequential(nn.Linear(SENSORS, 40), nn.Tanh(), nn.Linear(40, VALVES))
opt = torch.optim.Adam(net.parameters(), lr=5e-3)

baseline, scale = None, None   # moving averages over the batches before (the first batch is its own)
for it in range(201):
    sensor = torch.randn(BATCH, SENSORS)
    coins = Bernoulli(logits=net(sensor))
    opened = coins.sample()
    money = revenue(sensor, opened)
    if baseline is None:
        baseline, scale = money.mean(), money.std()
    advantage = (money - baseline) / scale
    loss = -(coins.log_prob(opened).sum(1) * advantage).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    baseline = 0.9 * baseline + 0.1 * money.mean()
    scale = 0.9 * scale + 0.1 * money.std()
    if it % 40 == 0:
        print(f"{it:4d}  revenue {money.mean():12.0f}  open {opened.mean():.2f}")
