import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(42)
torch.set_num_threads(1)

N_STATES, N_ACTIONS, HORIZON = 8, 3, 6
G, TASKS, EPOCHS = 10, 4, 2

# random MDP: next state and reward tables, fixed for the whole exercise
NEXT = torch.randint(0, N_STATES, (N_STATES, N_ACTIONS))
REWARD = torch.randn(N_STATES, N_ACTIONS)


class RolloutBuffer:
    def __init__(self, n_envs):
        self.states = torch.zeros(HORIZON, n_envs, dtype=torch.long)
        self.actions = torch.zeros(HORIZON, n_envs, dtype=torch.long)
        self.logps = torch.zeros(HORIZON, n_envs)
        self.rewards = torch.zeros(HORIZON, n_envs)

    def returns_to_go(self):
        return self.rewards.flip(0).cumsum(0).flip(0)


policy = nn.Sequential(nn.Embedding(N_STATES * HORIZON, 32), nn.Tanh(), nn.Linear(32, N_ACTIONS))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)


def logits_at(states, t):
    return policy(states * HORIZON + t)


for update in range(60):
    state = torch.randint(0, N_STATES, (TASKS,)).repeat_interleave(G)
    buf = RolloutBuffer(TASKS * G)
    with torch.no_grad():
        for t in range(HORIZON):
            dist = torch.distributions.Categorical(logits=logits_at(state, t))
            action = dist.sample()
            buf.states[t] = state
            buf.actions[t] = action
            buf.logps[t] = dist.log_prob(action)
            state = NEXT[state, action]
            buf.rewards[t] = REWARD[state, action]

    togo = buf.returns_to_go().view(HORIZON, TASKS, G)
    adv = (togo - togo.mean(dim=2, keepdim=True)) / (togo.std(dim=2, keepdim=True) + 1e-5)
    adv = adv.view(HORIZON, TASKS * G)
    steps = torch.arange(HORIZON).unsqueeze(1).expand(-1, TASKS * G)

    flat = [x.reshape(-1) for x in (buf.states, steps, buf.actions, buf.logps, adv)]
    for _ in range(EPOCHS):
        for idx in torch.randperm(HORIZON * TASKS * G).split(80):
            s, t, a, lp_old, A = (x[idx] for x in flat)
            lp = F.log_softmax(logits_at(s, t), dim=-1).gather(1, a.unsqueeze(1)).squeeze(1)
            ratio = torch.exp(lp - lp_old)
            loss = -torch.min(ratio * A, ratio.clamp(0.8, 1.2) * A).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    if update % 10 == 0:
        print(f"update {update}: return {REWARD[buf.states, buf.actions].sum(0).mean():.3f}")
