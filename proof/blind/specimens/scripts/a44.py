"""CISPO: the importance weight is clipped and detached, the gradient goes through log p of every token. Pad is the end token; masks come from lengths."""
import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(44)
END = 18
net = GPT2LMHeadModel(GPT2Config(vocab_size=19, n_positions=20, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
                                 bos_token_id=END, eos_token_id=END, pad_token_id=END))
opt = torch.optim.AdamW(net.parameters(), lr=8e-4, betas=(0.9, 0.99))
N, G, P, L = 6, 8, 3, 8


def lengths_of(rows):
    return torch.tensor([row.index(END) + 1 if END in row else len(row) for row in rows.tolist()])


def token_lp(ids, att):
    z = net(input_ids=ids, attention_mask=att).logits[:, P - 1:-1]
    return z.log_softmax(-1).gather(-1, ids[:, P:, None])[..., 0]


for step in range(15):
    q = torch.randint(0, 18, (N, P)).repeat_interleave(G, 0)
    net.eval()
    with torch.no_grad():
        ids = net.generate(input_ids=q, attention_mask=torch.ones_like(q), do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=L,
                           eos_token_id=END, pad_token_id=END)
    net.train()
    y = ids[:, P:]
    n = lengths_of(y)
    m = (torch.arange(y.shape[1]) < n[:, None]).long()
    att = torch.cat([torch.ones_like(q), m], 1)
    r = ((y // 6 == q[:, :1] // 6) * m).sum(1) / n + 0.4 * ((y == END) * m).sum(1)
    t = r.view(N, G)
    adv = ((t - t.mean(1, keepdim=True)) / (t.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    with torch.no_grad():
        old = token_lp(ids, att)
    for _ in range(2):
        lp = token_lp(ids, att)
        w = torch.exp(lp - old).clamp(max=3.0).detach()
        loss = -(w * adv * lp * m).sum() / m.sum()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
    if step % 2 == 0:
        print(step, f"reward {r.mean():.3f} len {n.float().mean():.2f} w {w.min():.2f}..{w.max():.2f}")
print("end", r.mean().item())
