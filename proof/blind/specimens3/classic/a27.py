from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

torch.set_num_threads(1)


@dataclass
class Settings:
    numbers: int = 15
    guesses: int = 6
    secrets_per_batch: int = 16
    tries_per_secret: int = 16
    rounds: int = 60
    epochs: int = 2
    chunks: int = 4
    rate: float = 4e-3
    clip: float = 0.2
    seed: int = 9


@dataclass
class Storage:
    obs: list = field(default_factory=list)
    act: list = field(default_factory=list)
    logp: list = field(default_factory=list)
    on: list = field(default_factory=list)

    def tensors(self):
        return tuple(torch.stack(z, dim=1) for z in (self.obs, self.act, self.logp, self.on))


class HigherLower:
    """Guess the number; after each guess one is told 'higher' or 'lower'."""

    def __init__(self, secret, cfg):
        self.secret, self.k = secret, cfg.numbers
        self.low = torch.zeros_like(secret)
        self.high = torch.full_like(secret, cfg.numbers - 1)
        self.open = torch.ones_like(secret, dtype=torch.bool)
        self.reward = torch.zeros(len(secret))

    def observation(self):
        eye = torch.eye(self.k)
        return torch.cat([eye[self.low], eye[self.high]], dim=-1)

    def guess(self, g, turn):
        hit = (g == self.secret) & self.open
        self.reward[hit] = 1.0 - 0.1 * turn
        under = self.open & (g < self.secret)
        over = self.open & (g > self.secret)
        self.low = torch.where(under, torch.maximum(self.low, g + 1), self.low)
        self.high = torch.where(over, torch.minimum(self.high, g - 1), self.high)
        self.open = self.open & ~hit


def train(cfg: Settings):
    torch.manual_seed(cfg.seed)
    net = nn.Sequential(nn.Linear(2 * cfg.numbers, 64), nn.GELU(), nn.Linear(64, cfg.numbers))
    optimiser = torch.optim.Adam(net.parameters(), lr=cfg.rate)
    schedule = LambdaLR(optimiser, lambda n: max(0.0, 1.0 - n / cfg.rounds))

    for rnd in range(cfg.rounds):
        secret = torch.randint(cfg.numbers, (cfg.secrets_per_batch,)).repeat_interleave(cfg.tries_per_secret)
        game, store = HigherLower(secret, cfg), Storage()
        with torch.no_grad():
            for turn in range(cfg.guesses):
                o = game.observation()
                lp = net(o).log_softmax(-1)
                a = torch.multinomial(lp.exp(), 1)
                store.obs.append(o)
                store.act.append(a.squeeze(1))
                store.logp.append(lp.gather(1, a).squeeze(1))
                store.on.append(game.open.float())
                game.guess(a.squeeze(1), turn)
        obs, act, old, on = store.tensors()
        r = game.reward.view(cfg.secrets_per_batch, cfg.tries_per_secret)
        adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).reshape(-1)

        for _ in range(cfg.epochs):
            for rows in torch.randperm(len(adv)).chunk(cfg.chunks):
                new = net(obs[rows]).log_softmax(-1).gather(-1, act[rows].unsqueeze(-1)).squeeze(-1)
                ratio = torch.exp(new - old[rows])
                a = adv[rows].unsqueeze(1)
                gain = torch.minimum(ratio * a, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * a)
                loss = -(gain * on[rows]).sum() / on[rows].sum()
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
        if (rnd + 1) % 6 == 0:
            print(f"round {rnd + 1:3d}: reward {r.mean():.3f}, found {(r > 0).float().mean():.2f}")


if __name__ == "__main__":
    train(Settings())
