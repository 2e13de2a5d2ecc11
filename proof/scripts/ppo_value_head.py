"""PPO for a tiny language model: actor, critic, GAE, whitened advantages, KL penalty inside the reward."""
import copy
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 5
ITERATIONS = 5
BATCH = 24
PPO_EPOCHS = 2
NUM_MINIBATCHES = 2
RESPONSE_LEN = 7
TEMPERATURE = 0.9
ACTOR_LR = 3e-3
CRITIC_LR = 5e-3
CLIPRANGE = 0.2
CLIPRANGE_VALUE = 0.2
VF_COEF = 0.1
KL_COEF = 0.05
GAMMA = 1.0
LAM = 0.95

ALPHABET = ["<pad>", "</s>"] + list("uvwxyz:")
PAD, END = 0, 1


class Backbone(nn.Module):
    def __init__(self, vocab, d=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.rnn = nn.GRU(d, d, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.rnn(self.emb(x))[0]


class Actor(nn.Module):
    def __init__(self, vocab, d=32):
        super().__init__()
        self.backbone = Backbone(vocab, d)
        self.lm_head = nn.Linear(d, vocab)

    def forward(self, x):
        return self.lm_head(self.backbone(x))


class Critic(nn.Module):
    def __init__(self, vocab, d=32):
        super().__init__()
        self.backbone = Backbone(vocab, d)
        self.v_head = nn.Linear(d, 1)

    def forward(self, x):
        return self.v_head(self.backbone(x)).squeeze(-1)


def masked_mean(values, mask, axis=None):
    if axis is not None:
        return (values * mask).sum(axis) / mask.sum(axis).clamp(min=1)
    return (values * mask).sum() / mask.sum().clamp(min=1)


def masked_whiten(values, mask, shift_mean=True):
    mean = masked_mean(values, mask)
    var = masked_mean((values - mean) ** 2, mask)
    whitened = (values - mean) * torch.rsqrt(var + 1e-8)
    if not shift_mean:
        whitened = whitened + mean
    return whitened * mask


def get_logprobs(actor, query_response, response):
    logits = actor(query_response)[:, -response.shape[1] - 1 : -1]
    logits = logits.float() / TEMPERATURE
    logp = torch.log_softmax(logits, dim=2)
    return torch.gather(logp, 2, response.unsqueeze(2)).squeeze(-1)


def get_values(critic, query_response, response_len):
    """V of the state before each response token."""
    return critic(query_response)[:, -response_len - 1 : -1]


@torch.no_grad()
def respond(actor, query):
    seq = query
    done = torch.zeros(query.shape[0], dtype=torch.bool)
    for _ in range(RESPONSE_LEN):
        logits = actor(seq)[:, -1, :] / TEMPERATURE
        probs = torch.softmax(logits, dim=-1)
        action = probs.multinomial(1).squeeze(-1)
        action[done] = PAD
        done |= action == END
        seq = torch.cat((seq, action[:, None]), dim=1)
    return seq


def score_response(query_char, ids):
    text = [ALPHABET[i] for i in ids]
    score = sum(t == query_char for t in text) / RESPONSE_LEN
    return score + (0.3 if "</s>" in text else -0.3)


def gae(rewards, values, mask):
    advantages = torch.zeros_like(rewards)
    running = torch.zeros(rewards.shape[0])
    for t in reversed(range(rewards.shape[1])):
        next_value = values[:, t + 1] * mask[:, t + 1] if t + 1 < rewards.shape[1] else torch.zeros_like(running)
        delta = rewards[:, t] + GAMMA * next_value - values[:, t]
        running = (delta + GAMMA * LAM * running) * mask[:, t]
        advantages[:, t] = running
    returns = (advantages + values) * mask
    return advantages, returns


def main():
    random.seed(SEED)
    torch.manual_seed(SEED)
    actor = Actor(len(ALPHABET))
    critic = Critic(len(ALPHABET))
    ref = copy.deepcopy(actor)
    ref.eval()
    for w in ref.parameters():
        w.requires_grad_(False)
    actor_optimizer = torch.optim.Adam(actor.parameters(), lr=ACTOR_LR, eps=1e-5)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=CRITIC_LR, eps=1e-5)

    for iteration in range(ITERATIONS):
        chars = [random.choice("uvwxyz") for _ in range(BATCH)]
        query = torch.tensor([[ALPHABET.index(c), ALPHABET.index(":")] for c in chars])
        query_response = respond(actor, query)
        response = query_response[:, query.shape[1] :]
        ended = torch.cumsum((response == END).long(), dim=1)
        mask = ((ended == 0) | ((ended == 1) & (response == END))).float()
        lengths = mask.sum(1).long()

        with torch.no_grad():
            old_logprobs = get_logprobs(actor, query_response, response) * mask
            ref_logprobs = get_logprobs(ref, query_response, response) * mask
            values = get_values(critic, query_response, RESPONSE_LEN) * mask

        scores = torch.tensor([score_response(c, ids) for c, ids in zip(chars, response.tolist())])
        kl = old_logprobs - ref_logprobs
        rewards = -KL_COEF * kl * mask
        rewards[torch.arange(BATCH), lengths - 1] += scores

        advantages, returns = gae(rewards, values, mask)
        advantages = masked_whiten(advantages, mask)

        stats = []
        for epoch in range(PPO_EPOCHS):
            for idx in torch.randperm(BATCH).chunk(NUM_MINIBATCHES):
                mb_mask = mask[idx]
                mb_adv = advantages[idx]
                new_logprobs = get_logprobs(actor, query_response[idx], response[idx]) * mb_mask
                logprobs_diff = new_logprobs - old_logprobs[idx]
                ratio = torch.exp(logprobs_diff)
                pg_losses = -mb_adv * ratio
                pg_losses2 = -mb_adv * torch.clamp(ratio, 1.0 - CLIPRANGE, 1.0 + CLIPRANGE)
                pg_loss = masked_mean(torch.max(pg_losses, pg_losses2), mb_mask)

                vpred = get_values(critic, query_response[idx], RESPONSE_LEN)
                vpred_clipped = torch.clamp(vpred, values[idx] - CLIPRANGE_VALUE, values[idx] + CLIPRANGE_VALUE)
                vf_losses1 = (vpred - returns[idx]) ** 2
                vf_losses2 = (vpred_clipped - returns[idx]) ** 2
                vf_loss = 0.5 * masked_mean(torch.max(vf_losses1, vf_losses2), mb_mask)

                loss = pg_loss + VF_COEF * vf_loss
                actor_optimizer.zero_grad()
                critic_optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(actor.parameters(), 1.0)
                nn.utils.clip_grad_norm_(critic.parameters(), 1.0)
                actor_optimizer.step()
                critic_optimizer.step()
                with torch.no_grad():
                    clipfrac = masked_mean((pg_losses2 > pg_losses).float(), mb_mask)
                    approxkl = 0.5 * masked_mean(logprobs_diff**2, mb_mask)
                stats.append((pg_loss.item(), vf_loss.item(), clipfrac.item(), approxkl.item()))

        pg, vf, cf, ak = (sum(s) / len(stats) for s in zip(*stats))
        print(
            f"iter {iteration} score {scores.mean().item():.6f} pg {pg:.10f} vf {vf:.10f} "
            f"clipfrac {cf:.4f} approxkl {ak:.8f}"
        )
    print(f"final {sum(w.detach().double().abs().sum() for w in actor.parameters()).item():.10f}")


if __name__ == "__main__":
    main()
