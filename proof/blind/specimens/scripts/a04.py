# %% [markdown]
# # Tiny GRPO notebook
# The model should write letters that come after the prompt's letter.

# %%
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
letters = "abcdefghijkl"
eos_id = len(letters)
vocab = eos_id + 1
ctx = 14

# %%
class LM(nn.Module):
    def __init__(self, width=56):
        super().__init__()
        self.wte = nn.Embedding(vocab, width)
        self.wpe = nn.Parameter(torch.randn(ctx, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, vocab)

    def forward(self, x):
        t = x.size(1)
        causal = nn.Transformer.generate_square_subsequent_mask(t)
        return self.out(self.body(self.wte(x) + self.wpe[:t], mask=causal))

policy = LM()
opt = torch.optim.AdamW(policy.parameters(), lr=1e-3)

# %%
prompt_len, max_new = 3, 10
n_prompts, n_gen = 4, 8
beta, eps = 0.02, 0.2
reference = LM()
reference.load_state_dict(policy.state_dict())
reference.requires_grad_(False)

# %%
@torch.no_grad()
def generate(prompt):
    x = prompt
    finished = torch.zeros(len(x), dtype=torch.bool)
    for _ in range(max_new):
        p = F.softmax(policy(x)[:, -1], dim=-1)
        nxt = torch.multinomial(p, 1).squeeze(1)
        nxt[finished] = eos_id
        finished |= nxt == eos_id
        x = torch.cat((x, nxt.unsqueeze(1)), dim=1)
        if finished.all():
            break
    return x

def token_logps(net, x):
    lp = F.log_softmax(net(x[:, :-1]), dim=-1)
    return lp.gather(2, x[:, 1:, None]).squeeze(2)[:, prompt_len - 1:]

def reward_fn(prompt, answer):
    total, n = 0.0, 0
    for tok in answer:
        if tok == eos_id:
            break
        n += 1
        total += 1.0 if tok > prompt[-1] else -0.6
    return min(total, 5.0) - 0.4 * max(0, n - 6)

# %%
for step in range(28):
    base = torch.randint(0, 9, (n_prompts, prompt_len))
    prompts = base.repeat_interleave(n_gen, dim=0)
    seqs = generate(prompts)
    answers = seqs[:, prompt_len:]

    n_tok = (answers == eos_id).int().argmax(dim=1) + 1
    mask = (torch.arange(answers.size(1)).unsqueeze(0) < n_tok.unsqueeze(1)).float()

    rewards = torch.tensor([reward_fn(p, a) for p, a in zip(prompts.tolist(), answers.tolist())])
    grouped = rewards.view(n_prompts, n_gen)
    adv = (grouped - grouped.mean(dim=1, keepdim=True)) / (grouped.std(dim=1, keepdim=True) + 1e-6)
    adv = adv.flatten().unsqueeze(1)

    with torch.no_grad():
        ref_lp = token_logps(reference, seqs)
        old_lp = token_logps(policy, seqs)

    for epoch in range(2):
        lp = token_logps(policy, seqs)
        ratio = torch.exp(lp - old_lp)
        pg = -torch.min(ratio * adv, torch.clamp(ratio, 1 - eps, 1 + eps) * adv)
        d = ref_lp - lp
        kl = torch.exp(d) - d - 1
        loss = ((pg + beta * kl) * mask).sum() / mask.sum()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
    if step % 4 == 0:
        print(f"step {step}: reward {rewards.mean().item():.3f} kl {((kl * mask).sum() / mask.sum()).item():.4f}")

# %%
print("finished", rewards.mean().item())
