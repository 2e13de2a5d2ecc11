import math
import torch
from transformers import GPT2Config, GPT2LMHeadModel

settings = {
    "seed": 4, "iterations": 36, "prompts": 5, "group": 8, "max_tokens": 7,
    "temperature": 1.0, "final_temperature": 0.45, "explore_for": 10,
    "lr": 2e-3, "clip": 0.2, "epochs": 2,
}
VOC, EOT = 17, 16


class Rollouts:
    """Samples with a key/value cache; explores at first, then cools down."""

    def __init__(self, model, settings):
        self.model = model
        self.n = settings["max_tokens"]
        self.temperature = settings["temperature"]

    def cool(self, it, settings):
        t = max(0.0, (it - settings["explore_for"]) / max(1, settings["iterations"] - settings["explore_for"] - 8))
        t = min(1.0, t)
        hot, cold = settings["temperature"], settings["final_temperature"]
        self.temperature = cold + 0.5 * (hot - cold) * (1 + math.cos(math.pi * t))

    @torch.no_grad()
    def __call__(self, prompts):
        out = self.model(prompts, use_cache=True)
        seq, finished = [prompts], torch.zeros(len(prompts), dtype=torch.bool)
        for i in range(self.n):
            probs = torch.softmax(out.logits[:, -1] / self.temperature, dim=-1)
            tok = torch.multinomial(probs, num_samples=1)
            tok[finished] = EOT
            finished |= tok[:, 0] == EOT
            seq.append(tok)
            if i + 1 < self.n:
                out = self.model(tok, past_key_values=out.past_key_values, use_cache=True)
        return torch.cat(seq, dim=1)


def completion_logps(model, ids, n_prompt, temperature):
    logits = model(ids, use_cache=False).logits[:, n_prompt - 1:-1] / temperature
    return logits.log_softmax(-1).gather(-1, ids[:, n_prompt:].unsqueeze(-1)).squeeze(-1)


def completion_mask(tokens):
    stops = (tokens == EOT).long()
    return (stops.cumsum(-1) - stops).eq(0).float()


def score(prompts, tokens, mask):
    """tokens that are the prompt's first token or its neighbour count, and an end counts a little"""
    gap = (tokens - prompts[:, :1]).abs()
    fits = (gap <= 1) & (tokens != EOT)
    ended = (tokens[:, -1] == EOT) & (tokens[:, 0] != EOT)
    return (fits.float() * mask).sum(1) / tokens.shape[1] + 0.15 * ended.float()


def fit(model, settings):
    opt = torch.optim.AdamW(model.parameters(), lr=settings["lr"], weight_decay=0.0)
    rollouts = Rollouts(model, settings)
    P, G = settings["prompts"], settings["group"]
    for it in range(settings["iterations"]):
        rollouts.cool(it, settings)
        prompts = torch.randint(0, VOC - 1, (P, 2)).repeat_interleave(G, dim=0)
        ids = rollouts(prompts)
        tokens = ids[:, 2:]
        mask = completion_mask(tokens)
        rewards = score(prompts, tokens, mask)
        table = rewards.reshape(P, G)
        adv = ((table - table.mean(-1, keepdim=True)) / (table.std(-1, keepdim=True) + 1e-4)).reshape(-1, 1)

        with torch.no_grad():
            old = completion_logps(model, ids, 2, settings["temperature"])
        for _ in range(settings["epochs"]):
            new = completion_logps(model, ids, 2, settings["temperature"])
            ratio = torch.exp(new - old)
            lim = torch.clamp(ratio, 1 - settings["clip"], 1 + settings["clip"])
            loss = -(torch.min(ratio * adv, lim * adv) * mask).sum() / mask.sum()
            opt.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        if it % 4 == 0:
            print(f"it {it:02d}  T {rollouts.temperature:.2f}  reward {rewards.mean():.3f}  tokens {mask.sum(1).mean():.2f}")


if __name__ == "__main__":
    torch.manual_seed(settings["seed"])
    gpt = GPT2LMHeadModel(GPT2Config(
        vocab_size=VOC, n_positions=32, n_embd=48, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=EOT, eos_token_id=EOT, initializer_range=0.08))
    fit(gpt, settings)
