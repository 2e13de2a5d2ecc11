import copy
import torch
import torch.nn as nn
import torch.nn.functional as F


class Lights:
    """Lights out on a ring of seven lamps: pressing one toggles it and its two neighbours."""

    def __init__(self, puzzles, group, n=7):
        self.puzzles, self.group, self.n = puzzles, group, n
        eye = torch.eye(n, dtype=torch.long)
        self.effect = eye + eye.roll(1, 0) + eye.roll(-1, 0)

    def reset(self):
        lamps = torch.zeros(self.puzzles, self.n, dtype=torch.long)
        for _ in range(3):
            lamps = (lamps + self.effect[torch.randint(0, self.n, (self.puzzles,))]) % 2
        self.lamps = lamps.repeat_interleave(self.group, 0)
        return self.lamps.float()

    def press(self, a):
        self.lamps = (self.lamps + self.effect[a]) % 2
        return self.lamps.float()

    def reward(self):
        return 1 - self.lamps.float().mean(1)


class Presser(nn.Module):
    def __init__(self, n=7, width=96):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(n + 4, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.head = nn.Linear(width, n)

    def forward(self, lamps, t):
        clock = F.one_hot(torch.full(lamps.shape[:1], t), 4).float()
        return self.head(self.trunk(torch.cat([lamps, clock], -1)))


class ActorLearner:
    def __init__(self, lr=2e-3):
        self.learner = Presser()
        self.actor = copy.deepcopy(self.learner).eval()
        for p in self.actor.parameters():
            p.requires_grad_(False)
        self.opt = torch.optim.Adam(self.learner.parameters(), lr=lr)

    def push_weights(self):
        self.actor.trunk.load_state_dict(self.learner.trunk.state_dict())

    @torch.no_grad()
    def generate(self, env, turns=4):
        seen, pressed = [], []
        s = env.reset()
        for t in range(turns):
            a = torch.multinomial(F.softmax(self.actor(s, t), -1), 1)[:, 0]
            seen.append(s)
            pressed.append(a)
            s = env.press(a)
        return seen, pressed, env.reward()

    def logp(self, seen, pressed):
        out = []
        for t, (s, a) in enumerate(zip(seen, pressed)):
            out.append(F.log_softmax(self.learner(s, t), -1).gather(1, a[:, None])[:, 0])
        return torch.stack(out, 1)

    def learn(self, seen, pressed, adv, epochs=3):
        with torch.no_grad():
            old = self.logp(seen, pressed)
        for _ in range(epochs):
            ratio = (self.logp(seen, pressed) - old).exp()
            loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()


def main():
    torch.manual_seed(13)
    env, al = Lights(puzzles=16, group=12), ActorLearner()
    for it in range(40):
        al.push_weights()
        seen, pressed, r = al.generate(env)
        g = r.view(env.puzzles, env.group)
        adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-6)).view(-1, 1)
        al.learn(seen, pressed, adv)
        if it % 10 == 9:
            print(it + 1, "lamps out:", round(r.mean().item(), 3))


main()
