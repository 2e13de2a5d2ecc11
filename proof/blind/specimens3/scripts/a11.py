"""Multi-turn GRPO: the policy may ask a calculator. What the calculator writes is context, not an action."""
import torch
import torch.nn as nn

CALL, END, ASK, RESULT = 10, 11, 12, 13
VOCAB = 14
SPAN = 8                                  # tokens after the prompt, the calculator's included

rng = torch.Generator().manual_seed(8)
torch.manual_seed(8)


class Net(nn.Module):
    def __init__(self, d=56):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.rnn = nn.LSTM(d, 96, batch_first=True)
        self.proj = nn.Linear(96, VOCAB)

    def forward(self, x, s=None):
        h, s = self.rnn(self.emb(x), s)
        return self.proj(h), s


class Episode:
    def __init__(self, x, y):
        self.x, self.y = x, y
        self.prompt = [x, y, ASK]
        self.tokens, self.is_action = [], []
        self.pending = []                 # what the calculator has still to write
        self.over = False

    def next_forced(self):
        return self.pending.pop(0) if self.pending else None

    def push(self, tok, action):
        self.tokens.append(tok)
        self.is_action.append(action)
        if action and tok == CALL:
            self.pending = [RESULT, (self.x + self.y) % 10]
        if action and tok == END:
            self.over = True

    def score(self):
        """1 for a right digit just before END, if the policy itself wrote the digit; a little for having asked."""
        own = [t for t, a in zip(self.tokens, self.is_action) if a]
        asked = 0.15 if CALL in own else 0.0
        right = self.over and len(self.tokens) >= 2 and self.is_action[-2] and self.tokens[-2] == (self.x + self.y) % 10
        near = 0.25 if (self.x + self.y) % 10 in own else 0.0
        return asked + near + (1.0 if right else 0.0)


@torch.no_grad()
def play(net, eps):
    logits, s = net(torch.tensor([e.prompt for e in eps]))
    for _ in range(SPAN):
        drawn = torch.multinomial(logits[:, -1].softmax(-1), 1)[:, 0].tolist()
        column = []
        for e, t in zip(eps, drawn):
            if e.over:
                column.append(END)
                continue
            forced = e.next_forced()
            if forced is None:
                e.push(t, True)
            else:
                e.push(forced, False)
            column.append(e.tokens[-1])
        logits, s = net(torch.tensor(column)[:, None], s)


def collate(eps):
    ids = torch.full((len(eps), SPAN), END)
    act = torch.zeros(len(eps), SPAN)
    for i, e in enumerate(eps):
        ids[i, : len(e.tokens)] = torch.tensor(e.tokens)
        act[i, : len(e.tokens)] = torch.tensor([float(a) for a in e.is_action])
    return torch.tensor([e.prompt for e in eps]), ids, act


def logp_of(net, prompt, ids):
    logits, _ = net(torch.cat([prompt, ids[:, :-1]], 1))
    return logits[:, prompt.shape[1] - 1:].log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def main(iterations=70, n=6, g=12):
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    for it in range(iterations):
        xy = torch.randint(0, 10, (n, 2), generator=rng).tolist()
        eps = [Episode(x, y) for x, y in xy for _ in range(g)]
        play(net, eps)
        prompt, ids, act = collate(eps)
        r = torch.tensor([e.score() for e in eps]).view(n, g)
        adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        old = logp_of(net, prompt, ids).detach()
        for _ in range(2):
            ratio = (logp_of(net, prompt, ids) - old).exp()
            gain = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
            loss = -(gain * act).sum() / act.sum()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
        if it % 10 == 0:
            print(f"{it:3d} score {r.mean():.3f} asked {sum(CALL in e.tokens for e in eps) / len(eps):.2f} own tokens {act.sum(1).mean():.2f}")


main()
