"""GRPO with gradient accumulation: the rollout batch is cut into micro-batches by row."""
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(280)
PAD, BOS, EOS = 0, 1, 2
MICRO = 4
PROMPTS, SAMPLES, NEW = 4, 8, 8

policy = LlamaForCausalLM(LlamaConfig(vocab_size=26, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, max_position_embeddings=32, pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS))
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, weight_decay=0.0)


def make_batch():
    prompt = torch.randint(3, 26, (PROMPTS, 3)).repeat_interleave(SAMPLES, 0)
    policy.eval()
    with torch.no_grad():
        ids = policy.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                              max_new_tokens=NEW, eos_token_id=EOS, pad_token_id=PAD)
    policy.train()
    answer = ids[:, 3:]
    ends = (answer == EOS).long()
    mask = (ends.cumsum(1) - ends == 0).long()
    near = (answer - prompt[:, :1]).abs() < 6
    reward = (near * (answer > 2) * mask).sum(1) / mask.sum(1) + 0.4 * (ends * mask).sum(1)
    table = reward.view(PROMPTS, SAMPLES)
    adv = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).view(-1)
    return {"ids": ids, "mask": mask, "adv": adv, "att": torch.cat([torch.ones_like(prompt), mask], 1)}, reward


def micro_loss(b):
    logits = policy(input_ids=b["ids"], attention_mask=b["att"]).logits[:, 2:-1]
    lp = torch.log_softmax(logits, -1).gather(-1, b["ids"][:, 3:, None]).squeeze(-1)
    ratio = torch.exp(lp - lp.detach())
    return -(ratio * b["adv"][:, None] * b["mask"]).sum()


for step in range(14):
    batch, reward = make_batch()
    n_tokens = batch["mask"].sum()
    rows = len(reward)
    total = 0.0
    for i in range(0, rows, rows // MICRO):
        part = {k: v[i:i + rows // MICRO] for k, v in batch.items()}
        optimizer.zero_grad()
        loss = micro_loss(part) / n_tokens
        loss.backward()
        total += loss.item()
    norm = nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    optimizer.step()
    if step % 3 == 0:
        print(f"step {step:02d} reward {reward.mean():.3f} loss {total:+.4f} grad norm {norm:.3f}")
print("end", reward.mean().item())
