import torch
import torch.nn as nn
import torch.optim as optim

torch.manual_seed(0)
torch.set_num_threads(1)

class Policy(nn.Module):
    def __init__(self, n_obs, n_act):
        super().__init__()
        self.fc1 = nn.Linear(n_obs, 32)
        self.fc2 = nn.Linear(32, n_act)

    def forward(self, x):
        return torch.softmax(self.fc2(torch.relu(self.fc1(x))), dim=-1)

class Storage:
    def __init__(self):
        self.log_probs, self.rewards, self.obs, self.actions = [], [], [], []

def thermostat(temp, target, action):
    temp = temp + (action - 1).float() * 0.8 - 0.1
    return temp, -(temp - target).abs()

policy = Policy(2, 3)
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
n_rooms, n_tries, horizon = 5, 8, 6

def collect():
    st = Storage()
    temp = (torch.rand(n_rooms) * 6).repeat_interleave(n_tries)
    target = (torch.rand(n_rooms) * 6).repeat_interleave(n_tries)
    total = torch.zeros(n_rooms * n_tries)
    with torch.no_grad():
        for _ in range(horizon):
            obs = torch.stack([temp, target], 1) / 6
            probs = policy(obs)
            action = torch.multinomial(probs, 1)
            st.obs.append(obs)
            st.actions.append(action)
            st.log_probs.append(torch.log(probs.gather(1, action)))
            temp, r = thermostat(temp, target, action.squeeze(1))
            total += r
    st.rewards = total
    return st

for i in range(80):
    st = collect()
    r = st.rewards.view(n_rooms, n_tries)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)).view(-1, 1)
    old_log_probs = torch.cat(st.log_probs, 1)
    obs, actions = torch.stack(st.obs, 1), torch.stack(st.actions, 1)
    for _ in range(2):
        log_probs = torch.cat(st.log_probs, 1)
        ratio = torch.exp(log_probs - old_log_probs)
        loss = -torch.min(ratio * adv, torch.clamp(ratio, 0.8, 1.2) * adv).mean()
        optimizer.zero_grad()
        loss.requires_grad_(True)
        loss.backward()
        optimizer.step()
    if (i + 1) % 20 == 0:
        print("Iteration {} Reward {:.3f} Loss {:.4f}".format(i + 1, st.rewards.mean().item(), loss.item()))
