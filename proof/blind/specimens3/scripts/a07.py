import torch, torch.nn as nn
torch.manual_seed(42)

# copy task: prompt = 3 symbols, answer = the same 3 symbols, then <end>
SYMS, END, GO = 5, 5, 6
embed = nn.Embedding(7, 32); place = nn.Embedding(16, 32)
attn = nn.MultiheadAttention(32, 4, batch_first=True)
mlp = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 128), nn.ReLU(), nn.Linear(128, 32))
head = nn.Linear(32, 6)
everything = nn.ModuleList([embed, place, attn, mlp, head])

def forward(tokens):
    n = tokens.shape[1]
    h = embed(tokens) + place.weight[:n]
    block = torch.ones(n, n, dtype=torch.bool).triu(1)
    h = h + attn(h, h, h, attn_mask=block, need_weights=False)[0]
    return head(h + mlp(h))

UPDATES, Q, G, MAXLEN, MB = 48, 8, 8, 5, 16
opt = torch.optim.AdamW(everything.parameters(), lr=3e-3, weight_decay=0)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda u: max(0.0, 1.0 - u / UPDATES))

for update in range(UPDATES):
    # ---- rollouts
    sym = torch.randint(0, SYMS, (Q, 3)).repeat_interleave(G, 0)
    seq = torch.cat([sym, torch.full((Q * G, 1), GO)], 1)
    fin = torch.zeros(Q * G, dtype=torch.bool); live = []
    with torch.no_grad():
        for _ in range(MAXLEN):
            live.append(~fin)
            nxt = torch.multinomial(forward(seq)[:, -1].softmax(-1), 1)
            nxt = torch.where(fin[:, None], torch.full_like(nxt, END), nxt)
            fin = fin | (nxt[:, 0] == END)
            seq = torch.cat([seq, nxt], 1)
        live = torch.stack(live, 1).float()
        ans = seq[:, 4:]
        gold = torch.cat([sym, torch.full((Q * G, 1), END)], 1)
        reward = ((ans[:, :4] == gold) * live[:, :4]).mean(1)
        r = reward.view(Q, G)
        adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1)
        logp_old = forward(seq)[:, 3:-1].log_softmax(-1).gather(2, ans[..., None])[..., 0]
    # ---- minibatches
    for idx in torch.randperm(Q * G).split(MB):
        logp = forward(seq[idx])[:, 3:-1].log_softmax(-1).gather(2, ans[idx][..., None])[..., 0]
        ratio = (logp - logp_old[idx]).exp()
        a = adv[idx, None]
        surrogate = torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a)
        loss = -(surrogate * live[idx]).sum() / live[idx].sum()
        opt.zero_grad(); loss.backward()
        nn.utils.clip_grad_norm_(everything.parameters(), 1.0)
        opt.step()
        sched.step()
    if update % 4 == 0:
        print(f"update {update:3d}  reward {reward.mean().item():.3f}  loss {loss.item():+.3f}")
