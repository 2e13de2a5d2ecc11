"""Separate rollout engine, as with an inference server: the learner pushes its weights before every batch."""
import logging

import torch
import torch.nn as nn

logging.basicConfig(format="%(message)s", level=logging.INFO)
log = logging.getLogger("rl")

VOC, END = 18, 17


class Backbone(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.embed = nn.Embedding(VOC, hidden)
        self.rnn = nn.LSTM(hidden, hidden, num_layers=1, batch_first=True)
        self.lm_head = nn.Linear(hidden, VOC)

    def forward(self, ids, state=None):
        h, state = self.rnn(self.embed(ids), state)
        return self.lm_head(h), state


class Learner(nn.Module):
    """Wraps the network with what the update needs."""

    def __init__(self):
        super().__init__()
        self.module = Backbone()

    def logprobs(self, prompt, answer):
        full = torch.cat([prompt, answer], 1)
        logits, _ = self.module(full[:, :-1])
        lp = torch.log_softmax(logits, -1).gather(2, full[:, 1:, None])[..., 0]
        return lp[:, prompt.shape[1] - 1:]


class Engine:
    def __init__(self, state):
        self.net = Backbone()
        self.net.load_state_dict({k.removeprefix("module."): v for k, v in state.items()})
        self.net.eval()

    def load(self, state):
        self.net.load_state_dict(state, strict=False)

    @torch.no_grad()
    def sample(self, prompt, limit):
        logits, state = self.net(prompt)
        stopped = torch.zeros(prompt.shape[0], dtype=torch.bool)
        toks, valid = [], []
        for _ in range(limit):
            t = torch.multinomial(torch.softmax(logits[:, -1], -1), 1)
            t[stopped] = END
            toks.append(t)
            valid.append(~stopped)
            stopped = stopped | (t[:, 0] == END)
            logits, state = self.net(t, state)
        return torch.cat(toks, 1), torch.stack(valid, 1).float()


def reward(prompt, answer, valid):
    target = (prompt[:, 0] + prompt[:, 1]) % 17
    dist = (answer - target[:, None]).abs().float()
    return ((1 - dist / 17) * valid * (answer != END)).sum(1) / 4


def main(steps=30, prompts=6, group=8, limit=8, lr=2e-3, clip=0.2):
    torch.manual_seed(77)
    learner = Learner()
    engine = Engine(learner.state_dict())
    opt = torch.optim.AdamW(learner.parameters(), lr=lr)
    for step in range(steps):
        engine.load(learner.state_dict())
        prompt = torch.randint(0, 17, (prompts, 3)).repeat_interleave(group, 0)
        answer, valid = engine.sample(prompt, limit)
        r = reward(prompt, answer, valid)
        g = r.view(prompts, group)
        adv = ((g - g.mean(1, True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        with torch.no_grad():
            old = learner.logprobs(prompt, answer)
        for _ in range(2):
            lp = learner.logprobs(prompt, answer)
            ratio = (lp - old).exp()
            gain = torch.min(ratio * adv, ratio.clamp(1 - clip, 1 + clip) * adv)
            loss = -(gain * valid).sum() / valid.sum()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
            opt.step()
        if step % 3 == 0:
            log.info("step=%d reward=%.4f len=%.2f", step, r.mean(), valid.sum(1).mean())
    log.info("end reward=%.4f", r.mean())


if __name__ == "__main__":
    main()
