# Curriculum: the agent starts with 3 actions; after a while two more are unlocked (the old weights are kept).
import torch
import torch.nn as nn
from torch.distributions import Categorical

torch.manual_seed(30)
torch.set_num_threads(1)


class Learner:
    def __init__(self, obs_dim=5, hidden=32, n_actions=3, lr=8e-3):
        self.trunk = nn.Sequential(nn.Linear(obs_dim, hidden), nn.Tanh())
        self.head = nn.Linear(hidden, n_actions)
        self.lr = lr
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr)

    def parameters(self):
        return list(self.trunk.parameters()) + list(self.head.parameters())

    def dist(self, obs):
        return Categorical(logits=self.head(self.trunk(obs)))

    def unlock(self, extra):
        old = self.head
        self.head = nn.Linear(old.in_features, old.out_features + extra)
        with torch.no_grad():
            self.head.weight[:old.out_features] = old.weight
            self.head.bias[:old.out_features] = old.bias
            self.head.weight[old.out_features:] *= 0.1
            self.head.bias[old.out_features:] = old.bias.mean()

    def learn(self, obs, act, old_logp, adv):
        for _ in range(2):
            ratio = torch.exp(self.dist(obs).log_prob(act) - old_logp)
            loss = -torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


VALUE = torch.randn(5, 5) + torch.tensor([0.0, 0.0, 0.0, 1.5, 1.5])


def payoff(obs, act):
    return (obs @ VALUE).gather(1, act.unsqueeze(1)).squeeze(1) + obs[:, 0] * act.float() * 0.1


learner = Learner()
for rnd in range(80):
    if rnd == 30:
        learner.unlock(2)
    ctx = torch.rand(6, 5).repeat_interleave(16, dim=0)
    with torch.no_grad():
        d = learner.dist(ctx)
        act = d.sample()
        logp = d.log_prob(act)
    r = payoff(ctx, act).view(6, 16)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-5)).view(-1)
    learner.learn(ctx, act, logp, adv)
    if rnd % 10 == 9:
        print(rnd + 1, "payoff", round(r.mean().item(), 3), "actions", learner.head.out_features)
