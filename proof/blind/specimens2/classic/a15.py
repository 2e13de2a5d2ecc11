import torch
import torch.nn as nn
from torch.utils.data import TensorDataset, DataLoader

torch.manual_seed(60); torch.set_num_threads(1)

# rock-paper-scissors against players with a visible habit: obs = habit (3 probabilities), reward in {-1, 0, 1}
BEAT = torch.tensor([[0., -1., 1.], [1., 0., -1.], [-1., 1., 0.]])

class ActorNet(nn.Module):
    def __init__(self, n_in, n_out, width=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_in, width), nn.Tanh(), nn.Linear(width, n_out))
    def get_dist(self, obs):
        return torch.distributions.Categorical(logits=self.net(obs))

actor = ActorNet(3, 3)
optimizer = torch.optim.Adam(actor.parameters(), lr=5e-3)

def make_batch(players=8, rounds=16):
    habit = torch.distributions.Dirichlet(torch.ones(3) * 0.7).sample((players,))
    obs = habit.repeat_interleave(rounds, 0)
    with torch.no_grad():
        dist = actor.get_dist(obs)
        act = dist.sample()
        logp = dist.log_prob(act)
    their = torch.multinomial(obs, 1).squeeze(1)
    rew = BEAT[act, their]
    g = rew.view(players, rounds)
    adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1)
    return obs, act, logp, adv, rew

for update in range(60):
    obs, act, logp, adv, rew = make_batch()
    data = TensorDataset(obs, act.unsqueeze(1), logp, adv)
    for epoch in range(2):
        for o, a, lp_old, A in DataLoader(data, batch_size=64, shuffle=True):
            lp = actor.get_dist(o).log_prob(a)
            ratio = torch.exp(lp - lp_old)
            surr = torch.min(ratio * A, torch.clamp(ratio, 0.8, 1.2) * A)
            loss = -surr.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if update % 10 == 9:
        print('update', update + 1, 'mean reward', round(rew.mean().item(), 3))
