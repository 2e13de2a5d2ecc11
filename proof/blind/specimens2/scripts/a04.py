# rollout worker and learner are two objects with two copies of the net, as in a real cluster, in one process
import threading, queue, time, collections
import torch, torch.nn as nn

torch.manual_seed(5); torch.set_num_threads(1)
N_TOK, CTX, ANS = 16, 4, 5

def mk():
    return nn.ModuleDict(dict(e=nn.Embedding(N_TOK, 32), p=nn.Embedding(CTX + ANS, 32),
                              l=nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True),
                              h=nn.Linear(32, N_TOK)))

def fwd(m, ids):
    T = ids.size(1)
    causal = torch.triu(torch.full((T, T), float('-inf')), 1)
    return m['h'](m['l'](m['e'](ids) + m['p'].weight[:T], src_mask=causal))

class Worker:
    def __init__(self, state):
        self.net = mk().eval(); self.version = ''
        self.pull(state, '0')
    def pull(self, state, version):
        if version <= self.version: return
        self.net.load_state_dict(state); self.version = version
    @torch.no_grad()
    def act(self, ctx):
        x = ctx
        for _ in range(ANS):
            d = torch.distributions.Categorical(logits=fwd(self.net, x)[:, -1])
            x = torch.cat([x, d.sample()[:, None]], 1)
        return x

class Learner:
    def __init__(self):
        self.net = mk(); self.opt = torch.optim.Adam(self.net.parameters(), 2e-3); self.version = 0
    def learn(self, x, adv, epochs=2):
        a = x[:, CTX:, None]
        old = None
        for _ in range(epochs):
            lp = fwd(self.net, x[:, :-1])[:, CTX - 1:].log_softmax(-1).gather(-1, a).squeeze(-1)
            if old is None: old = lp.detach()
            r = (lp - old).exp()
            loss = -torch.min(r * adv, r.clip(.8, 1.25) * adv).mean()
            self.opt.zero_grad(); loss.backward()
            nn.utils.clip_grad_norm_(self.net.parameters(), .5)
            self.opt.step()
        self.version += 1
        return loss.item()

def judge(x):
    c, a = x[:, :CTX], x[:, CTX:]
    # the answer should climb, starting above the last token of the context
    prev = torch.cat([c[:, -1:], a[:, :-1]], 1)
    return (a == (prev + 1) % N_TOK).float().mean(1) * 2 + (a > prev).float().mean(1)

learner = Learner()
worker = Worker(learner.net.state_dict())
K, P = 10, 4
window = collections.deque(maxlen=10)
for it in range(50):
    ctx = torch.randint(0, N_TOK, (P, CTX)).repeat_interleave(K, 0)
    x = worker.act(ctx)
    rew = judge(x)
    gr = rew.reshape(P, K)
    adv = ((gr - gr.mean(1, keepdim=True)) / (gr.std(1, keepdim=True) + 1e-3)).reshape(-1, 1)
    l = learner.learn(x, adv)
    worker.pull(learner.net.state_dict(), f'{learner.version}')
    window.append(rew.mean().item())
    if it % 10 == 9: print(it, 'avg10', sum(window) / len(window), 'v', worker.version, 'loss', l)
