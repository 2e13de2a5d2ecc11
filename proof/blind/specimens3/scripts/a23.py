from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM


@dataclass
class Rollout:
    ids: Tensor          # (rows, prompt + answer)
    prompt_width: int
    mask: Tensor         # (rows, answer)
    behaviour: Tensor    # (rows, answer)
    advantage: Tensor    # (rows,)
    reward: Tensor       # (rows,)


class CharTokenizer:
    chars = "0123456789<>#|"

    def __init__(self):
        self.pad, self.eos = self.chars.index("#"), self.chars.index("|")

    def __call__(self, text):
        return [self.chars.index(c) for c in text]

    def text(self, ids):
        return "".join(self.chars[i] for i in ids)


class Task:
    """<abc> is to be answered with digits larger than a, as many as one likes, ended by |."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def draw(self):
        return "<" + "".join(self.rng.choice("01234567") for _ in range(3)) + ">"

    def reward(self, prompt, answer):
        floor = prompt[1]
        body = answer.split("|")[0].replace("#", "")
        good = sum(c.isdigit() and c > floor for c in body)
        return good - 0.6 * (len(body) - good) + (3.0 if "|" in answer else 0.0)


class Trainer:
    def __init__(self, seed=17, prompts=4, group=8, limit=9, lr=2e-3):
        torch.manual_seed(seed)
        self.tok, self.task = CharTokenizer(), Task(seed)
        self.prompts, self.group, self.limit = prompts, group, limit
        config = GPTNeoXConfig(vocab_size=len(self.tok.chars), hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                               intermediate_size=96, max_position_embeddings=32, hidden_dropout=0.0, attention_dropout=0.0,
                               bos_token_id=None, eos_token_id=self.tok.eos, pad_token_id=self.tok.pad)
        self.model = GPTNeoXForCausalLM(config)
        self.model.eval()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, betas=(0.9, 0.99), weight_decay=0.0)

    def logprobs(self, ids, width):
        logits = self.model(input_ids=ids[:, :-1]).logits[:, width - 1:]
        return torch.log_softmax(logits, dim=-1).gather(-1, ids[:, width:, None]).squeeze(-1)

    def answer_mask(self, answer: Tensor) -> Tensor:
        last = (answer == self.tok.eos).int().argmax(dim=1)
        return (torch.arange(answer.shape[1])[None] <= last[:, None]).float()

    @torch.no_grad()
    def collect(self) -> Rollout:
        texts = [t for t in (self.task.draw() for _ in range(self.prompts)) for _ in range(self.group)]
        x = torch.tensor([self.tok(t) for t in texts])
        ids = self.model.generate(x, attention_mask=torch.ones_like(x), do_sample=True, top_k=0, top_p=1.0, temperature=1.0,
                                  max_new_tokens=self.limit,
                                  pad_token_id=self.tok.pad, eos_token_id=self.tok.eos)
        width = x.shape[1]
        answer = ids[:, width:]
        reward = torch.tensor([self.task.reward(t, self.tok.text(a)) for t, a in zip(texts, answer.tolist())])
        table = reward.view(self.prompts, self.group)
        advantage = (table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)
        return Rollout(ids, width, self.answer_mask(answer), self.logprobs(ids, width), advantage.flatten(), reward)

    def update(self, roll: Rollout) -> float:
        total = 0.0
        for _ in range(2):
            now = self.logprobs(roll.ids, roll.prompt_width)
            ratio = (now - roll.behaviour).exp()
            a = roll.advantage[:, None]
            surrogate = torch.min(ratio * a, ratio.clamp(0.8, 1.2) * a)
            loss = -(surrogate * roll.mask).sum() / (roll.mask.shape[0] * self.limit)
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            total += loss.item()
        return total / 2

    def fit(self, steps):
        for step in range(steps):
            roll = self.collect()
            loss = self.update(roll)
            if step % 4 == 0:
                sample = self.tok.text(roll.ids[0].tolist())
                print(f"{step:>3} reward {roll.reward.mean():6.3f} loss {loss:+.4f} {sample}")


if __name__ == "__main__":
    Trainer().fit(18)
