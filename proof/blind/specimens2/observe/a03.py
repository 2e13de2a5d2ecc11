"""Group-relative policy optimisation of a tiny position-aware model, functional style."""

from functools import partial

import torch
import torch.nn.functional as F

import assay

VOCAB, PROMPTS, SAMPLES, LENGTH, DIM = 12, 8, 8, 5, 32


def init(generator):
    def weight(*shape):
        return (torch.randn(*shape, generator=generator) / shape[-1] ** 0.5).requires_grad_()

    return {"tok": weight(VOCAB, DIM), "pos": weight(LENGTH + 2, DIM), "w1": weight(DIM, 3 * DIM), "w2": weight(VOCAB, DIM)}


def logits(params, ids):
    x = F.embedding(ids, params["tok"]) + params["pos"][: ids.shape[1]]
    first, previous = x[:, :1].expand_as(x), F.pad(x, (0, 0, 1, 0))[:, :-1]
    hidden = torch.tanh(F.linear(torch.cat([x, first, previous], -1), params["w1"]))
    return F.linear(hidden, params["w2"])


def logp(params, prompt, completion):
    out = logits(params, torch.cat([prompt, completion], 1))[:, prompt.shape[1] - 1 : -1]
    return -F.cross_entropy(out.transpose(1, 2), completion, reduction="none")


@torch.no_grad()
def generate(params, prompt, generator):
    ids = prompt
    for _ in range(LENGTH):
        p = logits(params, ids)[:, -1].softmax(-1)
        ids = torch.cat([ids, torch.multinomial(p, 1, generator=generator)], 1)
    return ids[:, prompt.shape[1] :]


def reward_of(prompt, completion):
    target = (prompt + torch.arange(LENGTH)) % VOCAB
    distance = (completion - target).abs()
    return 1 - torch.minimum(distance, VOCAB - distance).float().mean(1) / (VOCAB / 2)


def normalise(rewards):
    table = rewards.view(PROMPTS, SAMPLES)
    mean = table.mean(1, keepdim=True)
    std = table.std(0)
    return ((table - mean) / (std + 1e-6)).reshape(-1)


def main():
    generator = torch.Generator().manual_seed(5)
    params = init(generator)
    optimizer = torch.optim.AdamW(params.values(), lr=0.02, weight_decay=0.0)
    group = torch.arange(PROMPTS).repeat_interleave(SAMPLES)
    report = partial(
        assay.observe, group_ids=group, std="sample", advantage_epsilon=1e-6, objective="grpo", group_size=SAMPLES,
        prompts=PROMPTS, clip_low=0.2, clip_high=0.2,
    )
    for step in range(1, 13):
        prompt = torch.randperm(VOCAB, generator=generator)[:PROMPTS].repeat_interleave(SAMPLES).unsqueeze(1)
        completion = generate(params, prompt, generator)
        rewards = reward_of(prompt, completion)
        advantages = normalise(rewards)
        new = logp(params, prompt, completion)
        loss = -((new - new.detach()).exp() * advantages.unsqueeze(1)).mean()
        report(
            step=step, update=0, tokens=completion, mask=torch.ones_like(completion), new_logprobs=new,
            old_logprobs=new.detach(), rewards=rewards, advantages=advantages, loss=loss.item(), prompt_tokens=prompt,
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: reward {rewards.mean():.3f}")


if __name__ == "__main__":
    main()
