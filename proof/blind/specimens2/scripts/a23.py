# Port of a bigger trainer to one file. Sequences are packed as [prompt | response | pad], each row with its own lengths.
import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cpu")
torch.manual_seed(77)
torch.set_num_threads(1)

PAD_ID, EOS_ID = 0, 1
VOCAB_SIZE = 16
MAX_RESPONSE = 6


class TinyTransformer(nn.Module):
    def __init__(self, dim=32, heads=4, layers=2, max_len=20):
        super().__init__()
        self.token = nn.Embedding(VOCAB_SIZE, dim)
        self.position = nn.Embedding(max_len, dim)
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, batch_first=True, norm_first=True) for _ in range(layers)])
        self.final = nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, VOCAB_SIZE, bias=False)

    def forward(self, input_ids):
        t = input_ids.size(1)
        x = self.token(input_ids) + self.position(torch.arange(t))
        causal = torch.full((t, t), float("-inf")).triu(1)
        for layer in self.layers:
            x = layer(x, src_mask=causal)
        return self.lm_head(self.final(x))


@torch.no_grad()
def generate(model, prompt, n):
    """prompt: list of ids -> n responses as lists of ids (with EOS if it came)"""
    x = torch.tensor([prompt] * n)
    finished = torch.zeros(n, dtype=torch.bool)
    responses = [[] for _ in range(n)]
    for _ in range(MAX_RESPONSE):
        nxt = torch.multinomial(F.softmax(model(x)[:, -1], dim=-1), 1)
        for i in range(n):
            if not finished[i]:
                responses[i].append(int(nxt[i]))
        finished |= nxt[:, 0] == EOS_ID
        x = torch.cat([x, nxt], dim=1)
        if finished.all():
            break
    return responses


def collate(items):
    longest = max(len(p) + len(r) for p, r in items)
    input_ids = torch.full((len(items), longest), PAD_ID)
    response_mask = torch.zeros(len(items), longest)
    for i, (p, r) in enumerate(items):
        n = len(p) + len(r)
        input_ids[i, :n] = torch.tensor(p + r)
        response_mask[i, len(p):n] = 1
    return input_ids, response_mask


def compute_log_probs(model, input_ids):
    logits = model(input_ids)
    log_probs = F.log_softmax(logits[:, :-1], dim=-1)
    return log_probs.gather(-1, input_ids[:, 1:].unsqueeze(-1)).squeeze(-1)


def reward_fn(prompt, response):
    ended = response[-1] == EOS_ID
    body = response[:-1] if ended else response
    if not body:
        return 0.0
    climbs = sum(b > a for a, b in zip([prompt[-1]] + body[:-1], body))
    return climbs / len(body) + (0.5 if ended and len(body) >= 2 else 0.0)


model = TinyTransformer().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
num_prompts, num_samples = 4, 8

for step in range(40):
    items, rewards = [], []
    for _ in range(num_prompts):
        prompt = torch.randint(2, 12, (int(torch.randint(2, 6, ())),)).tolist()
        for response in generate(model, prompt, num_samples):
            items.append((prompt, response))
            rewards.append(reward_fn(prompt, response))
    rewards = torch.tensor(rewards).view(num_prompts, num_samples)
    advantages = (rewards - rewards.mean(dim=1, keepdim=True)) / (rewards.std(dim=1, keepdim=True) + 1e-4)
    advantages = advantages.view(-1, 1)

    input_ids, response_mask = collate(items)
    with torch.no_grad():
        old_log_probs = compute_log_probs(model, input_ids)
    for _ in range(2):
        log_probs = compute_log_probs(model, input_ids)
        ratio = torch.exp(log_probs - old_log_probs)
        objective = torch.min(ratio * advantages, torch.clamp(ratio, 0.8, 1.2) * advantages)
        mask = response_mask[:, :-1]
        loss = -((objective * mask).sum(dim=1) / mask.sum(dim=1)).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    if step % 8 == 0 or step == 39:
        print(f"step {step:3d} | reward {rewards.mean():.3f} | response length {response_mask.sum(1).mean():.2f}")
