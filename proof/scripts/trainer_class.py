"""Object oriented GRPO trainer with a separate rollout engine (as with an inference server)."""
from __future__ import annotations

import copy
import random
from dataclasses import dataclass, field
from typing import Callable, List, Optional, Tuple

import torch
from torch import Tensor, nn


@dataclass
class GRPOConfig:
    seed: int = 3
    total_steps: int = 5
    prompts_per_batch: int = 4
    num_generations: int = 6
    mini_epochs: int = 2
    micro_batch_size: int = 8
    max_new_tokens: int = 6
    temperature: float = 0.8
    learning_rate: float = 5e-3
    clip_low: float = 0.2
    clip_high: float = 0.2
    beta: float = 0.05
    is_cap: float = 2.0
    max_grad_norm: float = 0.5
    hidden_size: int = 48
    dropout: float = 0.0
    mask_truncated: bool = True


class CharTokenizer:
    def __init__(self, alphabet: str = "0123456789:,") -> None:
        self.tokens: List[str] = ["[PAD]", "[END]"] + list(alphabet) + ["12", "21", "33"]
        self.index = {t: i for i, t in enumerate(self.tokens)}
        self.pad_id, self.end_id = 0, 1

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: str) -> List[int]:
        ids: List[int] = []
        while text:
            size = 2 if text[:2] in self.index else 1
            ids.append(self.index[text[:size]])
            text = text[size:]
        return ids

    def decode(self, ids: List[int]) -> str:
        if self.end_id in ids:
            ids = ids[: ids.index(self.end_id)]
        return "".join(self.tokens[i] for i in ids if i != self.pad_id)


class RecurrentPolicy(nn.Module):
    def __init__(self, vocab_size: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, hidden)
        self.rnn = nn.GRU(hidden, hidden, batch_first=True)
        self.drop = nn.Dropout(dropout)
        self.lm_head = nn.Linear(hidden, vocab_size)

    def forward(self, ids: Tensor, state: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        features, state = self.rnn(self.embed(ids), state)
        return self.lm_head(self.drop(features)), state


@dataclass
class RolloutBuffer:
    sequences: Tensor
    mask: Tensor
    sampler_logprobs: Tensor
    rewards: Tensor
    advantages: Tensor
    prompt_len: int
    old_logprobs: Tensor = field(default_factory=lambda: torch.empty(0))
    ref_logprobs: Tensor = field(default_factory=lambda: torch.empty(0))


class InferenceEngine:
    """Holds its own copy of the weights; `load` brings the trainer's."""

    def __init__(self, policy: nn.Module, config: GRPOConfig, tokenizer: CharTokenizer) -> None:
        self.net = copy.deepcopy(policy).eval()
        self.config = config
        self.tokenizer = tokenizer

    def load(self, policy: nn.Module) -> None:
        self.net.load_state_dict(policy.state_dict())

    @torch.inference_mode()
    def __call__(self, prompts: Tensor) -> Tuple[Tensor, Tensor]:
        state, inp = None, prompts
        out_ids, out_lps = [], []
        stopped = torch.zeros(prompts.size(0), dtype=torch.bool)
        for _ in range(self.config.max_new_tokens):
            logits, state = self.net(inp, state)
            logp = torch.log_softmax(logits[:, -1] / self.config.temperature, dim=-1)
            choice = torch.multinomial(logp.exp(), 1)
            chosen_logp = logp.gather(1, choice).squeeze(1)
            choice = choice.squeeze(1).masked_fill(stopped, self.tokenizer.pad_id)
            out_ids.append(choice)
            out_lps.append(chosen_logp.masked_fill(stopped, 0.0))
            stopped |= choice == self.tokenizer.end_id
            inp = choice.unsqueeze(1)
        return torch.stack(out_ids, 1), torch.stack(out_lps, 1)


class GRPOTrainer:
    def __init__(self, config: GRPOConfig, reward_fn: Callable[[str, str], float]) -> None:
        self.config = config
        self.reward_fn = reward_fn
        self.tokenizer = CharTokenizer()
        self.policy = RecurrentPolicy(len(self.tokenizer), config.hidden_size, config.dropout)
        self.reference = copy.deepcopy(self.policy).eval().requires_grad_(False)
        self.engine = InferenceEngine(self.policy, config, self.tokenizer)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), lr=config.learning_rate, betas=(0.9, 0.95))
        self.metrics: dict = {}

    def make_prompts(self) -> Tuple[Tensor, List[str]]:
        texts = ["%d%d%d:" % tuple(random.choices(range(10), k=3)) for _ in range(self.config.prompts_per_batch)]
        texts = [t for t in texts if not any(m in t for m in ("12", "21", "33"))] or ["456:"]
        while len(texts) < self.config.prompts_per_batch:
            texts.append(texts[0])
        return torch.tensor([self.tokenizer.encode(t) for t in texts]), texts

    def logprobs(self, model: nn.Module, sequences: Tensor, prompt_len: int) -> Tensor:
        logits, _ = model(sequences[:, :-1])
        logits = logits[:, prompt_len - 1 :].float() / self.config.temperature
        labels = sequences[:, prompt_len:]
        return logits.gather(-1, labels[..., None])[..., 0] - torch.logsumexp(logits, dim=-1)

    def make_mask(self, completions: Tensor) -> Tensor:
        ended = (completions == self.tokenizer.end_id).long()
        mask = (ended.cumsum(1) - ended).eq(0).float()
        if self.config.mask_truncated:
            mask = mask * ended.any(dim=1, keepdim=True)
        return mask

    def compute_advantages(self, rewards: Tensor) -> Tensor:
        groups = rewards.unflatten(0, (-1, self.config.num_generations))
        centred = groups - groups.mean(dim=1, keepdim=True)
        return (centred / (groups.std(dim=1, keepdim=True) + 1e-4)).flatten()

    def collect(self) -> RolloutBuffer:
        prompts, texts = self.make_prompts()
        prompts = prompts.repeat_interleave(self.config.num_generations, dim=0)
        texts = [t for t in texts for _ in range(self.config.num_generations)]
        completions, sampler_logprobs = self.engine(prompts)
        completions, sampler_logprobs = completions.clone(), sampler_logprobs.clone()
        decoded = [self.tokenizer.decode(c) for c in completions.tolist()]
        rewards = torch.tensor([self.reward_fn(t, d) for t, d in zip(texts, decoded)])
        buffer = RolloutBuffer(
            sequences=torch.cat([prompts, completions], dim=1),
            mask=self.make_mask(completions),
            sampler_logprobs=sampler_logprobs,
            rewards=rewards,
            advantages=self.compute_advantages(rewards),
            prompt_len=prompts.size(1),
        )
        with torch.no_grad():
            buffer.old_logprobs = self.logprobs(self.policy, buffer.sequences, buffer.prompt_len)
            buffer.ref_logprobs = self.logprobs(self.reference, buffer.sequences, buffer.prompt_len)
        return buffer

    def loss_sum(self, buffer: RolloutBuffer, rows: Tensor) -> Tensor:
        """Sum over tokens; the caller divides by the tokens of the whole batch."""
        new = self.logprobs(self.policy, buffer.sequences[rows], buffer.prompt_len)
        old = buffer.old_logprobs[rows]
        adv = buffer.advantages[rows].unsqueeze(-1)
        mask = buffer.mask[rows]
        weight = torch.exp(old - buffer.sampler_logprobs[rows]).clamp(max=self.config.is_cap)
        ratio = (new - old).exp()
        clipped = ratio.clamp(1 - self.config.clip_low, 1 + self.config.clip_high)
        policy_term = -torch.minimum(ratio * adv, clipped * adv) * weight
        delta = buffer.ref_logprobs[rows] - new
        kl_term = delta.exp() - delta - 1
        self.metrics["kl"] = self.metrics.get("kl", 0.0) + (kl_term * mask).sum().item()
        return ((policy_term + self.config.beta * kl_term) * mask).sum()

    def update(self, buffer: RolloutBuffer) -> float:
        total = buffer.sequences.size(0)
        tokens = buffer.mask.sum().clamp(min=1.0)
        self.policy.train()
        for _ in range(self.config.mini_epochs):
            self.metrics = {"kl": 0.0}
            epoch_loss = 0.0
            self.optimizer.zero_grad(set_to_none=True)
            for rows in torch.randperm(total).split(self.config.micro_batch_size):
                loss = self.loss_sum(buffer, rows) / tokens
                loss.backward()
                epoch_loss += loss.item()
            nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.max_grad_norm)
            self.optimizer.step()
        self.metrics["kl"] /= tokens.item()
        self.policy.eval()
        return epoch_loss

    def train(self) -> None:
        self.policy.eval()
        for step in range(self.config.total_steps):
            self.engine.load(self.policy)
            buffer = self.collect()
            loss = self.update(buffer)
            print(f"[{step}] reward={buffer.rewards.mean():.6f} loss={loss:.10f} kl={self.metrics['kl']:.10f}")


def digits_reward(prompt: str, completion: str) -> float:
    wanted = sorted(prompt.rstrip(":"))
    found = sum(c in wanted for c in completion)
    return found / 6 - 0.2 * completion.count(",") - 0.1 * completion.count(":")


if __name__ == "__main__":
    conf = GRPOConfig()
    random.seed(conf.seed)
    torch.manual_seed(conf.seed)
    trainer = GRPOTrainer(conf, digits_reward)
    trainer.train()
    print(f"final {sum(p.detach().double().abs().sum() for p in trainer.policy.parameters()):.10f}")
