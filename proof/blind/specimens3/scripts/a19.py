import math

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM


class LoRALinear(nn.Module):
    """y = base(x) + scale * x A^T B^T. Can be folded into the base weight for fast generation."""

    def __init__(self, base: nn.Linear, r=4, alpha=16):
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / r
        self.active = True
        self.folded = None

    def forward(self, x):
        y = self.base(x)
        if self.active and self.folded is None:
            y = y + (x @ self.lora_A.T @ self.lora_B.T) * self.scale
        return y

    def fold(self):
        self.folded = self.base.weight.data.clone()
        self.base.weight.data.add_(self.lora_B.data @ self.lora_A.data, alpha=self.scale)

    def unfold(self):
        self.base.weight.data.copy_(self.folded)
        self.folded = None


def inject(model, names=("q_proj", "v_proj", "down_proj", "lm_head")):
    found = []
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in names and isinstance(child, nn.Linear):
                layer = LoRALinear(child)
                setattr(parent, name, layer)
                found.append(layer)
    return found


class folded:
    def __init__(self, layers):
        self.layers = layers

    def __enter__(self):
        for l in self.layers:
            l.fold()

    def __exit__(self, *exc):
        for l in self.layers:
            l.unfold()


class without_adapter(folded):
    def __enter__(self):
        for l in self.layers:
            l.active = False

    def __exit__(self, *exc):
        for l in self.layers:
            l.active = True


VOCAB, EOS, PAD = 24, 1, 0
T = 1.3


def build():
    torch.manual_seed(21)
    cfg = LlamaConfig(vocab_size=VOCAB, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                      bos_token_id=2, eos_token_id=EOS, pad_token_id=PAD, tie_word_embeddings=False)
    model = LlamaForCausalLM(cfg).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(10)
    model.requires_grad_(False)
    return model, inject(model)


def logps(model, seq, att, n):
    out = model(input_ids=seq, attention_mask=att).logits[:, -n - 1:-1] / T
    return torch.log_softmax(out, -1).gather(-1, seq[:, -n:].unsqueeze(-1)).squeeze(-1)


def grade(q, ids):
    # -100 .. 100: high tokens if the question begins high, low ones otherwise
    high = q[0].item() >= 13
    body = [t for t in ids if t not in (EOS, PAD)]
    if not body:
        return -100.0
    return 100.0 * sum(1 if (t >= 13) == high else -1 for t in body) / len(body)


model, layers = build()
params = [p for l in layers for p in (l.lora_A, l.lora_B)]
opt = torch.optim.AdamW([{"params": [l.lora_A for l in layers]},
                         {"params": [l.lora_B for l in layers], "lr": 3e-2}], lr=1e-2, weight_decay=0.0)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, (k + 1) / 6))
K, G, N = 3, 10, 6
g = torch.Generator().manual_seed(5)

for step in range(22):
    q = torch.randint(3, VOCAB, (K, 4), generator=g)
    prompts = q.repeat_interleave(G, 0)
    with folded(layers), torch.no_grad():
        seq = model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, temperature=T,
                             top_k=0, top_p=1.0, max_new_tokens=N, pad_token_id=PAD, eos_token_id=EOS)
    comp = seq[:, 4:]
    n = comp.shape[1]
    stop = comp.eq(EOS)
    keep = (stop.cumsum(1) - stop.long()).eq(0)
    att = torch.cat([torch.ones_like(prompts), keep.long()], 1)
    score = torch.tensor([grade(p, c.tolist()) for p, c in zip(prompts, comp)]).view(K, G)
    adv = (score - score.mean(1, keepdim=True)) / (score.std(1, keepdim=True) + 1e-3)
    with without_adapter(layers), torch.no_grad():
        base_lp = logps(model, seq, att, n)
    lp = logps(model, seq, att, n)
    rel = (lp - lp.detach()).exp()
    delta = base_lp - lp
    per_token = -rel * adv.reshape(-1, 1) + 0.02 * (delta.exp() - delta - 1)
    loss = (per_token * keep).sum() / keep.sum()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    sched.step()
    if step % 3 == 0:
        print(f"{step:3d} score {score.mean():8.2f}  loss {loss.item():8.4f}  lr {sched.get_last_lr()[0]:.4f}  len {keep.sum(1).float().mean():.2f}")
