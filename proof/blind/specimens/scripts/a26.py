# Hot sampling (T = 1.3): rollouts come from softmax(z / T) and so does every log-prob of the update.
import copy, torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(26)
T = 1.3
PAD, EOS = 0, 1
net = GPT2LMHeadModel(GPT2Config(vocab_size=22, n_positions=24, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                 bos_token_id=EOS, eos_token_id=EOS, pad_token_id=PAD))
start = copy.deepcopy(net).eval()
start.requires_grad_(False)
opt = torch.optim.AdamW(net.parameters(), lr=8e-4, weight_decay=0.01)


def prompts(n):
    """Two lengths in one batch, padded on the left."""
    ids = torch.randint(2, 22, (n, 4))
    att = torch.ones_like(ids)
    short = torch.rand(n) < 0.5
    ids[short, :2] = PAD
    att[short, :2] = 0
    return ids, att


def lp(model, ids, att, n):
    pos = (att.cumsum(1) - 1).clamp(min=0)
    z = model(input_ids=ids, attention_mask=att, position_ids=pos).logits[:, n - 1:-1] / T
    return z.log_softmax(-1).gather(-1, ids[:, n:].unsqueeze(-1)).squeeze(-1)


B, G, L = 6, 8, 8
for step in range(14):
    ids, att = prompts(B)
    ids, att = ids.repeat_interleave(G, 0), att.repeat_interleave(G, 0)
    n = ids.shape[1]
    net.eval()
    with torch.no_grad():
        out = net.generate(input_ids=ids, attention_mask=att, do_sample=True, temperature=T, top_k=0, top_p=1.0, max_new_tokens=L, pad_token_id=PAD, eos_token_id=EOS)
    net.train()
    y = out[:, n:]
    e = (y == EOS).long()
    mask = ((e.cumsum(1) - e) == 0).long()
    full = torch.cat([att, mask], 1)
    bigger = ((y > ids[:, -1:]) * mask).sum(1) / mask.sum(1)
    r = 10 * bigger + 2 * (e * mask).sum(1)
    g = r.view(B, G)
    a = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    with torch.no_grad():
        old, ref = lp(net, out, full, n), lp(start, out, full, n)
    for _ in range(2):
        new = lp(net, out, full, n)
        w = (new - old).exp()
        k3 = (ref - new).exp() - 1 - (ref - new)
        loss = ((-torch.min(w * a, w.clamp(0.8, 1.2) * a) + 0.01 * k3) * mask).sum() / mask.sum()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    if step % 3 == 0:
        print(step, f"r {r.mean():.3f} kl {(k3 * mask).sum() / mask.sum():.4f} len {mask.sum(1).float().mean():.2f}")
print("end", r.mean().item())
