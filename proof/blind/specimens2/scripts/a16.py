import torch
import torch.nn as nn
import torch.optim as optim
from copy import deepcopy

# ==== hyperparameters ====
lr            = 5e-3
beta          = 0.25     # strong pull to the start: we only want a small change of style
clip_eps      = 0.2
mini_epochs   = 2
n_samples     = 10
n_prompts     = 3
seq_len       = 6
vocab_size    = 14
# =========================

torch.manual_seed(1234)
torch.set_num_threads(1)

class MiniLM(nn.Module):
    def __init__(self):
        super(MiniLM, self).__init__()
        self.embed = nn.Embedding(vocab_size, 32)
        self.lstm = nn.LSTM(32, 48, num_layers=1, batch_first=True)
        self.fc = nn.Linear(48, vocab_size)
        nn.init.normal_(self.fc.weight, std=0.6)     # a start that is not uniform, like a pretrained model

    def forward(self, x):
        x = self.embed(x)
        x, _ = self.lstm(x)
        return self.fc(x)

def gather_logps(model, tokens):
    logits = model(tokens)[:, :-1, :]
    logps = torch.log_softmax(logits, dim=-1)
    return torch.gather(logps, dim=-1, index=tokens[:, 1:].unsqueeze(-1)).squeeze(-1)

def kl_to_reference(logps, ref_logps):
    """the k3 estimator"""
    log_ratio = logps - ref_logps
    return torch.exp(log_ratio) - 1 - log_ratio

def compute_reward(tokens):
    # few small tokens, many different tokens
    small = (tokens[:, 1:] < 7).float().mean(dim=1)
    variety = torch.tensor([len(set(t.tolist())) for t in tokens]) / seq_len
    return small + variety

policy = MiniLM()
reference = deepcopy(policy)
reference.eval()
for p in reference.parameters():
    p.requires_grad = False
optimizer = optim.Adam(policy.parameters(), lr=lr)

for iteration in range(50):
    first = torch.randint(0, vocab_size, (n_prompts, 1))
    tokens = first.repeat_interleave(n_samples, dim=0)
    policy.eval()
    with torch.no_grad():
        for t in range(seq_len):
            probs = torch.softmax(policy(tokens)[:, -1, :], dim=-1)
            tokens = torch.cat((tokens, torch.multinomial(probs, num_samples=1)), dim=1)
        old_logps = gather_logps(policy, tokens)
        ref_logps = gather_logps(reference, tokens)
    policy.train()

    rewards = compute_reward(tokens)
    rewards_per_prompt = rewards.view(n_prompts, n_samples)
    advantages = (rewards_per_prompt - rewards_per_prompt.mean(dim=1, keepdim=True)) / (rewards_per_prompt.std(dim=1, keepdim=True) + 1e-8)
    advantages = advantages.view(-1).unsqueeze(1)

    for _ in range(mini_epochs):
        new_logps = gather_logps(policy, tokens)
        ratios = torch.exp(new_logps - old_logps)
        surr1 = ratios * advantages
        surr2 = torch.clamp(ratios, 1 - clip_eps, 1 + clip_eps) * advantages
        kl = kl_to_reference(new_logps, ref_logps)
        loss = -(torch.min(surr1, surr2) - beta * kl).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), max_norm=1.0)
        optimizer.step()

    if (iteration + 1) % 10 == 0:
        print(f"Iter {iteration + 1}: reward={rewards.mean().item():.3f} kl={kl.mean().item():.4f} loss={loss.item():.4f}")
