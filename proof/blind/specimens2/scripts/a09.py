# GRPO on a GPT-2 made from scratch. Prompts have different lengths -> left padding, as model.generate wants it.
import argparse
import copy
import torch
from transformers import GPT2Config, GPT2LMHeadModel, GenerationConfig, set_seed

p = argparse.ArgumentParser()
p.add_argument("--steps", type=int, default=25)
p.add_argument("--lr", type=float, default=3e-3)
p.add_argument("--num_generations", type=int, default=8)
p.add_argument("--num_prompts", type=int, default=4)
p.add_argument("--max_new_tokens", type=int, default=5)
p.add_argument("--beta", type=float, default=0.01)
args = p.parse_args()

set_seed(42)
torch.set_num_threads(1)
PAD, EOS, V = 0, 1, 18
model = GPT2LMHeadModel(GPT2Config(vocab_size=V, n_positions=24, n_embd=48, n_layer=2, n_head=4, attn_pdrop=0.0,
                                   embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=EOS, eos_token_id=EOS, pad_token_id=PAD))
ref_model = copy.deepcopy(model)
ref_model.eval()
for w in ref_model.parameters():
    w.requires_grad = False
gen_cfg = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=args.max_new_tokens,
                           pad_token_id=PAD, eos_token_id=EOS)
opt = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.0)


def get_prompts():
    rows = [torch.randint(2, V, (torch.randint(2, 8, ()).item(),)) for _ in range(args.num_prompts)]
    width = max(len(r) for r in rows)
    ids = torch.full((len(rows), width), PAD)
    att = torch.zeros(len(rows), width, dtype=torch.long)
    for i, r in enumerate(rows):
        ids[i, width - len(r):] = r
        att[i, width - len(r):] = 1
    n = args.num_generations
    return ids.repeat_interleave(n, 0), att.repeat_interleave(n, 0)


def per_token_logps(m, ids, att, n_completion):
    logits = m(input_ids=ids, attention_mask=att).logits
    logits = logits[:, -n_completion - 1:-1]
    tgt = ids[:, -n_completion:]
    return torch.log_softmax(logits, -1).gather(-1, tgt.unsqueeze(-1)).squeeze(-1)


def reward_func(prompts, completions, mask):
    last = prompts[:, -1:]
    hit = (completions >= last).float() * mask
    return hit.sum(1) / mask.sum(1) + 0.05 * mask.sum(1)


for step in range(args.steps):
    prompt_ids, prompt_att = get_prompts()
    model.eval()
    with torch.no_grad():
        out = model.generate(input_ids=prompt_ids, attention_mask=prompt_att, generation_config=gen_cfg)
    model.train()
    comp = out[:, prompt_ids.shape[1]:]
    is_eos = comp == EOS
    eos_idx = torch.full((comp.shape[0],), comp.shape[1])
    eos_idx[is_eos.any(1)] = is_eos.int().argmax(1)[is_eos.any(1)]
    comp_mask = (torch.arange(comp.shape[1]).expand_as(comp) <= eos_idx[:, None]).long()
    att = torch.cat([prompt_att, comp_mask], 1)

    rewards = reward_func(prompt_ids, comp, comp_mask)
    grouped = rewards.view(-1, args.num_generations)
    adv = (rewards - grouped.mean(1).repeat_interleave(args.num_generations)) / (
        grouped.std(1).repeat_interleave(args.num_generations) + 1e-4)

    with torch.no_grad():
        ref_lp = per_token_logps(ref_model, out, att, comp.shape[1])
    lp = per_token_logps(model, out, att, comp.shape[1])
    kl = torch.exp(ref_lp - lp) - (ref_lp - lp) - 1
    per_token = -(torch.exp(lp - lp.detach()) * adv[:, None] - args.beta * kl)
    loss = (per_token * comp_mask).sum() / comp_mask.sum()
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    if step % 4 == 0:
        print({"step": step, "reward": round(rewards.mean().item(), 3), "kl": round((kl * comp_mask).sum().item() / comp_mask.sum().item(), 5),
               "len": comp_mask.sum(1).float().mean().item()})
