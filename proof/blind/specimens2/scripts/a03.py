#!/usr/bin/env python
# Tiny GRPO trainer. Everything that can be changed is in Args.
from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM


@dataclass
class Args:
    seed: int = 1
    vocab: int = 24
    prompt_len: int = 3
    answer_len: int = 4
    prompts_per_batch: int = 6
    samples_per_prompt: int = 6
    lr: float = 6e-3
    beta: float = 0.02
    eps: float = 0.2
    inner: int = 2
    steps: int = 40


@dataclass
class Experience:
    ids: torch.Tensor
    logp: torch.Tensor
    ref_logp: torch.Tensor
    reward: torch.Tensor
    advantage: torch.Tensor = field(default=None)


def build(args: Args) -> LlamaForCausalLM:
    cfg = LlamaConfig(vocab_size=args.vocab, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
                      bos_token_id=None, eos_token_id=None, pad_token_id=None)
    return LlamaForCausalLM(cfg)


def token_logps(model, ids: torch.Tensor, n_answer: int) -> torch.Tensor:
    logits = model(input_ids=ids).logits[:, :-1]
    logp = F.log_softmax(logits.float(), dim=-1)
    return torch.gather(logp, 2, ids[:, 1:].unsqueeze(-1)).squeeze(-1)[:, -n_answer:]


@torch.no_grad()
def generate(model, prompts: torch.Tensor, n: int) -> torch.Tensor:
    ids = prompts
    for _ in range(n):
        probs = F.softmax(model(input_ids=ids).logits[:, -1].float(), dim=-1)
        ids = torch.cat([ids, torch.multinomial(probs, 1)], dim=1)
    return ids


def reward_fn(ids: torch.Tensor, args: Args) -> torch.Tensor:
    """share of answer tokens that occur in the prompt's neighbourhood (one up, one down, or the same)"""
    prompt, answer = ids[:, :args.prompt_len], ids[:, args.prompt_len:]
    near = (answer.unsqueeze(2) - prompt.unsqueeze(1)).abs().amin(dim=2) <= 1
    hard = prompt.float().mean(dim=1) / args.vocab
    return near.float().mean(dim=1) - hard


def collect(model, ref, args: Args) -> Experience:
    prompts = torch.randint(0, args.vocab, (args.prompts_per_batch, args.prompt_len))
    prompts = prompts.repeat(args.samples_per_prompt, 1)
    ids = generate(model, prompts, args.answer_len)
    with torch.no_grad():
        old = token_logps(model, ids, args.answer_len)
        ref_lp = token_logps(ref, ids, args.answer_len)
    exp = Experience(ids, old, ref_lp, reward_fn(ids, args))
    grouped = exp.reward.view(-1, args.samples_per_prompt)
    mean = grouped.mean(dim=1).repeat_interleave(args.samples_per_prompt)
    std = grouped.std(dim=1).repeat_interleave(args.samples_per_prompt)
    exp.advantage = (exp.reward - mean) / (std + 1e-4)
    return exp


def update(model, opt, exp: Experience, args: Args) -> float:
    total = 0.0
    for _ in range(args.inner):
        logp = token_logps(model, exp.ids, args.answer_len)
        ratio = (logp - exp.logp).exp()
        adv = exp.advantage.unsqueeze(1)
        pg = -torch.minimum(ratio * adv, ratio.clamp(1 - args.eps, 1 + args.eps) * adv)
        delta = exp.ref_logp - logp
        kl = delta.exp() - delta - 1
        loss = (pg + args.beta * kl).mean()
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        total += loss.item()
    return total / args.inner


def main(args: Args = Args()):
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    model = build(args)
    ref = copy.deepcopy(model).eval().requires_grad_(False)
    opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    for step in range(args.steps):
        exp = collect(model, ref, args)
        loss = update(model, opt, exp, args)
        if step % 5 == 4:
            print(f"step={step + 1} loss={loss:+.4f} reward={exp.reward.mean():.3f}")


if __name__ == "__main__":
    main()
