import math, time, logging
import torch
import torch.nn as nn

logging.basicConfig(level=logging.INFO, format="%(message)s")
log = logging.getLogger("grpo")
torch.manual_seed(64); torch.set_num_threads(1)

TOTAL_STEPS = 48
WARMUP = 4
EPOCHS_PER_BATCH = 2
MINIBATCHES = 2
PEAK_LR = 4e-3

class SeqPolicy(nn.Module):
    def __init__(self, V=14, H=56):
        super().__init__()
        self.V = V
        self.inp = nn.Embedding(V, H)
        self.core = nn.GRU(H, H, batch_first=True)
        self.head = nn.Linear(H, V)
    def forward(self, s):
        y, _ = self.core(self.inp(s))
        return self.head(y)
    @torch.no_grad()
    def complete(self, s, n):
        y, h = self.core(self.inp(s))
        z = self.head(y[:, -1])
        out = [s]
        for i in range(n):
            t = torch.multinomial(z.softmax(-1), 1)
            out.append(t)
            y, h = self.core(self.inp(t), h)
            z = self.head(y[:, -1])
        return torch.cat(out, 1)
    def logp(self, s, n):
        z = self(s[:, :-1])[:, -n:]
        return z.log_softmax(-1).gather(-1, s[:, -n:, None]).squeeze(-1)

def lr_lambda(k, total=TOTAL_STEPS, warm=WARMUP):
    if k < warm:
        return (k + 1) / warm
    x = min(1.0, (k - warm) / (total - warm))
    return 0.5 * (1 + math.cos(math.pi * x))

def reward(s):
    q, a = s[:, :2], s[:, 2:]
    target = q.sum(1, keepdim=True) // 2
    return torch.exp(-((a - target).float() ** 2) / 8).mean(1)

policy = SeqPolicy()
optim = torch.optim.AdamW(policy.parameters(), lr=PEAK_LR, weight_decay=1e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optim, lr_lambda)
P, G, N = 6, 8, 4

for step in range(TOTAL_STEPS):
    q = torch.randint(0, policy.V, (P, 2)).repeat_interleave(G, 0)
    s = policy.complete(q, N)
    r = reward(s)
    rg = r.view(P, G)
    adv = ((rg - rg.mean(1, keepdim=True)) / (rg.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    with torch.no_grad():
        old = policy.logp(s, N)
    for _ in range(EPOCHS_PER_BATCH):
        for mb in torch.randperm(P * G).chunk(MINIBATCHES):
            ratio = (policy.logp(s[mb], N) - old[mb]).exp()
            loss = -torch.min(ratio * adv[mb], ratio.clamp(0.8, 1.2) * adv[mb]).mean()
            optim.zero_grad(set_to_none=True)
            loss.backward()
            optim.step()
            scheduler.step()
    if step % 6 == 0:
        log.info("step %d reward %.3f lr %.2e", step, r.mean(), scheduler.get_last_lr()[0])
