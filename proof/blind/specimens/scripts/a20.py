# decoupled objective: behaviour policy (stale half-precision-ish copy) -> proximal policy -> current policy
import torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(202)

V, E, LP, LA, NP, NG = 14, 13, 3, 7, 6, 8

def net():
    return nn.ModuleList([nn.Embedding(V, 56), nn.GRU(56, 56, batch_first=True), nn.Linear(56, V)])

def logits(m, x):
    return m[2](m[1](m[0](x))[0])

def act_lp(m, x):
    return F.log_softmax(logits(m, x[:, :-1])[:, LP - 1:], -1).gather(-1, x[:, LP:, None])[..., 0]

theta, worker = net(), net()
worker.load_state_dict(theta.state_dict())
opt = torch.optim.AdamW(theta.parameters(), lr=3e-3)
SYNC, CAP, CLIP = 3, 2.0, 0.2

for it in range(30):
    if it % SYNC == 0:
        # the worker gets its weights through bfloat16, every third iteration
        worker.load_state_dict({k: v.bfloat16().float() for k, v in theta.state_dict().items()})
    x = torch.randint(0, 13, (NP, LP)).repeat_interleave(NG, 0)
    alive, mask, beh = torch.ones(NP * NG).bool(), [], []
    with torch.no_grad():
        for _ in range(LA):
            l = F.log_softmax(logits(worker, x)[:, -1], -1)
            a = torch.multinomial(l.exp(), 1)[:, 0]
            a = torch.where(alive, a, torch.full_like(a, E))
            beh.append(l.gather(1, a[:, None])[:, 0]); mask.append(alive.float())
            alive = alive & (a != E)
            x = torch.cat([x, a[:, None]], 1)
    mask, beh = torch.stack(mask, 1), torch.stack(beh, 1)
    y = x[:, LP:]
    r = ((y == x[:, 0:1]) * mask).sum(1).clamp(max=1) + ((y == x[:, 2:3]) * mask).sum(1).clamp(max=1) + .5 * ((y == E) * mask).sum(1) - .1 * mask.sum(1)
    rg = r.view(NP, NG)
    adv = ((rg - rg.mean(1, keepdim=True)) / (rg.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    with torch.no_grad():
        prox = act_lp(theta, x)
        w = (prox - beh).exp().clamp(max=CAP)       # truncated importance weight: sampler -> proximal
    for _ in range(2):
        cur = act_lp(theta, x)
        rho = (cur - prox).exp()
        obj = torch.min(rho * adv, rho.clamp(1 - CLIP, 1 + CLIP) * adv)
        loss = -(w * obj * mask).sum() / mask.sum()
        opt.zero_grad(); loss.backward()
        nn.utils.clip_grad_norm_(theta.parameters(), 1.0)
        opt.step()
    if it % 4 == 0:
        mb = mask.bool()
        print(f"{it:2d} r {r.mean():.3f} w {w[mb].mean():.3f} ({w[mb].min():.2f}..{w[mb].max():.2f}) rho {rho[mb].min():.2f}..{rho[mb].max():.2f}")
print("end", r.mean().item())
