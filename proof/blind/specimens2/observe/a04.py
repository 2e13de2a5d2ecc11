# GRPO on a small Llama made from a config: sentences should hold many even tokens and end early
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import assay

torch.manual_seed(0)
EOS = 1
cfg = LlamaConfig(
    vocab_size=24, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=EOS, pad_token_id=0,
    initializer_range=0.08,
)
policy = LlamaForCausalLM(cfg).eval()
opt = torch.optim.AdamW(policy.parameters(), lr=3e-3, weight_decay=0.0)
G, N, MAX_NEW, TEMP = 8, 6, 10, 0.9


def pick(logits):
    logits = logits / TEMP
    ranked, index = logits.sort(dim=-1, descending=True)
    tail = ranked.softmax(-1).cumsum(-1) - ranked.softmax(-1) > 0.8
    ranked = ranked.masked_fill(tail, float("-inf"))
    return index.gather(1, torch.multinomial(ranked.softmax(-1), 1))


@torch.no_grad()
def complete(prompt):
    out = prompt
    open_ = torch.ones(len(prompt), 1, dtype=torch.bool)
    mask = []
    for _ in range(MAX_NEW):
        nxt = pick(policy(out).logits[:, -1])
        nxt = torch.where(open_, nxt, torch.zeros_like(nxt))
        mask.append(open_)
        open_ = open_ & (nxt != EOS)
        out = torch.cat([out, nxt], dim=1)
    return out, torch.cat(mask, dim=1)


def per_token(ids, start):
    lg = policy(ids).logits[:, start - 1 : -1].float() / TEMP
    return torch.log_softmax(lg, -1).gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1)


for step in range(1, 11):
    q = torch.randint(2, 24, (N, 4)).repeat_interleave(G, dim=0)
    full, mask = complete(q)
    comp = full[:, 4:]
    even = ((comp % 2 == 0) & mask).sum(1) / mask.sum(1)
    rew = even + 0.5 * ((comp == EOS) & mask).any(1)
    grp = rew.view(N, G)
    adv = ((grp - grp.mean(1, keepdim=True)) / (grp.std(1, keepdim=True) + 1e-4)).view(-1)
    old = None
    for mu in range(2):
        lp = per_token(full, 4)
        old = lp.detach() if old is None else old
        r = (lp - old).exp()
        tok = -torch.minimum(r * adv[:, None], r.clamp(0.8, 1.2) * adv[:, None])
        loss = ((tok * mask).sum(1) / mask.sum(1)).mean()
        assay.observe(
            step=step, update=mu, tokens=comp, mask=mask, prompt_tokens=q, prompt_mask=torch.ones_like(q), new_logprobs=lp,
            old_logprobs=old, ratio=r, advantages=adv, rewards=rew, group_ids=torch.arange(N).repeat_interleave(G),
            token_loss=tok, loss=loss, temperature=TEMP, eos_ids=[EOS], pad_id=0, objective="grpo", clip_low=0.2,
            clip_high=0.2, max_tokens=MAX_NEW, model=policy if step <= 3 and mu == 0 else None,
        )
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
    print(step, f"{rew.mean().item():.3f}", f"{mask.sum(1).float().mean().item():.1f}")
