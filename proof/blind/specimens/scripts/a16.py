from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
import torch

torch.manual_seed(16)
cfg = LlamaConfig(vocab_size=20, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                  max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2)
base = LlamaForCausalLM(cfg)
model = get_peft_model(base, LoraConfig(r=8, lora_alpha=32, lora_dropout=0.0, target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]))
model.print_trainable_parameters()
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-3)

num_generations, prompts_per_step, max_new, beta = 6, 6, 8, 0.04


def logprobs(ids, att, n):
    logits = model(input_ids=ids, attention_mask=att).logits[:, n - 1:-1, :]
    return torch.log_softmax(logits.float(), dim=-1).gather(-1, ids[:, n:].unsqueeze(-1)).squeeze(-1)


for step in range(14):
    prompt = torch.randint(3, 20, (prompts_per_step, 4)).repeat_interleave(num_generations, dim=0)
    n = prompt.size(1)
    model.eval()
    with torch.no_grad():
        ids = model.generate(input_ids=prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=max_new, do_sample=True, temperature=1.0,
                             top_k=0, top_p=1.0, eos_token_id=2, pad_token_id=0)
    model.train()
    completion = ids[:, n:]
    is_eos = completion == 2
    first = torch.where(is_eos.any(1), is_eos.int().argmax(1), completion.size(1))
    mask = (torch.arange(completion.size(1)) <= first[:, None]).float()
    att = torch.cat([torch.ones_like(prompt), mask.long()], 1)

    low = (completion < prompt[:, -1:]) & (completion > 2)
    reward = (low * mask).sum(1) / mask.sum(1) + 0.5 * is_eos.any(1).float()
    g = reward.view(-1, num_generations)
    adv = ((g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)).view(-1)

    with torch.no_grad():
        with model.disable_adapter():
            ref = logprobs(ids, att, n)
    lp = logprobs(ids, att, n)
    kl = torch.exp(ref - lp) - (ref - lp) - 1
    per_token = -(torch.exp(lp - lp.detach()) * adv[:, None] - beta * kl)
    loss = ((per_token * mask).sum(1) / mask.sum(1)).mean()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 4 == 0:
        print(step, "reward", round(reward.mean().item(), 3), "kl", round(((kl * mask).sum() / mask.sum()).item(), 4))
print("end", reward.mean().item())
