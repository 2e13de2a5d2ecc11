import torch
import torch.nn as nn
import torch.nn.functional as F

# Knapsack as a game: at each turn put one more item into the bag (or stop). Items that are in the bag already,
# or do not fit any more, are not offered.

ITEMS = 8
STOP = ITEMS


class Knapsack:
    def __init__(self, problems, copies, gen):
        w = torch.rand(problems, ITEMS, generator=gen) * 0.5 + 0.1
        v = torch.rand(problems, ITEMS, generator=gen)
        self.w = w.repeat_interleave(copies, 0)
        self.v = v.repeat_interleave(copies, 0)
        self.n = problems * copies
        self.taken = torch.zeros(self.n, ITEMS, dtype=torch.bool)
        self.room = torch.ones(self.n)
        self.finished = torch.zeros(self.n, dtype=torch.bool)

    def observe(self):
        return torch.cat([self.w, self.v, self.taken.float(), self.room[:, None]], 1)

    def offered(self):
        fits = (self.w <= self.room[:, None]) & ~self.taken
        return torch.cat([fits, torch.ones(self.n, 1, dtype=torch.bool)], 1)

    def put(self, choice):
        live = ~self.finished
        is_item = (choice != STOP) & live
        rows = is_item.nonzero()[:, 0]
        self.taken[rows, choice[rows]] = True
        self.room[rows] -= self.w[rows, choice[rows]]
        self.finished |= choice == STOP

    def score(self):
        return (self.v * self.taken).sum(1)


class Agent(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3 * ITEMS + 1, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, ITEMS + 1)
        )

    def act(self, obs, offered):
        logits = self.net(obs).masked_fill(~offered, float("-inf"))
        return torch.multinomial(F.softmax(logits, -1), 1).squeeze(1)

    def evaluate(self, obs, actions):
        logp = F.log_softmax(self.net(obs), -1)
        return logp.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def play(agent, problems, copies, gen):
    game = Knapsack(problems, copies, gen)
    O, A, M = [], [], []
    with torch.no_grad():
        for _ in range(ITEMS + 1):
            obs = game.observe()
            a = agent.act(obs, game.offered())
            O.append(obs)
            A.append(a)
            M.append(~game.finished)
            game.put(a)
            if game.finished.all():
                break
        obs, act, live = torch.stack(O, 1), torch.stack(A, 1), torch.stack(M, 1).float()
        old = agent.evaluate(obs, act)
    return obs, act, live, old, game.score()


def main():
    torch.manual_seed(0)
    gen = torch.Generator().manual_seed(1)
    problems, copies = 8, 12
    agent = Agent()
    optim = torch.optim.Adam(agent.parameters(), lr=2e-3)
    for it in range(60):
        obs, act, live, old, score = play(agent, problems, copies, gen)
        table = score.view(problems, copies)
        adv = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-6)).reshape(-1, 1)
        for epoch in range(3):
            new = agent.evaluate(obs, act)
            r = torch.exp(new - old)
            obj = torch.minimum(r * adv, r.clamp(0.8, 1.2) * adv)
            loss = -(obj * live).sum() / live.sum()
            optim.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
            optim.step()
        if it % 10 == 9:
            print(it + 1, "value in the bag:", round(score.mean().item(), 3))


main()
