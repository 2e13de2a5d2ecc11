"""GRPO on single digit addition, in one file: pure PyTorch, seconds on a CPU.

Every rollout batch is used for several updates, so the clipped ratio matters; the KL penalty is the k3 estimator
against the frozen initial policy; completions are sampled at temperature 0.9 and scored at the same temperature.
"""

import copy
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB = ["<pad>", "<eos>", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "+", "="]
TOKEN_ID = {token: index for index, token in enumerate(VOCAB)}
PAD, EOS = TOKEN_ID["<pad>"], TOKEN_ID["<eos>"]

STEPS = 6
PROMPTS_PER_STEP = 4
GROUP_SIZE = 8
UPDATES_PER_ROLLOUT = 3
MAX_NEW_TOKENS = 5
MAX_PROMPT_TOKENS = 4
TEMPERATURE = 0.9
LEARNING_RATE = 4e-3
CLIP_EPS = 0.2
KL_BETA = 0.04
ADV_EPS = 1e-4
MAX_GRAD_NORM = 1.0


def encode(text):
    """Longest match first, so "12" is one token when it is written by a person."""
    ids, position = [], 0
    while position < len(text):
        piece = text[position : position + 2] if text[position : position + 2] in TOKEN_ID else text[position]
        ids.append(TOKEN_ID[piece])
        position += len(piece)
    return ids


def decode(ids):
    pieces = []
    for i in ids:
        if i == EOS:
            break
        pieces.append("" if i == PAD else VOCAB[i])
    return "".join(pieces)


class TinyTransformer(nn.Module):
    def __init__(self, vocab_size, width=32, heads=2, layers=2, max_length=32, dropout=0.0):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.position_embedding = nn.Embedding(max_length, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=dropout, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.token_embedding(tokens) + self.position_embedding(torch.arange(length, device=tokens.device))
        causal = torch.triu(torch.ones(length, length, dtype=torch.bool, device=tokens.device), diagonal=1)
        for block in self.blocks:
            x = block(x, src_mask=causal)
        return self.head(self.norm(x))


def make_problems(count):
    pairs = [(random.randint(0, 9), random.randint(0, 3)) for _ in range(count)]
    prompts = [encode(f"{a}+{b}=")[-MAX_PROMPT_TOKENS:] for a, b in pairs]
    answers = [str(a + b) for a, b in pairs]
    return prompts, answers


def reward_fn(completion, answer):
    score = 0.0
    if completion == answer:
        score += 1.0
    if completion.isdigit():
        score += 0.5
    return score - 0.05 * len(completion)


@torch.no_grad()
def generate(policy, prompt_tokens):
    policy.eval()
    tokens = prompt_tokens
    finished = torch.zeros(tokens.shape[0], dtype=torch.bool)
    for _ in range(MAX_NEW_TOKENS):
        logits = policy(tokens)[:, -1] / TEMPERATURE
        probs = F.softmax(logits, dim=-1)
        next_token = torch.multinomial(probs, num_samples=1).squeeze(-1)
        next_token = torch.where(finished, torch.full_like(next_token, PAD), next_token)
        finished = finished | (next_token == EOS)
        tokens = torch.cat([tokens, next_token.unsqueeze(-1)], dim=-1)
    policy.train()
    return tokens


def completion_logprobs(policy, tokens, prompt_length):
    logits = policy(tokens)[:, prompt_length - 1 : -1] / TEMPERATURE
    logprobs = F.log_softmax(logits.float(), dim=-1)
    targets = tokens[:, prompt_length:]
    return logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def completion_mask(completions):
    """1 up to and with the first EOS, 0 after it."""
    is_eos = (completions == EOS).int()
    eos_seen_before = torch.cumsum(is_eos, dim=1) - is_eos
    return (eos_seen_before == 0).float()


def group_advantages(rewards):
    grouped = rewards.view(-1, GROUP_SIZE)
    mean = grouped.mean(dim=1, keepdim=True)
    std = grouped.std(dim=1, keepdim=True)
    return ((grouped - mean) / (std + ADV_EPS)).view(-1)


def grpo_loss(new_logprobs, old_logprobs, ref_logprobs, advantages, mask):
    advantages = advantages.unsqueeze(1)
    ratio = torch.exp(new_logprobs - old_logprobs)
    clipped_ratio = torch.clamp(ratio, 1 - CLIP_EPS, 1 + CLIP_EPS)
    surrogate = torch.min(ratio * advantages, clipped_ratio * advantages)
    log_ref_ratio = ref_logprobs - new_logprobs
    kl = torch.exp(log_ref_ratio) - log_ref_ratio - 1
    per_token_loss = -(surrogate - KL_BETA * kl)
    per_sequence_loss = (per_token_loss * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)
    mean_kl = (kl * mask).sum() / mask.sum().clamp(min=1)
    return per_sequence_loss.mean(), mean_kl


def main():
    random.seed(0)
    torch.manual_seed(0)
    policy = TinyTransformer(len(VOCAB))
    reference = copy.deepcopy(policy).eval()
    for parameter in reference.parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=LEARNING_RATE, weight_decay=0.0)

    for step in range(STEPS):
        prompts, answers = make_problems(PROMPTS_PER_STEP)
        prompt_tokens = torch.tensor(prompts).repeat_interleave(GROUP_SIZE, dim=0)
        prompt_length = prompt_tokens.shape[1]
        tokens = generate(policy, prompt_tokens)
        completions = tokens[:, prompt_length:]
        mask = completion_mask(completions)

        texts = [decode(row) for row in completions.tolist()]
        row_answers = [answer for answer in answers for _ in range(GROUP_SIZE)]
        rewards = torch.tensor([reward_fn(text, answer) for text, answer in zip(texts, row_answers)])
        advantages = group_advantages(rewards)

        with torch.no_grad():
            old_logprobs = completion_logprobs(policy, tokens, prompt_length)
            ref_logprobs = completion_logprobs(reference, tokens, prompt_length)

        losses = []
        for _ in range(UPDATES_PER_ROLLOUT):
            new_logprobs = completion_logprobs(policy, tokens, prompt_length)
            loss, kl = grpo_loss(new_logprobs, old_logprobs, ref_logprobs, advantages, mask)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            losses.append(loss.item())
        print(f"step {step} reward {rewards.mean().item():.6f} loss {losses[-1]:.10f} kl {kl.item():.10f}")

    checksum = sum(parameter.detach().double().abs().sum() for parameter in policy.parameters())
    print(f"final {checksum.item():.10f}")


if __name__ == "__main__":
    main()
