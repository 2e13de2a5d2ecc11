# GRPO, numpy for the bookkeeping and torch for the network.
# pad token == eos token here (as with many released tokenizers), so masks are built from positions.
import argparse
import re

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

LETTERS = "\n0123456789*<>"
VOCAB_SIZE = len(LETTERS) + 1
EOS_ID = 0
PAD_ID = EOS_ID
BOS_ID = len(LETTERS)  # never generated
USE_AMP = False


class ConvLM(nn.Module):
    """Causal convolutions; cheap and good enough for short strings."""

    def __init__(self, channels=40, kernel=4):
        super().__init__()
        self.kernel = kernel
        self.embedding = nn.Embedding(VOCAB_SIZE, channels)
        self.conv1 = nn.Conv1d(channels, channels, kernel)
        self.conv2 = nn.Conv1d(channels, channels, kernel)
        self.readout = nn.Linear(channels, VOCAB_SIZE)

    def forward(self, input_ids):
        h = self.embedding(input_ids).transpose(1, 2)
        h = h + F.gelu(self.conv1(F.pad(h, (self.kernel - 1, 0))))
        h = h + F.gelu(self.conv2(F.pad(h, (self.kernel - 1, 0))))
        logits = self.readout(h.transpose(1, 2))
        banned = torch.zeros(VOCAB_SIZE, dtype=torch.bool)
        banned[BOS_ID] = True
        return logits.masked_fill(banned, float("-inf"))


def text_of(ids):
    return "".join(LETTERS[i] for i in ids if 0 < i < len(LETTERS))


def format_rewards(texts):
    pattern = re.compile(r"^<\d+>")
    return np.array([0.5 if pattern.match(t) else 0.0 for t in texts])


def digit_rewards(texts, digits):
    return np.array([min(t.count(d), 3) / 3.0 for t, d in zip(texts, digits)])


def normalize(rewards, group_size):
    rewards = rewards.reshape(-1, group_size)
    mu = rewards.mean(axis=1, keepdims=True)
    sigma = rewards.std(axis=1, keepdims=True)
    return ((rewards - mu) / (sigma + 1e-8)).reshape(-1)


def sample_group(model, prompt, args):
    ids = torch.tensor(prompt).unsqueeze(0).repeat(args.group_size, 1)
    alive = torch.ones(args.group_size, dtype=torch.bool)
    lengths = torch.zeros(args.group_size, dtype=torch.long)
    with torch.no_grad():
        for _ in range(args.max_len):
            scaled = model(ids)[:, -1, :] / args.temperature
            p = scaled.softmax(-1)
            nxt = torch.multinomial(p, 1)
            nxt[~alive] = PAD_ID
            lengths += alive.long()
            alive = alive & (nxt.squeeze(1) != EOS_ID)
            ids = torch.cat([ids, nxt], dim=1)
    rows = []
    for i in range(args.group_size):
        rows.append(ids[i, len(prompt) : len(prompt) + int(lengths[i])].tolist())
    return rows


def pad_batch(prompts, completions):
    width = max(len(p) + len(c) for p, c in zip(prompts, completions))
    input_ids = torch.full((len(prompts), width), PAD_ID)
    labels = torch.full((len(prompts), width), -100)
    for i, (p, c) in enumerate(zip(prompts, completions)):
        input_ids[i, : len(p)] = torch.tensor(p)
        input_ids[i, len(p) : len(p) + len(c)] = torch.tensor(c)
        labels[i, len(p) : len(p) + len(c)] = torch.tensor(c)
    return input_ids, labels


def get_logps(model, input_ids, labels, temperature):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=USE_AMP):
        logits = model(input_ids)
    logits = logits[:, :-1, :].float() / temperature
    labels = labels[:, 1:]
    nll = F.cross_entropy(
        logits.reshape(-1, VOCAB_SIZE), labels.reshape(-1), ignore_index=-100, reduction="none"
    )
    return -nll.view(labels.shape)


def run(args):
    rng = np.random.default_rng(args.seed)
    torch.manual_seed(args.seed)
    model = ConvLM()
    ref_model = ConvLM()
    ref_model.load_state_dict(model.state_dict())
    ref_model.eval()
    for q in ref_model.parameters():
        q.requires_grad = False
    optim = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)

    for step in range(args.n_steps):
        digits = [str(d) for d in rng.integers(0, 10, size=args.n_prompts)]
        prompts = []
        for d in digits:
            filler = "".join(rng.choice(list("0123456789"), size=rng.integers(0, 4)))
            prompt = [BOS_ID] + [LETTERS.index(c) for c in filler + "*" + d]
            prompts.append(prompt[-args.max_prompt :])

        all_prompts, all_completions, all_digits = [], [], []
        for prompt, d in zip(prompts, digits):
            rows = sample_group(model, prompt, args)
            all_completions.extend(rows)
            all_prompts.extend([prompt] * args.group_size)
            all_digits.extend([d] * args.group_size)

        texts = [text_of(c) for c in all_completions]
        rewards = format_rewards(texts) + digit_rewards(texts, all_digits)
        advantages = torch.as_tensor(normalize(rewards, args.group_size), dtype=torch.float32)

        input_ids, labels = pad_batch(all_prompts, all_completions)
        mask = (labels[:, 1:] != -100).float()
        truncated = torch.tensor([c[-1] != EOS_ID for c in all_completions])
        if args.mask_truncated:
            mask[truncated] = 0.0

        model.eval()
        with torch.no_grad():
            old_logps = get_logps(model, input_ids, labels, args.temperature)
            ref_logps = get_logps(ref_model, input_ids, labels, args.temperature)
        model.train()

        n = len(all_completions)
        step_losses = []
        for epoch in range(args.epochs):
            perm = torch.randperm(n)
            for k in range(0, n, args.batch_size):
                idx = perm[k : k + args.batch_size]
                logps = get_logps(model, input_ids[idx], labels[idx], args.temperature)
                adv = advantages[idx].unsqueeze(-1)
                ratios = torch.exp(logps - old_logps[idx])
                surr1 = ratios * adv
                surr2 = torch.clamp(ratios, 1 - args.clip_eps, 1 + args.clip_eps) * adv
                policy_loss = -torch.min(surr1, surr2)
                x = ref_logps[idx] - logps
                kl_loss = x.exp() - x - 1.0
                token_loss = policy_loss + args.beta * kl_loss
                seq_lens = mask[idx].sum(-1)
                seq_loss = (token_loss * mask[idx]).sum(-1) / torch.clamp(seq_lens, min=1)
                loss = seq_loss.mean()
                optim.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), args.max_norm)
                optim.step()
                step_losses.append(loss.item())
        print(
            "step", step, "reward", "%.6f" % rewards.mean(), "loss", "%.10f" % np.mean(step_losses),
            "truncated", "%.3f" % truncated.float().mean().item(),
        )

    print("final %.10f" % sum(q.detach().double().abs().sum().item() for q in model.parameters()))


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--n-steps", type=int, default=6)
    ap.add_argument("--n-prompts", type=int, default=4)
    ap.add_argument("--group-size", type=int, default=8)
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch-size", type=int, default=16)
    ap.add_argument("--max-len", type=int, default=8)
    ap.add_argument("--max-prompt", type=int, default=4)
    ap.add_argument("--temperature", type=float, default=0.95)
    ap.add_argument("--lr", type=float, default=4e-3)
    ap.add_argument("--clip-eps", type=float, default=0.2)
    ap.add_argument("--beta", type=float, default=0.01)
    ap.add_argument("--max-norm", type=float, default=1.0)
    ap.add_argument("--mask-truncated", type=int, default=1)
    run(ap.parse_args())
