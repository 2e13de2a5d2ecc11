from collections import namedtuple
import random, torch
from torch import nn, optim

Transition = namedtuple('Transition', ['cell', 'key', 'move', 'logp', 'adv'])

class GridWorld:
    """5x5, a key and a door. The layout changes from task to task; all runs of one task share it."""
    def __init__(self, size=5): self.n = size
    def layout(self):
        return random.sample(range(self.n * self.n), 3)           # start, key, door
    def move(self, c, m):
        x, y = c % self.n, c // self.n
        x = min(max(x + (0, 1, 0, -1)[m], 0), self.n - 1)
        y = min(max(y + (1, 0, -1, 0)[m], 0), self.n - 1)
        return y * self.n + x

class Brain(nn.Module):
    def __init__(self, cells=25):
        super().__init__()
        self.here = nn.Embedding(cells, 24); self.goal = nn.Embedding(cells, 24)
        self.out = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 4))
    def forward(self, c, g): return self.out(torch.cat([self.here(c), self.goal(g)], -1))

def run_group(env, brain, n, T=10):
    start, key, door = env.layout()
    pos = [start] * n; has = [False] * n; end = [None] * n
    logs = [[] for _ in range(n)]; score = [0.0] * n
    for t in range(T):
        live = [i for i in range(n) if end[i] is None]
        if not live: break
        c = torch.tensor([pos[i] for i in live]); g = torch.tensor([door if has[i] else key for i in live])
        with torch.no_grad():
            lp = torch.log_softmax(brain(c, g), -1)
            m = torch.multinomial(lp.exp(), 1)[:, 0]
        for j, i in enumerate(live):
            logs[i].append((c[j], g[j], m[j], lp[j, m[j]]))
            before = dist(pos[i], g[j].item(), env.n)
            pos[i] = env.move(pos[i], m[j].item())
            score[i] += 0.1 * (before - dist(pos[i], g[j].item(), env.n))
            if not has[i] and pos[i] == key: has[i] = True; score[i] += 1
            elif has[i] and pos[i] == door: end[i] = t; score[i] += 1
    return logs, torch.tensor(score)

def dist(a, b, n): return abs(a % n - b % n) + abs(a // n - b // n)

def main():
    random.seed(13); torch.manual_seed(13); torch.set_num_threads(1)
    env, brain = GridWorld(), Brain()
    opt = optim.AdamW(brain.parameters(), lr=5e-3, weight_decay=0)
    for ep in range(50):
        batch, mean = [], 0.0
        for _ in range(5):
            logs, score = run_group(env, brain, 8)
            mean += score.mean().item() / 5
            adv = (score - score.mean()) / (score.std() + 1e-6)
            batch += [Transition(*tr, a) for log, a in zip(logs, adv) for tr in log]
        for _ in range(3):
            random.shuffle(batch)
            for lo in range(0, len(batch), 128):
                c, g, m, old, adv = (torch.stack(z) for z in zip(*batch[lo:lo + 128]))
                new = torch.log_softmax(brain(c, g), -1).gather(1, m[:, None])[:, 0]
                r = (new - old).exp()
                loss = torch.max(-r * adv, -r.clamp(.8, 1.2) * adv).mean()
                opt.zero_grad(); loss.backward()
                nn.utils.clip_grad_norm_(brain.parameters(), .5)
                opt.step()
        if ep % 10 == 9: print(ep + 1, 'score', round(mean, 3), 'transitions', len(batch))

main()
