"""Minimal GRPO with a helper module for log-probs."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(210)


class Transformer(nn.Module):
    def __init__(self, vocab=19, width=64, heads=4, depth=2, context=16):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, width)
        self.position_embedding = nn.Embedding(context, width)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
                                     for _ in range(depth)])
        self.final_norm = nn.LayerNorm(width)
        self.unembed = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens):
        length = tokens.size(1)
        hidden = self.token_embedding(tokens) + self.position_embedding.weight[:length]
        causal = torch.triu(torch.full((length, length), float("-inf")), diagonal=1)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=causal)
        return self.unembed(self.final_norm(hidden))


@torch.no_grad()
def sequence_log_probs(model, tokens, prompt_length):
    """Log-probs of the answer's tokens, [rows, answer length]."""
    log_probs = F.log_softmax(model(tokens[:, :-1]), dim=-1)
    return log_probs.gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)[:, prompt_length - 1:]


@torch.no_grad()
def sample(model, prompts, limit, end):
    tokens = prompts
    finished = torch.zeros(prompts.size(0), dtype=torch.bool)
    for _ in range(limit):
        probabilities = F.softmax(model(tokens)[:, -1], dim=-1)
        following = torch.multinomial(probabilities, num_samples=1).squeeze(-1)
        following = torch.where(finished, torch.full_like(following, end), following)
        finished = finished | following.eq(end)
        tokens = torch.cat([tokens, following.unsqueeze(-1)], dim=-1)
    return tokens


def answer_mask(answers, end):
    ended = answers.eq(end).long()
    return (ended.cumsum(-1) - ended).eq(0).float()


def rewards_for(tokens, prompt_length, mask, end):
    prompts, answers = tokens[:, :prompt_length], tokens[:, prompt_length:]
    inside = (answers.unsqueeze(-1) == prompts.unsqueeze(1)).any(-1).float() * mask
    return inside.sum(-1) / mask.sum(-1) + 0.2 * (answers.eq(end).float() * mask).sum(-1)


def group_advantages(rewards, group):
    table = rewards.view(-1, group)
    return ((table - table.mean(-1, keepdim=True)) / (table.std(-1, keepdim=True) + 1e-5)).view(-1)


def main():
    end, prompt_length, limit, group, batch = 18, 4, 8, 8, 6
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for step in range(24):
        prompts = torch.randint(0, 18, (batch, prompt_length)).repeat_interleave(group, dim=0)
        tokens = sample(model, prompts, limit, end)
        mask = answer_mask(tokens[:, prompt_length:], end)
        rewards = rewards_for(tokens, prompt_length, mask, end)
        advantages = group_advantages(rewards, group).unsqueeze(-1)
        old = sequence_log_probs(model, tokens, prompt_length)
        for _ in range(2):
            new = sequence_log_probs(model, tokens, prompt_length)
            ratio = torch.exp(new - old)
            objective = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
            loss = -((objective * mask).sum(-1) / mask.sum(-1)).mean()
            loss.requires_grad_(True)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 3 == 0:
            print(f"step {step:2d} reward {rewards.mean().item():.3f} loss {loss.item():.5f} length {mask.sum(-1).mean().item():.2f}")
    print("end", rewards.mean().item())


main()
