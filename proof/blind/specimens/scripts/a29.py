import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(290)
vocab_size, eos_token = 20, 19
prompt_length, response_length = 4, 16
num_prompts, group_size = 2, 8
lr, clip_eps, kl_coef, num_steps, ppo_epochs = 1.5e-3, 0.2, 0.01, 24, 2


class CausalSelfAttention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def forward(self, x):
        B, T, C = x.shape
        split = lambda z: z.reshape(B, T, self.n_heads, C // self.n_heads).transpose(1, 2)
        out = F.scaled_dot_product_attention(split(self.to_q(x)), split(self.to_k(x)), split(self.to_v(x)), is_causal=True)
        return self.to_out(out.transpose(1, 2).reshape(B, T, C))


class PolicyLM(nn.Module):
    def __init__(self, dim=48, n_heads=4, n_layers=2):
        super().__init__()
        self.tok_emb = nn.Embedding(vocab_size, dim)
        self.pos_emb = nn.Embedding(prompt_length + response_length, dim)
        self.attn = nn.ModuleList([CausalSelfAttention(dim, n_heads) for _ in range(n_layers)])
        self.mlp = nn.ModuleList([nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)) for _ in range(n_layers)])
        self.norms = nn.ModuleList([nn.LayerNorm(dim) for _ in range(2 * n_layers + 1)])
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, tokens):
        x = self.tok_emb(tokens) + self.pos_emb(torch.arange(tokens.shape[1]))
        for i, (a, m) in enumerate(zip(self.attn, self.mlp)):
            x = x + a(self.norms[2 * i](x))
            x = x + m(self.norms[2 * i + 1](x))
        return self.lm_head(self.norms[-1](x))


def sample_responses(policy, prompts):
    tokens = prompts
    finished = torch.zeros(prompts.shape[0], dtype=torch.bool)
    mask = []
    with torch.no_grad():
        for _ in range(response_length):
            next_token = torch.multinomial(F.softmax(policy(tokens)[:, -1], dim=-1), 1).squeeze(-1)
            next_token = next_token.masked_fill(finished, eos_token)
            mask.append((~finished).float())
            finished = finished | (next_token == eos_token)
            tokens = torch.cat([tokens, next_token.unsqueeze(-1)], dim=-1)
    return tokens, torch.stack(mask, dim=1)


def response_log_probs(policy, tokens):
    logits = policy(tokens[:, :-1])[:, prompt_length - 1:]
    return F.log_softmax(logits, dim=-1).gather(-1, tokens[:, prompt_length:].unsqueeze(-1)).squeeze(-1)


def compute_rewards(tokens, mask):
    response = tokens[:, prompt_length:]
    third = tokens[:, :1] // 7
    match = ((response // 7 == third) & (response != eos_token)).float() * mask
    return match.sum(1) / mask.sum(1) + 0.3 * ((response == eos_token).float() * mask).sum(1)


def compute_advantages(rewards):
    grouped = rewards.view(num_prompts, group_size)
    normed = (grouped - grouped.mean(dim=1, keepdim=True)) / (grouped.std(dim=1, keepdim=True) + 1e-8)
    return normed.view(-1)


policy, reference = PolicyLM(), PolicyLM()
reference.load_state_dict(policy.state_dict())
reference.requires_grad_(False)
optimizer = torch.optim.AdamW(policy.parameters(), lr=lr)

for step in range(num_steps):
    prompts = torch.randint(0, eos_token, (num_prompts, prompt_length)).repeat_interleave(group_size, dim=0)
    tokens, mask = sample_responses(policy, prompts)
    rewards = compute_rewards(tokens, mask)
    advantages = compute_advantages(rewards)
    with torch.no_grad():
        old_log_probs = response_log_probs(policy, tokens)
        ref_log_probs = response_log_probs(reference, tokens)
    for _ in range(ppo_epochs):
        log_probs = response_log_probs(policy, tokens)
        ratio = torch.exp(log_probs - old_log_probs)
        surr1 = ratio * advantages
        surr2 = torch.clamp(ratio, 1 - clip_eps, 1 + clip_eps) * advantages
        policy_loss = -torch.min(surr1, surr2)
        log_r = ref_log_probs - log_probs
        kl = log_r.exp() - log_r - 1
        loss = ((policy_loss + kl_coef * kl) * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    if step % 3 == 0:
        print(f"step {step:3d} | reward {rewards.mean().item():.3f} | kl {((kl * mask).sum() / mask.sum()).item():.4f} | len {mask.sum(1).mean().item():.1f}")
print("end", rewards.mean().item())
