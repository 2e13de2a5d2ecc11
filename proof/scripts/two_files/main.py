"""python main.py: closes brackets with GRPO. See rollout.py and losses.py."""
import copy
import random

import torch
from torch import nn

import losses
from rollout import EOS_ID, PAD_ID, SYMBOLS, Engine, collect, make_batch

CONFIG = {
    "seed": 11,
    "steps": 6,
    "n_prompts": 4,
    "group_size": 6,
    "epochs": 2,
    "accumulate": 2,
    "max_prompt_len": 5,
    "max_tokens": 6,
    "temperature": 0.85,
    "lr": 8e-3,
    "clip_range": 0.2,
    "kl_coef": 0.03,
    "tis_cap": 1.5,
    "sync_every": 2,
}


class LM(nn.Module):
    def __init__(self, vocab, dim=40):
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.core = nn.LSTM(dim, dim, num_layers=1, batch_first=True)
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h, _ = self.core(self.wte(ids))
        return self.out(h)


def freeze(model):
    for param in model.parameters():
        param.requires_grad = False
    return model.eval()


def train(config):
    random.seed(config["seed"])
    torch.manual_seed(config["seed"])
    policy = LM(len(SYMBOLS))
    reference = freeze(copy.deepcopy(policy))
    engine = Engine(policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=config["lr"])

    for step in range(config["steps"]):
        if step % config["sync_every"] == 0:
            engine.update_weights(policy.state_dict(), version=step)
        texts = make_batch(config["n_prompts"])
        samples = collect(
            engine,
            texts,
            group_size=config["group_size"],
            max_prompt_len=config["max_prompt_len"],
            max_tokens=config["max_tokens"],
            temperature=config["temperature"],
        )
        rewards = torch.tensor([s["reward"] for s in samples])
        advantages = losses.grpo_advantages(rewards, config["group_size"])
        input_ids, mask, sampler_logprobs = losses.collate(samples, PAD_ID)

        with torch.no_grad():
            old_logprobs = losses.sequence_logprobs(policy, input_ids, config["temperature"])
            ref_logprobs = losses.sequence_logprobs(reference, input_ids, config["temperature"])
            weights = losses.importance_weights(old_logprobs, sampler_logprobs, config["tis_cap"])

        total_tokens = mask.sum()
        logged = []
        for _ in range(config["epochs"]):
            optimizer.zero_grad()
            for part in torch.arange(len(samples)).chunk(config["accumulate"]):
                logprobs = losses.sequence_logprobs(policy, input_ids[part], config["temperature"])
                pg = losses.policy_loss(
                    logprobs, old_logprobs[part], advantages[part], weights[part], config["clip_range"]
                )
                kl = losses.kl_penalty(logprobs, ref_logprobs[part])
                loss = ((pg + config["kl_coef"] * kl) * mask[part]).sum() / total_tokens
                loss.backward()
                logged.append(loss.detach())
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()

        with torch.no_grad():
            current = losses.sequence_logprobs(policy, input_ids, config["temperature"])
            drift = losses.masked_mean(losses.kl_penalty(current, ref_logprobs), mask)
        finished = sum(s["completion"][-1] == EOS_ID for s in samples) / len(samples)
        print(
            f"step {step}: reward {rewards.mean():.6f} finished {finished:.3f} "
            f"loss {sum(logged).item():.10f} kl {drift.item():.10f}"
        )
    return policy


if __name__ == "__main__":
    trained = train(CONFIG)
    print("final %.10f" % sum(p.detach().double().abs().sum() for p in trained.parameters()))
