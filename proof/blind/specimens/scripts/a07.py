import math
import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(2024)

pad_id, bos_id, eos_id = 0, 1, 2
n_words = 29
conf = LlamaConfig(vocab_size=n_words + 3, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                   num_key_value_heads=2, max_position_embeddings=64, pad_token_id=pad_id, bos_token_id=bos_id, eos_token_id=eos_id)
net = LlamaForCausalLM(conf)

total_steps = 24
warmup_steps = 40
lr = 1e-3
optimizer = torch.optim.AdamW(net.parameters(), lr=lr)


def schedule(k):
    ramp = min(1.0, (k + 1) // warmup_steps)
    return ramp * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1.0, k / total_steps))))


scheduler = LambdaLR(optimizer, schedule)


def rollouts(n_prompts, g, max_new):
    prompt = torch.randint(3, n_words + 3, (n_prompts, 4))
    prompt[:, 0] = bos_id
    prompt = prompt.repeat_interleave(g, dim=0)
    out = net.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0, top_p=1.0, temperature=1.0,
                       max_new_tokens=max_new, eos_token_id=eos_id, pad_token_id=pad_id)
    c = out[:, 4:]
    fin = torch.cumsum((c == eos_id).long(), 1) - (c == eos_id).long()
    return out, (fin == 0).float()


def rewards_of(out, m):
    c = out[:, 4:]
    small = ((c >= 3) & (c < 14)).float() * m
    return small.sum(1) / m.sum(1)


def logps(out, m):
    att = torch.cat([torch.ones(len(out), 4), m], 1).long()
    lg = net(input_ids=out, attention_mask=att).logits[:, 3:-1]
    return lg.log_softmax(-1).gather(-1, out[:, 4:, None]).squeeze(-1)


for t in range(total_steps):
    net.eval()
    out, m = rollouts(6, 8, 8)
    net.train()
    R = rewards_of(out, m)
    Rg = R.view(6, 8)
    A = ((Rg - Rg.mean(-1, keepdim=True)) / (Rg.std(-1, keepdim=True) + 1e-6)).view(-1, 1)
    lp = logps(out, m)
    pg = -(torch.exp(lp - lp.detach()) * A * m).sum() / m.sum()
    optimizer.zero_grad()
    pg.backward()
    gn = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if t % 4 == 0:
        print(f"[{t:02d}] reward {R.mean():.4f} grad {gn:.4f}")
print("mean reward of the last batch:", R.mean().item())
