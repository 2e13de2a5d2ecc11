# An agent with a tool: when it says CALL, the environment writes two tokens into its answer. These are in the context and
# not in the loss.
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import assay

torch.manual_seed(13)
END, CALL, TOOL, VOCAB = 0, 1, 2, 14
gpt = GPT2LMHeadModel(
    GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
               attn_pdrop=0.0, bos_token_id=END, eos_token_id=END)
).eval()
opt = torch.optim.AdamW(gpt.parameters(), lr=2e-3, weight_decay=0.0)
GROUP, PROMPTS, ROOM = 8, 6, 9


@torch.no_grad()
def episode(prompts):
    """Token by token; a row that waits for its tool gets the tool's tokens instead of its own."""
    secret = (prompts.sum(1) % 11) + 3
    ids, b = prompts, len(prompts)
    waiting = [[] for _ in range(b)]
    called, over = [False] * b, [False] * b
    forced, mask = [], []
    for _ in range(ROOM):
        draws = torch.multinomial(gpt(ids).logits[:, -1].softmax(-1), 1).squeeze(1).tolist()
        column, f, m = [], [], []
        for row, token in enumerate(draws):
            is_forced = bool(waiting[row])
            live = not over[row]
            if is_forced:
                token = waiting[row].pop(0)
            elif not live:
                token = END
            elif token == CALL and not called[row]:
                called[row], waiting[row] = True, [TOOL, int(secret[row])]
            if live and not is_forced and token == END:
                over[row] = True
            column.append(token), f.append(is_forced), m.append(live and not is_forced)
        ids = torch.cat([ids, torch.tensor(column)[:, None]], 1)
        forced.append(f), mask.append(m)
    return ids[:, prompts.shape[1]:], torch.tensor(forced).T, torch.tensor(mask).T, secret


for step in range(1, 11):
    prompts = torch.randint(3, VOCAB, (PROMPTS, 3)).repeat_interleave(GROUP, 0)
    tokens, forced, mask, secret = episode(prompts)
    said = (tokens == secret[:, None]) & mask
    rewards = said.any(1).float() + 0.3 * ((tokens == CALL) & mask).any(1) + 0.2 * ((tokens == END) & mask).any(1)
    table = rewards.view(PROMPTS, GROUP)
    advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).view(-1)
    full = torch.cat([prompts, tokens], 1)
    new = gpt(full).logits[:, 2:-1].log_softmax(-1).gather(2, tokens[..., None])[..., 0]
    loss = -((new - new.detach()).exp() * advantages[:, None] * mask).sum() / mask.sum()
    ends = (mask | forced).long().cumsum(1).argmax(1) + 1
    assay.observe(
        step=step, update=0, tokens=tokens, mask=mask, forced=forced, lengths=ends, new_logprobs=new,
        old_logprobs=new.detach(), advantages=advantages, rewards=rewards, loss=loss, temperature=1.0, eos_ids=[END],
        group_ids=torch.arange(PROMPTS).repeat_interleave(GROUP), prompt_tokens=prompts,
        prompt_mask=torch.ones_like(prompts), objective="bnpo", max_tokens=ROOM, model=gpt if step <= 2 else None,
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, round(rewards.mean().item(), 3), int(forced.any(1).sum()))
