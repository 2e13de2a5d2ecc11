import torch, random
from transformers import GPT2Config, GPT2LMHeadModel

def log(*a): print(*a, flush=True)

SEED = 9
random.seed(SEED); torch.manual_seed(SEED); torch.set_num_threads(1)

alphabet = "abcdefgh#"           # '#' ends an answer
stoi = {c: i for i, c in enumerate(alphabet)}
END = stoi["#"]

config = GPT2Config(vocab_size=len(alphabet), n_positions=16, n_embd=32, n_layer=2, n_head=2,
                    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=END)
policy = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(policy.parameters(), lr=5e-3, betas=(0.9, 0.95), weight_decay=0.0)

group_size, num_groups, max_answer = 8, 4, 4

def encode(s): return [stoi[c] for c in s]

def sample_answers(questions):
    ids = torch.tensor([encode(q) for q in questions for _ in range(group_size)])
    start = ids.shape[1]
    finished = torch.zeros(ids.shape[0], dtype=torch.bool)
    mask = []
    with torch.no_grad():
        for _ in range(max_answer):
            logits = policy(ids).logits[:, -1]
            gumbel = -torch.log(-torch.log(torch.rand_like(logits).clamp(1e-10, 1 - 1e-7)))
            nxt = (logits + gumbel).argmax(dim=-1)
            nxt[finished] = END
            mask.append((~finished).float())
            finished = finished | (nxt == END)
            ids = torch.cat([ids, nxt.unsqueeze(1)], dim=1)
    return ids, torch.stack(mask, dim=1), start

def reward(question, answer_ids):
    text = "".join(alphabet[i] for i in answer_ids)
    text = text.split("#")[0]
    points = 0.0
    if text[:1] == question[-1]: points += 1.0
    points += 0.5 * (len(text) == 1) - 0.05 * len(text) - 0.02 * len(set(text))
    return points

def advantages_of(rewards):
    rewards = rewards.view(num_groups, group_size)
    mean = rewards.mean(dim=1, keepdim=True)
    std = rewards.std(dim=1, keepdim=True)
    return ((rewards - mean) / std).view(-1)

for step in range(60):
    questions = ["".join(random.choice("abcdefgh") for _ in range(2)) for _ in range(num_groups)]
    ids, mask, start = sample_answers(questions)
    rewards = torch.tensor([reward(questions[i // group_size], ids[i, start:].tolist()) for i in range(len(ids))])
    adv = advantages_of(rewards)

    logits = policy(ids[:, :-1]).logits[:, start - 1:]
    logp = torch.log_softmax(logits, dim=-1).gather(2, ids[:, start:].unsqueeze(2)).squeeze(2)
    per_seq = (logp * mask).sum(1) / mask.sum(1)
    loss = -(adv * per_seq).mean()

    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0:
        log(f"[{step:02d}] mean reward {rewards.mean().item():.3f}  loss {loss.item():.4f}")
