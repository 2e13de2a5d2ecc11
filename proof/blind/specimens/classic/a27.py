import torch
import torch.nn as nn
from torch.distributions import Categorical


class RockPaperScissors:
    """Opponents have habits: the next throw depends on their last two throws. Find the answer from these."""

    def __init__(self, habits=6):
        self.table = torch.softmax(2.5 * torch.randn(habits, 9, 3), -1)
        self.habits = habits

    def situation(self, n):
        who = torch.randint(0, self.habits, (n,))
        hist = torch.randint(0, 9, (n,))
        return who, hist

    def encode(self, who, hist):
        return torch.cat([nn.functional.one_hot(who, self.habits), nn.functional.one_hot(hist, 9)], -1).float()

    def play(self, who, hist, mine):
        theirs = torch.multinomial(self.table[who, hist], 1).squeeze(-1)
        diff = (mine - theirs) % 3
        return torch.where(diff == 1, 1.0, torch.where(diff == 2, -1.0, 0.0))


class Trainer:
    def __init__(self, lr=0.5, n_situations=24, n_samples=8, n_epochs=2, entropy_coef=0.001):
        self.game = RockPaperScissors()
        self.model = nn.Sequential(nn.Linear(self.game.habits + 9, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.n_situations, self.n_samples, self.n_epochs = n_situations, n_samples, n_epochs
        self.entropy_coef = entropy_coef

    def rollout(self):
        who, hist = self.game.situation(self.n_situations)
        who, hist = who.repeat_interleave(self.n_samples), hist.repeat_interleave(self.n_samples)
        x = self.game.encode(who, hist)
        with torch.no_grad():
            dist = Categorical(logits=self.model(x))
            mine = dist.sample()
            logp = dist.log_prob(mine)
        return x, mine, logp, self.game.play(who, hist, mine)

    def train_step(self):
        x, mine, old, reward = self.rollout()
        r = reward.view(self.n_situations, self.n_samples)
        adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)).flatten()
        for _ in range(self.n_epochs):
            dist = Categorical(logits=self.model(x))
            ratio = (dist.log_prob(mine) - old).exp()
            loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean() - self.entropy_coef * dist.entropy().mean()
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
        return reward.mean().item(), dist.entropy().mean().item()


torch.manual_seed(18)
trainer = Trainer()
for i in range(80):
    reward, entropy = trainer.train_step()
    if i % 10 == 0 or i == 79:
        print(f"{i:3d} reward {reward:+.3f} entropy {entropy:.3f}")
