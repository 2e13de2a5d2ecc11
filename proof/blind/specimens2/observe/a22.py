"""Hot sampling (1.4), groups of three, an entropy bonus, accumulated gradients: a small Llama learns to avoid repeats."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import assay

HOT, GROUP, PROMPTS, NEW, BONUS = 1.4, 3, 24, 6, 0.01


def make():
    torch.manual_seed(19)
    config = LlamaConfig(
        vocab_size=12, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32, initializer_range=0.1, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def sample(llm, prompts):
    ids, reported = prompts, []
    for _ in range(NEW):
        logp = (llm(ids).logits[:, -1].float() / HOT).log_softmax(-1)
        token = torch.multinomial(logp.exp(), 1)
        reported.append(logp.gather(1, token))
        ids = torch.cat([ids, token], 1)
    return ids[:, prompts.shape[1] :], torch.cat(reported, 1)


def score(llm, prompts, tokens):
    logits = llm(torch.cat([prompts, tokens], 1)).logits[:, prompts.shape[1] - 1 : -1].float() / HOT
    every = logits.log_softmax(-1)
    return every.gather(2, tokens[..., None])[..., 0], -(every.exp() * every).sum(-1)


llm = make()
adam = torch.optim.Adam(llm.parameters(), lr=4e-3)
for step in range(1, 11):
    prompts = torch.randint(0, 12, (PROMPTS, 2)).repeat_interleave(GROUP, 0)
    groups = torch.arange(PROMPTS).repeat_interleave(GROUP)
    tokens, reported = sample(llm, prompts)
    rewards = torch.tensor([len(set(row)) / len(row) for row in torch.cat([prompts, tokens], 1).tolist()])
    table = rewards.view(PROMPTS, GROUP)
    advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).flatten()
    adam.zero_grad()
    kept, total = [], 0.0
    for part in torch.arange(len(tokens)).chunk(3):  # the sum over the parts is the mean over all tokens
        new, entropy = score(llm, prompts[part], tokens[part])
        ratio = (new - new.detach()).exp()
        loss = -(ratio * advantages[part, None] + BONUS * entropy).sum() / tokens.numel()
        loss.backward()
        total += loss.item()
        kept.append((new.detach(), entropy.detach()))
    new, entropy = (torch.cat(parts) for parts in zip(*kept))
    assay.observe(
        step=step, update=0, tokens=tokens, mask=torch.ones_like(tokens), new_logprobs=new, old_logprobs=new,
        sampler_logprobs=reported, entropy=entropy, entropy_coef=BONUS, advantages=advantages, rewards=rewards,
        group_ids=groups, loss=total, temperature=HOT, objective="bnpo", microbatches=3, prompt_tokens=prompts,
        prompt_mask=torch.ones_like(prompts), model=llm if step <= 2 else None,
    )
    adam.step()
    print(step, f"{rewards.mean():.3f} {entropy.mean():.3f}")
