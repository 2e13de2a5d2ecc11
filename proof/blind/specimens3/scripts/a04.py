import torch
import torch.nn.functional as F
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.set_num_threads(1)

# --- vocabulary: 0 = </s>, the rest are "words" -------------------------------------------------
N_WORDS = 15
EOS = 0
config = LlamaConfig(
    vocab_size=N_WORDS + 1, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    bos_token_id=None, eos_token_id=EOS, pad_token_id=EOS, initializer_range=0.12, tie_word_embeddings=False,
)
model = LlamaForCausalLM(config)
model.eval()  # no dropout anywhere, so this is only cosmetic
optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-3, betas=(0.9, 0.98), weight_decay=0.0)

K = 8            # completions per prompt
P = 5            # prompts per step
MAX_NEW = 8
gen = torch.Generator().manual_seed(77)


def make_prompts():
    """Prompts of 2 to 7 words, padded on the left."""
    rows = []
    for _ in range(P):
        n = int(torch.randint(2, 8, (1,), generator=gen))
        rows.append(torch.randint(1, N_WORDS + 1, (n,), generator=gen))
    width = max(len(r) for r in rows)
    ids = torch.full((P, width), EOS)
    mask = torch.zeros(P, width, dtype=torch.long)
    for i, r in enumerate(rows):
        ids[i, width - len(r):] = r
        mask[i, width - len(r):] = 1
    return ids, mask


def reward_fn(prompt_rows, completions):
    """share of the answer that repeats words of the prompt, and something for having come to an end"""
    rewards = []
    for p, c in zip(prompt_rows, completions):
        words = set(p)
        rewards.append(sum(w in words for w in c) / MAX_NEW + (0.15 if 0 < len(c) < MAX_NEW else 0.0))
    return torch.tensor(rewards)


def selected_logprobs(ids, mask, n_keep):
    position_ids = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=position_ids).logits
    logits = logits[:, -n_keep - 1:-1]
    return F.log_softmax(logits.float(), -1).gather(-1, ids[:, -n_keep:].unsqueeze(-1)).squeeze(-1)


for step in range(40):
    prompt_ids, prompt_mask = make_prompts()
    prompt_ids = prompt_ids.repeat_interleave(K, dim=0)
    prompt_mask = prompt_mask.repeat_interleave(K, dim=0)

    with torch.no_grad():
        full = model.generate(
            prompt_ids, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            max_new_tokens=MAX_NEW, eos_token_id=EOS, pad_token_id=EOS,
        )
    completion = full[:, prompt_ids.shape[1]:]
    n = completion.shape[1]

    ended = (completion == EOS).int().cumsum(1)
    completion_mask = ((ended == 0) | ((ended == 1) & (completion == EOS))).long()
    answers = [[t for t in row if t != EOS] for row in completion.tolist()]
    prompts = [[t for t, m in zip(r, mm) if m] for r, mm in zip(prompt_ids.tolist(), prompt_mask.tolist())]

    rewards = reward_fn(prompts, answers)
    grouped = rewards.view(P, K)
    advantages = (grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-4)
    advantages = advantages.view(-1, 1)

    attention = torch.cat([prompt_mask, completion_mask], dim=1)
    logp = selected_logprobs(full, attention, n)
    ratio = torch.exp(logp - logp.detach())
    token_loss = -ratio * advantages
    loss = (token_loss * completion_mask).sum() / completion_mask.sum()

    optimizer.zero_grad()
    loss.backward()
    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 4 == 0:
        print({"step": step, "reward": round(rewards.mean().item(), 4), "loss": round(loss.item(), 5),
               "grad_norm": round(grad_norm.item(), 3), "length": round(completion_mask.sum(1).float().mean().item(), 2)})
