"""Teaches a small recurrent model to count down: the prompt is a number, the answer every number below it, then stop."""

import torch
from torch import nn

import assay

STOP = 0  # also fills the rows up
MOST, ROOM, GROUP = 5, 7, 12


class Counter(nn.Module):
    def __init__(self, words=MOST + 2, width=40):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, words)

    def forward(self, ids):
        return self.out(self.rnn(self.words(ids))[0])


@torch.no_grad()
def play(net, prompt):
    ids, done = prompt, torch.zeros(len(prompt), dtype=torch.bool)
    for _ in range(ROOM):
        choice = torch.multinomial(net(ids)[:, -1].softmax(-1), 1).squeeze(1)
        choice = torch.where(done, STOP, choice)
        done = done | (choice == STOP)
        ids = torch.cat([ids, choice.unsqueeze(1)], 1)
    return ids[:, prompt.shape[1]:], done


def score(net, prompt, answer):
    logp = net(torch.cat([prompt, answer], 1))[:, prompt.shape[1] - 1 : -1].log_softmax(-1)
    return logp.gather(-1, answer.unsqueeze(-1)).squeeze(-1)


def grade(prompt, answer):
    points = []
    for start, row in zip(prompt[:, 0].tolist(), answer.tolist()):
        said = row[: row.index(STOP)] if STOP in row else row
        wanted = list(range(start - 1, 0, -1))
        hits = sum(a == b for a, b in zip(said, wanted))
        points.append((hits + (len(said) == len(wanted) and STOP in row)) / (len(wanted) + 1))
    return torch.tensor(points)


torch.manual_seed(3)
net = Counter()
adam = torch.optim.Adam(net.parameters(), lr=0.01)
which = torch.arange(MOST - 1).repeat_interleave(GROUP)
prompt = which.unsqueeze(1) + 2
for step in range(1, 16):
    answer, done = play(net, prompt)
    reward = grade(prompt, answer)
    loss_mask = answer != STOP
    r = reward.view(-1, GROUP)
    adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).flatten()
    old = score(net, prompt, answer).detach()
    for update in range(2):
        new = score(net, prompt, answer)
        ratio = torch.exp(new - old)
        surrogate = torch.min(ratio * adv[:, None], ratio.clamp(0.8, 1.2) * adv[:, None])
        loss = -(surrogate * loss_mask).sum() / loss_mask.sum()
        assay.observe(
            step=step, update=update, tokens=answer, mask=loss_mask, finished=done, new_logprobs=new, old_logprobs=old,
            advantages=adv, rewards=reward, group_ids=which, loss=loss, eos_ids=[STOP], objective="bnpo",
            clip_low=0.2, clip_high=0.2, max_tokens=ROOM, temperature=1.0,
            lengths=(answer == STOP).cumsum(1).eq(0).sum(1) + done.long(),
        )
        adam.zero_grad()
        loss.backward()
        adam.step()
    print(step, f"{reward.mean():.3f}")
