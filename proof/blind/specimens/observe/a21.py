"""RLOO with a Hugging Face model and its own generate()."""

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

import assay

EOS, PAD, VOCAB = 1, 1, 64
K, N, NEW = 8, 4, 5

torch.manual_seed(6)
lm = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.15, bos_token_id=None,
        eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip
)
sampling = GenerationConfig(
    do_sample=True, temperature=1.0, top_k=10, top_p=1.0, max_new_tokens=NEW, eos_token_id=EOS, pad_token_id=PAD,
)  # fmt: skip
opt = torch.optim.Adam(lm.parameters(), lr=3e-3)


def rollout(prompts):
    lm.eval()
    with torch.no_grad():
        out = lm.generate(
            input_ids=prompts, attention_mask=torch.ones_like(prompts), generation_config=sampling,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
    tokens = out.sequences[:, prompts.shape[1] :]
    scores = torch.stack(out.scores, dim=1).log_softmax(-1)
    eos = tokens == EOS
    mask = (eos.cumsum(1) - eos.long()) == 0
    return tokens, scores.gather(2, tokens[:, :, None])[:, :, 0], mask


def logps(prompts, tokens):
    ids = torch.cat([prompts, tokens], 1)
    logits = lm(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[:, prompts.shape[1] - 1 : -1]
    kept = torch.zeros_like(logits, dtype=torch.bool).scatter(2, logits.topk(10, dim=-1).indices, True)
    kept = kept.scatter(2, tokens[:, :, None], True)
    logits = logits.masked_fill(~kept, -float("inf"))
    return logits.log_softmax(-1).gather(2, tokens[:, :, None])[:, :, 0]


def small_tokens(tokens, mask):
    """Share of the tokens from the lower third of the vocabulary."""
    return ((tokens < VOCAB // 3) & mask).sum(1) / mask.sum(1)


for step in range(1, 13):
    prompts = torch.randint(2, VOCAB, (N, 2)).repeat_interleave(K, 0)
    tokens, sampler, mask = rollout(prompts)
    rewards = small_tokens(tokens, mask)
    by_prompt = rewards.view(N, K)
    baseline = (by_prompt.sum(1, keepdim=True) - by_prompt) / (K - 1)
    adv = (by_prompt - baseline).view(-1)

    lm.train()
    new = logps(prompts, tokens)
    loss = -(adv[:, None] * new * mask).sum() / mask.sum()
    opt.zero_grad()
    new.retain_grad()
    loss.backward()
    assay.observe(
        step=step, update=0, tokens=tokens, mask=mask, lengths=mask.sum(1), finished=((tokens == EOS) & mask).any(1),
        new_logprobs=new.detach(), sampler_logprobs=sampler, gradients=new.grad, rewards=rewards, advantages=adv,
        group_ids=torch.arange(N).repeat_interleave(K), loss=loss.item(), prompt_tokens=prompts,
        prompt_mask=torch.ones_like(prompts), baseline="leave_one_out", std="none", aggregation="token_mean",
        temperature=1.0, eos_ids=[EOS], pad_id=PAD, max_tokens=NEW, top_k=10, support_kept=True,
    )  # fmt: skip
    opt.step()
    print(step, f"{rewards.mean():.3f}")
