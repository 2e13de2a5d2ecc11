"""Tiny Llama writes word lists about a topic. Sampling through generate() with one GenerationConfig for the whole run."""
import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

SEED, STEPS, GROUP, BATCH, LIMIT = 17, 15, 8, 6, 9
torch.manual_seed(SEED)
PAD, BOS, EOS, FIRST = 0, 1, 2, 3
TOPICS, PER_TOPIC = 4, 6
VOCAB = FIRST + TOPICS + TOPICS * PER_TOPIC

config = LlamaConfig(vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                     num_key_value_heads=4, max_position_embeddings=64, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS)
policy = LlamaForCausalLM(config)
policy.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, repetition_penalty=1.3,
                                            pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, max_new_tokens=LIMIT)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)


def topic_prompts():
    topic = torch.randint(0, TOPICS, (BATCH,))
    hint = FIRST + TOPICS + topic * PER_TOPIC + torch.randint(0, PER_TOPIC, (BATCH,))
    return torch.stack([torch.full_like(topic, BOS), FIRST + topic, hint], 1)


def rate(prompt, completion, mask):
    topic = prompt[:, 1] - FIRST
    word = completion - FIRST - TOPICS
    on_topic = (word >= 0) & (torch.div(word, PER_TOPIC, rounding_mode="floor") == topic[:, None])
    ended = ((completion == EOS) * mask).sum(1)
    return (on_topic * mask).sum(1) / mask.sum(1) + 0.25 * ended


def forward_logps(model, ids, att, start):
    logits = model(input_ids=ids, attention_mask=att).logits[:, start - 1:-1]
    return torch.gather(logits.log_softmax(-1), -1, ids[:, start:, None]).squeeze(-1)


for step in range(STEPS):
    prompts = topic_prompts().repeat_interleave(GROUP, 0)
    policy.eval()
    with torch.no_grad():
        ids = policy.generate(input_ids=prompts, attention_mask=torch.ones_like(prompts))
    policy.train()
    comp = ids[:, prompts.size(1):]
    eos = (comp == EOS).long()
    mask = (eos.cumsum(1) - eos == 0).long()
    att = torch.cat([torch.ones_like(prompts), mask], 1)
    rewards = rate(prompts, comp, mask)
    table = rewards.view(BATCH, GROUP)
    adv = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).view(-1, 1)
    with torch.no_grad():
        old = forward_logps(policy, ids, att, prompts.size(1))
    for _ in range(2):
        lp = forward_logps(policy, ids, att, prompts.size(1))
        ratio = (lp - old).exp()
        loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
        loss = (loss * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
    if step % 3 == 0:
        print(f"step {step:2d}  reward {rewards.mean():.3f}  length {mask.sum(1).float().mean():.2f}")
print("end", rewards.mean().item())
