# GRPO with home-made low-rank adapters. The reference is the same network with the adapters switched off.
import contextlib
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(8)


class Adapter(nn.Module):
    enabled = True

    def __init__(self, inner: nn.Linear, rank=8, alpha=16):
        super().__init__()
        self.inner = inner
        self.down = nn.Parameter(torch.randn(rank, inner.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(inner.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x):
        y = self.inner(x)
        if Adapter.enabled:
            y = y + (x @ self.down.T @ self.up.T) * self.scale
        return y


@contextlib.contextmanager
def adapters_off():
    Adapter.enabled = False
    try:
        yield
    finally:
        Adapter.enabled = True


def build():
    c = LlamaConfig(vocab_size=24, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=4, max_position_embeddings=40, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    m = LlamaForCausalLM(c)
    for p in m.parameters():
        p.requires_grad_(False)
    for layer in m.model.layers:
        for name in ("q_proj", "v_proj", "o_proj"):
            setattr(layer.self_attn, name, Adapter(getattr(layer.self_attn, name)))
        for name in ("up_proj", "down_proj"):
            setattr(layer.mlp, name, Adapter(getattr(layer.mlp, name)))
    m.lm_head = Adapter(m.lm_head)
    return m


m = build()
train = [p for p in m.parameters() if p.requires_grad]
print("trainable", sum(p.numel() for p in train), "of", sum(p.numel() for p in m.parameters()))
opt = torch.optim.AdamW(train, lr=5e-3, weight_decay=0.01)

P, G, TP, TN = 6, 8, 3, 8
for it in range(20):
    prompt = torch.randint(3, 24, (P, TP)).repeat_interleave(G, 0)
    m.eval()
    with torch.no_grad():
        seq = m.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                         max_new_tokens=TN, min_new_tokens=0, pad_token_id=0, eos_token_id=2)
    m.train()
    ans = seq[:, TP:]
    e = (ans == 2).int()
    mask = (e.cumsum(1) - e == 0).float()
    att = torch.cat([torch.ones_like(prompt), mask.long()], 1)
    rew = (((ans - prompt[:, -1:]).abs() <= 6).float() * mask * (ans > 2)).sum(1) / mask.sum(1) + 0.5 * ((ans == 2) * mask).sum(1)
    gr = rew.view(P, G)
    adv = ((gr - gr.mean(1, keepdim=True)) / (gr.std(1, keepdim=True) + 1e-4)).view(-1, 1)

    def lps():
        z = m(input_ids=seq, attention_mask=att).logits[:, TP - 1:-1]
        return z.log_softmax(-1).gather(-1, ans.unsqueeze(-1)).squeeze(-1)

    with torch.no_grad(), adapters_off():
        ref = lps()
    lp = lps()
    k3 = (ref - lp).exp() - (ref - lp) - 1
    loss = -(((lp - lp.detach()).exp() * adv - 0.02 * k3) * mask).sum() / mask.sum()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(train, 1.0)
    opt.step()
    if it % 3 == 0:
        print(it, f"{rew.mean():.3f}", f"kl {(k3 * mask).sum() / mask.sum():.4f}", f"len {mask.sum(1).mean():.1f}")
print("end", rew.mean().item())
