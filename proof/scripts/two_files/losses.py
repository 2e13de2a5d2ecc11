"""Everything between the collected samples and the scalar loss."""
import torch
import torch.nn.functional as F


def right_pad(rows, value, dtype=torch.long):
    width = max(len(r) for r in rows)
    return torch.tensor([list(r) + [value] * (width - len(r)) for r in rows], dtype=dtype)


def collate(samples, pad_id):
    """input_ids [B, T]; loss_mask is aligned with input_ids and is 1 on generated tokens only."""
    input_ids = right_pad([s["prompt"] + s["completion"] for s in samples], pad_id)
    loss_mask = right_pad([[0] * len(s["prompt"]) + [1] * len(s["completion"]) for s in samples], 0, torch.float)
    sampler = right_pad([[0.0] * len(s["prompt"]) + s["sampler_logprobs"] for s in samples], 0.0, torch.float)
    return input_ids, loss_mask[:, 1:], sampler[:, 1:]


def sequence_logprobs(model, input_ids, temperature):
    logits = model(input_ids)
    logits = logits[:, :-1].float() / temperature
    targets = input_ids[:, 1:]
    return -F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")


def masked_mean(x, mask, dim=None):
    if dim is None:
        return (x * mask).sum() / mask.sum().clamp(min=1e-8)
    return (x * mask).sum(dim) / mask.sum(dim).clamp(min=1e-8)


def grpo_advantages(rewards, group_size, eps=1e-6):
    rewards = rewards.reshape(-1, group_size)
    baseline = rewards.mean(dim=-1, keepdim=True)
    scale = rewards.std(dim=-1, keepdim=True)
    return torch.div(rewards - baseline, scale + eps).reshape(-1)


def importance_weights(old_logprobs, sampler_logprobs, cap):
    """Corrects for an engine that is some versions behind."""
    return torch.clamp((old_logprobs - sampler_logprobs).exp(), max=cap)


def kl_penalty(logprobs, ref_logprobs):
    delta = ref_logprobs - logprobs
    return torch.expm1(delta) - delta


def policy_loss(logprobs, old_logprobs, advantages, weights, clip_range):
    log_ratio = logprobs - old_logprobs
    ratio = torch.exp(log_ratio)
    unclipped = ratio * advantages[:, None]
    clipped = ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * advantages[:, None]
    return -weights * torch.minimum(unclipped, clipped)
