"""Swing a pendulum towards a wanted angle: continuous torque, tanh-squashed Gaussian, group-relative advantages.

All members of a group start from the same angle and wish (their starts come from one seed); the torques come from the global
generator and differ. The stored action is the one before the tanh, whose log-density gets the correction of the squashing.
"""
import torch
import torch.nn as nn
from torch.distributions import Normal


class Pendulum:
    def __init__(self, seeds, members):
        starts = []
        for s in seeds:
            g = torch.Generator().manual_seed(s)
            starts.append(torch.rand(3, generator=g) * 2 - 1)
        z = torch.stack(starts).repeat_interleave(members, 0)
        self.angle, self.speed, self.wish = z[:, 0] * 1.5, z[:, 1], z[:, 2]

    def obs(self):
        return torch.stack([self.angle.sin(), self.angle.cos(), self.speed, self.wish], 1)

    def step(self, torque):
        self.speed = 0.97 * self.speed + 0.1 * (-2.0 * self.angle.sin() + 4.0 * torque)
        self.angle = self.angle + 0.1 * self.speed
        return -((self.angle - self.wish) ** 2) - 0.001 * torque**2


class SquashedGaussian(nn.Module):
    def __init__(self):
        super().__init__()
        self.mu = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))
        self.log_std = nn.Parameter(torch.tensor(-0.5))

    def dist(self, x):
        mu = self.mu(x)[..., 0]
        return Normal(mu, self.log_std.clamp(-3, 0.5).exp().expand_as(mu))

    def log_prob(self, x, u):
        # log(1 - tanh(u)^2), written so that it does not overflow
        correction = 2 * (0.6931471805599453 - u - nn.functional.softplus(-2 * u))
        return self.dist(x).log_prob(u) - correction


def main():
    torch.manual_seed(70)
    pol = SquashedGaussian()
    opt = torch.optim.Adam(pol.parameters(), lr=6e-3)
    seeds, members, T = 6, 12, 25
    for it in range(60):
        env = Pendulum(range(it * seeds, (it + 1) * seeds), members)
        X, U, L, R = [], [], [], []
        with torch.no_grad():
            for _ in range(T):
                x = env.obs()
                u = pol.dist(x).sample()
                X.append(x), U.append(u), L.append(pol.log_prob(x, u))
                R.append(env.step(torch.tanh(u)))
        X, U, L = torch.stack(X, 1), torch.stack(U, 1), torch.stack(L, 1)
        ret = torch.stack(R, 1).sum(1).view(seeds, members)
        adv = ((ret - ret.mean(1, keepdim=True)) / (ret.std(1, keepdim=True) + 1e-6)).view(-1, 1)
        for _ in range(3):
            ratio = (pol.log_prob(X, U) - L).exp()
            loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if it % 10 == 9:
            print(f"{it + 1}: return {ret.mean():.3f} std {pol.log_std.exp().item():.3f}")


if __name__ == "__main__":
    main()
