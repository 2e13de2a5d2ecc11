"""An actor that is always one update behind the learner, and the importance weight that makes up for it."""

import copy
from collections import deque

import torch
from torch import nn

import assay

V, L, G, P = 9, 4, 12, 6


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Embedding(V, 32)
        self.b = nn.LSTM(32, 32, batch_first=True)
        self.c = nn.Linear(32, V)

    def forward(self, x):
        return self.c(self.b(self.a(x))[0])


def log_probs(net, x, y):
    z = net(torch.cat([x, y], 1))[:, x.shape[1] - 1 : -1].log_softmax(-1)
    return z.gather(2, y.unsqueeze(2)).squeeze(2)


class Actor:
    """Its weights arrive late; it knows their version."""

    def __init__(self, net):
        self.net, self.version = copy.deepcopy(net), 0
        self.mail = deque()

    def send(self, net, version):
        self.mail.append((copy.deepcopy(net.state_dict()), version))

    def receive(self):
        if len(self.mail) > 1:
            state, self.version = self.mail.popleft()
            self.net.load_state_dict(state)

    @torch.no_grad()
    def act(self, x):
        ids, lps = x, []
        for _ in range(L):
            d = torch.distributions.Categorical(logits=self.net(ids)[:, -1])
            t = d.sample()
            lps.append(d.log_prob(t))
            ids = torch.cat([ids, t[:, None]], 1)
        return ids[:, x.shape[1] :], torch.stack(lps, 1)


torch.manual_seed(4)
learner = Net()
actor = Actor(learner)
opt = torch.optim.Adam(learner.parameters(), lr=0.03)
version = 0
for step in range(1, 15):
    actor.send(learner, version)
    actor.receive()
    x = torch.randint(1, V, (P, 2)).repeat_interleave(G, 0)
    y, behaviour = actor.act(x)
    rewards = (y == x[:, :1]).float().mean(1) + 0.2 * (y[:, 1:] == y[:, :-1]).float().mean(1)
    r = rewards.view(P, G)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    new = log_probs(learner, x, y)
    old = new.detach()
    weight = (old - behaviour).exp().clamp(max=2.0)
    ratio = (new - old).exp()
    token_loss = -weight * torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
    loss = token_loss.mean()
    assay.observe(
        step=step, update=0, tokens=y, mask=torch.ones_like(y), new_logprobs=new, old_logprobs=old,
        sampler_logprobs=behaviour, sampler_versions=[actor.version] * len(y), policy_version=version, ratio=ratio,
        advantages=adv.squeeze(1), rewards=rewards, group_ids=torch.arange(P).repeat_interleave(G), loss=loss,
        token_loss=token_loss, correction="token", correction_mode="truncate", correction_high=2.0, objective="grpo",
        prompt_tokens=x, prompt_mask=torch.ones_like(x), temperature=1.0, model=learner if step in (1, 5) else None,
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
    version += 1
    print(step, round(float(rewards.mean()), 3), round(float(weight.max()), 2))
