"""Learner and worker have a copy of the model each; after every update the learner's weights go to the worker."""

import torch
from torch import nn

import assay

torch.manual_seed(31)
N_TOKENS, N_NEW, GROUP, BATCH, TAU = 9, 4, 8, 8, 1.2


def build():
    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(N_TOKENS, 32)
            self.rnn = nn.RNN(32, 32, batch_first=True)
            self.fc = nn.Linear(32, N_TOKENS)

        def forward(self, ids):
            return self.fc(self.rnn(self.wte(ids))[0])

    return Policy()


class Wrapped(nn.Module):
    """As a distributed wrapper does it: the model is an attribute."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args):
        return self.module(*args)


class Worker:
    def __init__(self, state):
        self.model, self.version = build(), 0
        self.model.load_state_dict(state)

    def sync(self, state, version):
        self.model.load_state_dict({name: value for name, value in state.items()}, strict=False)
        self.version = version

    @torch.no_grad()
    def generate(self, prompts):
        ids, logps = prompts, []
        for _ in range(N_NEW):
            logp = (self.model(ids)[:, -1] / TAU).log_softmax(-1)
            tok = torch.multinomial(logp.exp(), 1)
            logps.append(logp.gather(1, tok))
            ids = torch.cat([ids, tok], 1)
        return ids[:, prompts.shape[1] :], torch.cat(logps, 1), [self.version] * len(ids)


learner = Wrapped(build())
worker = Worker(learner.module.state_dict())
opt = torch.optim.Adam(learner.parameters(), lr=0.01)
version = 0
for step in range(1, 15):
    prompts = torch.randint(N_TOKENS, (BATCH, 1)).repeat_interleave(GROUP, 0)
    tokens, sampler, versions = worker.generate(prompts)
    rewards = (tokens == (prompts + torch.arange(N_NEW)) % N_TOKENS).float().sum(1)
    r = rewards.view(BATCH, GROUP)
    advantages = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1)
    new = (learner(torch.cat([prompts, tokens], 1))[:, :-1] / TAU).log_softmax(-1).gather(2, tokens[..., None])[..., 0]
    loss = -((new - new.detach()).exp() * advantages[:, None]).mean()
    assay.observe(
        step=step, update=0, policy_version=version, sampler_versions=versions, tokens=tokens,
        mask=torch.ones_like(tokens), new_logprobs=new, old_logprobs=new.detach(), sampler_logprobs=sampler,
        advantages=advantages, rewards=rewards, group_ids=torch.arange(BATCH).repeat_interleave(GROUP),
        temperature=TAU, objective="grpo", prompt_tokens=prompts, max_reward=float(N_NEW),
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
    version += 1
    worker.sync(learner.state_dict(), version)
    print(step, f"{rewards.mean():.3f} {(new.detach() - sampler).abs().mean():.4f}")
