import torch
import torch.nn as nn
import torch.nn.functional as F

# Lift control. 5 floors, actions: down, stay, up. From update WORKS_FROM on some floors are closed
# (a closed neighbour cannot be entered).

FLOORS = 5
WORKS_FROM = 18
N_CALLS = 8
N_SAMPLES = 8
HORIZON = 7
ENTROPY_WEIGHT = 0.01


def gumbel_like(x):
    return -torch.log(-torch.log(torch.rand_like(x).clamp(1e-9, 1 - 1e-7)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(3 * FLOORS, 40)
        self.fc2 = nn.Linear(40, 3)

    def forward(self, pos, call, closed):
        x = torch.cat([F.one_hot(pos, FLOORS).float(), F.one_hot(call, FLOORS).float(), closed.float()], -1)
        logits = self.fc2(torch.relu(self.fc1(x)))
        # entering a closed floor is impossible
        below = closed.gather(-1, (pos - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
        above = closed.gather(-1, (pos + 1).clamp(max=FLOORS - 1).unsqueeze(-1)).squeeze(-1)
        blocked = torch.stack([below, torch.zeros_like(below), above], -1)
        return logits.masked_fill(blocked, float("-inf"))


def new_calls(n, update):
    pos = torch.randint(0, FLOORS, (n,))
    call = (pos + torch.randint(1, FLOORS, (n,))) % FLOORS
    closed = torch.zeros(n, FLOORS, dtype=torch.bool)
    if update >= WORKS_FROM:
        f = torch.randint(0, FLOORS, (n,))
        closed[torch.arange(n), f] = (f != pos) & (f != call)
    return pos, call, closed


def rollout(net, update):
    pos, call, closed = (t.repeat_interleave(N_SAMPLES, 0) for t in new_calls(N_CALLS, update))
    store = {"pos": [], "call": [], "closed": [], "act": []}
    dist = torch.zeros(len(pos))
    with torch.no_grad():
        for _ in range(HORIZON):
            z = net(pos, call, closed)
            act = (z + gumbel_like(z)).argmax(-1)
            for k, v in (("pos", pos), ("call", call), ("closed", closed), ("act", act)):
                store[k].append(v)
            pos = (pos + act - 1).clamp(0, FLOORS - 1)
            dist += (pos - call).abs().float()
    return {k: torch.stack(v, 1) for k, v in store.items()}, -dist


def update_step(net, opt, data, reward):
    r = reward.view(N_CALLS, N_SAMPLES)
    adv = (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)
    adv = adv.view(-1, 1)
    logp = F.log_softmax(net(data["pos"], data["call"], data["closed"]), -1)
    p = logp.exp()
    chosen = logp.gather(-1, data["act"].unsqueeze(-1)).squeeze(-1)
    entropy = -(p * logp).sum(-1)
    loss = -(chosen * adv).mean() - ENTROPY_WEIGHT * entropy.mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item(), entropy.mean().item()


def main():
    torch.manual_seed(6)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=8e-3)
    for u in range(45):
        data, reward = rollout(net, u)
        loss, ent = update_step(net, opt, data, reward)
        if u % 5 == 0:
            print("update %2d reward %.2f loss %.4f entropy %.3f" % (u, reward.mean().item(), loss, ent))


main()
