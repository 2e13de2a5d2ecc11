"""
Adapters are trained on top of a frozen base; rollouts come from a plain "engine" model without adapter layers,
into which the adapters are folded before every round (the engine has no code for adapters, and is faster so).
"""
import copy
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(100)

CONTENT = 9          # tokens 0..8
FIN = 9
SEP = 10
SIZE = 11
MAX_OUT = 6


class Layer(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.na, self.nb = nn.RMSNorm(w), nn.RMSNorm(w)
        self.q, self.k, self.v, self.o = (nn.Linear(w, w, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(w, 3 * w, bias=False), nn.Linear(3 * w, w, bias=False)

    def forward(self, x):
        n = self.na(x)
        x = x + self.o(F.scaled_dot_product_attention(self.q(n), self.k(n), self.v(n), is_causal=True))
        return x + self.down(F.silu(self.up(self.nb(x))))


class Decoder(nn.Module):
    def __init__(self, w=48, n=2):
        super().__init__()
        self.emb = nn.Embedding(SIZE, w)
        self.where = nn.Embedding(16, w)
        self.layers = nn.ModuleList(Layer(w) for _ in range(n))
        self.last = nn.RMSNorm(w)
        self.head = nn.Linear(w, SIZE - 1, bias=False)

    def forward(self, t):
        x = self.emb(t) + self.where.weight[: t.shape[1]]
        for l in self.layers:
            x = l(x)
        return self.head(self.last(x))


class Adapted(nn.Module):
    def __init__(self, linear, r=6, gain=2.0):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.A = nn.Parameter(torch.empty(r, linear.in_features).normal_(0, linear.in_features ** -0.5))
        self.B = nn.Parameter(torch.zeros(linear.out_features, r))
        self.gain = gain

    def delta(self):
        return self.gain * self.B @ self.A

    def forward(self, x):
        return self.linear(x) + self.gain * F.linear(F.linear(x, self.A), self.B)


def adapt(model):
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for key, child in list(parent.named_children()):
            if isinstance(child, nn.Linear):
                setattr(parent, key, Adapted(child))
    return model


class Engine:
    def __init__(self, base):
        self.model = copy.deepcopy(base).eval()

    @torch.no_grad()
    def load_adapters(self, trained):
        for name, mod in trained.named_modules():
            if isinstance(mod, Adapted):
                self.model.get_submodule(name).weight += mod.delta()

    @torch.no_grad()
    def __call__(self, prompts):
        seq = prompts
        finished = torch.zeros(seq.shape[0], 1, dtype=torch.bool)
        drawn = []
        for _ in range(MAX_OUT):
            nxt = torch.multinomial(self.model(seq)[:, -1].softmax(-1), 1)
            nxt = nxt.masked_fill(finished, FIN)
            drawn.append(~finished)
            finished = finished | (nxt == FIN)
            seq = torch.cat((seq, nxt), 1)
        return seq, torch.cat(drawn, 1).float()


base = Decoder()
engine = Engine(base)
policy = adapt(base)
adapter_params = [p for p in policy.parameters() if p.requires_grad]
opt = torch.optim.AdamW(adapter_params, lr=6e-3, weight_decay=0.0)

QUESTIONS, EACH = 6, 8
for rnd in range(45):
    engine.load_adapters(policy)
    pair = torch.randint(0, CONTENT, (QUESTIONS, 2))
    prompts = torch.cat([pair, torch.full((QUESTIONS, 1), SEP)], 1).repeat_interleave(EACH, 0)
    seq, drawn = engine(prompts)
    reply = seq[:, 3:]

    hit = (reply == prompts[:, :1]) | (reply == prompts[:, 1:2])
    ended = (reply[:, -1] == FIN) & (reply[:, 0] != FIN)
    reward = (hit.float() * drawn).sum(1) / MAX_OUT + 0.15 * ended.float()
    by_q = reward.view(QUESTIONS, EACH)
    adv = (by_q - by_q.mean(1, keepdim=True)) / (by_q.std(1, keepdim=True) + 1e-4)
    adv = adv.reshape(-1, 1)

    logp = F.log_softmax(policy(seq[:, :-1])[:, 2:], -1).gather(-1, reply[..., None]).squeeze(-1)
    loss = -((logp - logp.detach()).exp() * adv * drawn).sum() / drawn.sum()
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(adapter_params, 1.0)
    opt.step()
    if rnd % 4 == 0:
        print(f"round {rnd:2d} | reward {reward.mean():.3f} | norm {norm:.3f} | words {drawn.sum(1).mean():.2f}")
