import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(270)

BETA = 0.1
EPS = 0.2
VOCAB = 21
EOS = 20


class MiniLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 64)
        self.lstm = nn.LSTM(64, 64, batch_first=True)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, VOCAB)

    def forward(self, ids):
        return self.head(self.norm(self.lstm(self.embed(ids))[0]))


class Trainer:
    def __init__(self, model, lr=2e-3, group=8, batch=6, limit=8):
        self.model = model
        self.ref_model = self._frozen_copy(model)
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr)
        self.group, self.batch, self.limit = group, batch, limit

    @staticmethod
    def _frozen_copy(model):
        ref = copy.copy(model)
        ref.eval()
        return ref

    @torch.no_grad()
    def generate(self, prompts):
        ids = prompts
        over = torch.zeros(len(ids), dtype=torch.bool)
        for _ in range(self.limit):
            nxt = torch.multinomial(F.softmax(self.model(ids)[:, -1], -1), 1).squeeze(1)
            nxt[over] = EOS
            over |= nxt == EOS
            ids = torch.cat([ids, nxt[:, None]], 1)
        return ids

    def logps(self, model, ids, n):
        return F.log_softmax(model(ids[:, :-1]), -1).gather(2, ids[:, 1:, None]).squeeze(2)[:, n - 1:]

    def reward(self, prompts, comp, mask):
        low = (comp < 8).float() * mask
        own = (comp == prompts[:, :1]).float() * mask
        return (low.sum(1) + own.sum(1)) / mask.sum(1) + 0.8 * ((comp == EOS) * mask).sum(1)

    def step(self):
        prompts = torch.randint(0, 20, (self.batch, 3)).repeat_interleave(self.group, 0)
        n = prompts.shape[1]
        ids = self.generate(prompts)
        comp = ids[:, n:]
        e = (comp == EOS).int()
        mask = (e.cumsum(1) - e == 0).float()
        rewards = self.reward(prompts, comp, mask)
        g = rewards.view(self.batch, self.group)
        adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        with torch.no_grad():
            old = self.logps(self.model, ids, n)
        for _ in range(2):
            with torch.no_grad():
                ref = self.logps(self.ref_model, ids, n)
            lp = self.logps(self.model, ids, n)
            ratio = torch.exp(lp - old)
            kl = torch.exp(ref - lp) - (ref - lp) - 1
            per_token = torch.min(ratio * adv, torch.clamp(ratio, 1 - EPS, 1 + EPS) * adv) - BETA * kl
            loss = -(per_token * mask).sum() / mask.sum()
            self.opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
        return {"reward": rewards.mean().item(), "kl": ((kl * mask).sum() / mask.sum()).item(), "length": mask.sum(1).mean().item()}


trainer = Trainer(MiniLM())
for i in range(28):
    stats = trainer.step()
    if i % 4 == 0:
        print(i, {k: round(v, 4) for k, v in stats.items()})
print("end", stats["reward"])
