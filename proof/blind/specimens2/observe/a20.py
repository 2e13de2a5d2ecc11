# Plain REINFORCE with a group mean, float64, one step of SGD per batch, one long sequence of five prompts a step
import torch

import assay

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
S, A, H, G, B = 5, 6, 3, 16, 5
table = torch.zeros(S + A, S + A, requires_grad=True)  # the next token depends on the last one only
bias = torch.zeros(H, S + A, requires_grad=True)
closed = torch.cat([torch.full((S,), -1e4), torch.zeros(A)])  # states are never said
best = torch.randint(0, A, (S,))


def forward(ids, first):
    """logits that predict ids[:, first:]"""
    return table[ids[:, first - 1 : -1]] + bias[: ids.shape[1] - first] + closed


for step in range(1, 16):
    state = torch.arange(S)
    prompts = state.repeat_interleave(G)[:, None]
    seq = prompts
    for t in range(H):
        with torch.no_grad():
            row = torch.softmax(table[seq[:, -1]] + bias[t] + closed, -1)
            seq = torch.cat([seq, torch.multinomial(row, 1)], 1)
    acts = seq[:, 1:]
    right = (acts - S) == best[prompts]
    rewards = right[:, 0].double() + 0.1 * right[:, 1:].double().sum(1)
    r = rewards.view(S, G)
    adv = (r - r.mean(1, keepdim=True)).flatten()
    logp = torch.log_softmax(forward(seq, 1), -1).gather(2, acts[..., None])[..., 0]
    loss = -(adv[:, None] * logp).sum() / acts.numel()
    loss.backward()
    with torch.no_grad():
        norm = torch.sqrt(table.grad.square().sum() + bias.grad.square().sum())
        assay.observe(
            step=step, update=0, tokens=acts, mask=torch.ones_like(acts), new_logprobs=logp.detach(),
            old_logprobs=logp.detach(), advantages=adv, rewards=rewards, group_ids=prompts[:, 0], std="none",
            objective="bnpo", loss=loss.detach(), gradient_norm=norm, update_norm=20.0 * norm, learning_rate=20.0,
            prompt_tokens=prompts, prompt_mask=torch.ones_like(prompts), tensors=2, tensors_changed=2,
        )
        for weight in (table, bias):
            weight -= 20.0 * weight.grad
            weight.grad = None
    print(step, f"{rewards.mean().item():.3f}")
