"""GRPO with accelerate. `accelerate launch accelerate_style.py` (runs the same without the launcher)."""
import copy
import math
import random
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaConfig, LlamaForCausalLM


@dataclass
class ScriptArguments:
    seed: int = 1
    num_train_steps: int = 4
    per_device_prompts: int = 2
    num_generations: int = 4
    gradient_accumulation_steps: int = 2
    max_prompt_length: int = 8
    max_completion_length: int = 8
    temperature: float = 1.3
    learning_rate: float = 4e-3
    beta: float = 0.02
    epsilon: float = 0.2
    warmup_steps: int = 2
    mask_truncated_completions: bool = False


class Tokenizer:
    specials = ["<pad>", "<|endoftext|>", "<|user|>", "<|assistant|>"]

    def __init__(self):
        pieces = self.specials + list("abcdefg ") + ["ab", "cd"]
        self.vocab = {p: i for i, p in enumerate(pieces)}
        self.inverse = {i: p for p, i in self.vocab.items()}
        self.pad_token_id, self.eos_token_id = 0, 1
        self.padding_side = "left"

    def __len__(self):
        return len(self.vocab)

    def apply_chat_template(self, messages, add_generation_prompt=False):
        ids = []
        for message in messages:
            ids += [self.vocab["<|user|>"]] + self.encode(message["content"])
        if add_generation_prompt:
            ids.append(self.vocab["<|assistant|>"])
        return ids

    def encode(self, text):
        ids = []
        while text:
            piece = text[:2] if text[:2] in self.vocab else text[:1]
            ids.append(self.vocab[piece])
            text = text[len(piece):]
        return ids

    def decode(self, ids, skip_special_tokens=True):
        return "".join(self.inverse[i] for i in ids if not (skip_special_tokens and i < len(self.specials)))

    def pad(self, sequences):
        width = max(map(len, sequences))
        input_ids = [[self.pad_token_id] * (width - len(s)) + s for s in sequences]
        attention_mask = [[0] * (width - len(s)) + [1] * len(s) for s in sequences]
        return torch.tensor(input_ids), torch.tensor(attention_mask)


class LetterDataset(Dataset):
    def __init__(self, size):
        rng = random.Random(0)
        self.rows = []
        for _ in range(size):
            letter = rng.choice("abcdefg")
            noise = "".join(rng.choice("abcdefg ") for _ in range(rng.randint(0, 7)))
            self.rows.append({"prompt": noise + letter, "letter": letter})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, idx):
        return self.rows[idx]


def letter_reward(completion, letter):
    if not completion:
        return -0.5
    return completion.count(letter) / len(completion) - 0.2 * (completion.count(" ") > 0)


def selective_log_softmax(logits, index):
    logps = F.log_softmax(logits, dim=-1)
    return torch.gather(logps, dim=-1, index=index.unsqueeze(-1)).squeeze(-1)


def compute_logps(model, ids, mask, completion_length, temperature):
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    logits = logits[:, -completion_length - 1 : -1].float()
    logits = logits / temperature
    return selective_log_softmax(logits, ids[:, -completion_length:])


def main(args):
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps, cpu=True)
    set_seed(args.seed + accelerator.process_index)
    tokenizer = Tokenizer()

    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, attention_dropout=0.0,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.generation_config.top_k = 5
    model.generation_config.top_p = 0.9
    ref_model = copy.deepcopy(model)
    ref_model.requires_grad_(False)
    ref_model.eval()

    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / args.warmup_steps))
    loader = DataLoader(
        LetterDataset(64), batch_size=args.per_device_prompts, shuffle=True, collate_fn=lambda rows: rows
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    batches = iter(loader)

    for step in range(args.num_train_steps):
        # one optimizer step = `gradient_accumulation_steps` rollouts
        step_rewards, step_losses, step_kls = [], [], []
        for _ in range(args.gradient_accumulation_steps):
            rows = next(batches)
            rows = [row for row in rows for _ in range(args.num_generations)]
            prompts = [
                tokenizer.apply_chat_template([{"role": "user", "content": row["prompt"]}], add_generation_prompt=True)
                for row in rows
            ]
            prompts = [p[-args.max_prompt_length :] for p in prompts]
            prompt_ids, prompt_mask = tokenizer.pad(prompts)

            unwrapped_model = accelerator.unwrap_model(model)
            unwrapped_model.eval()
            with torch.no_grad():
                output = unwrapped_model.generate(
                    input_ids=prompt_ids,
                    attention_mask=prompt_mask,
                    max_new_tokens=args.max_completion_length,
                    do_sample=True,
                    temperature=args.temperature,
                    top_k=0,
                    top_p=1.0,
                    pad_token_id=tokenizer.pad_token_id,
                    eos_token_id=tokenizer.eos_token_id,
                    use_cache=True,
                )
            unwrapped_model.train()
            completion_ids = output[:, prompt_ids.shape[1] :]
            completion_length = completion_ids.shape[1]

            eos_count = (completion_ids == tokenizer.eos_token_id).long().cumsum(dim=1)
            eos_before = F.pad(eos_count, (1, 0))[:, :-1]
            completion_mask = (eos_before == 0).float()
            attention_mask = torch.cat([prompt_mask, completion_mask.long()], dim=1)
            if args.mask_truncated_completions:
                completion_mask = completion_mask * (eos_count[:, -1:] > 0)

            texts = [tokenizer.decode(ids) for ids in completion_ids.tolist()]
            rewards = torch.tensor([letter_reward(text, row["letter"]) for text, row in zip(texts, rows)])
            grouped = rewards.view(args.per_device_prompts, args.num_generations)
            advantages = (grouped - grouped.mean(-1, keepdim=True)) / (grouped.std(-1, keepdim=True) + 1e-4)
            advantages = advantages.view(-1, 1)

            with torch.no_grad():
                ref_logps = compute_logps(ref_model, output, attention_mask, completion_length, args.temperature)

            with accelerator.accumulate(model):
                logps = compute_logps(model, output, attention_mask, completion_length, args.temperature)
                old_logps = logps.detach()  # one update per rollout: the policy that sampled is the one we train
                ratio = torch.exp(logps - old_logps)
                clipped_ratio = ratio.clamp(1 - args.epsilon, 1 + args.epsilon)
                objective = torch.min(ratio * advantages, clipped_ratio * advantages)
                log_ratio_ref = ref_logps - logps
                kl = torch.exp(log_ratio_ref) - log_ratio_ref - 1
                per_token_loss = -objective + args.beta * kl
                lengths = completion_mask.sum(dim=1).clamp(min=1)
                loss = ((per_token_loss * completion_mask).sum(dim=1) / lengths).mean()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                if accelerator.sync_gradients:
                    scheduler.step()
                optimizer.zero_grad()

            step_rewards.append(accelerator.gather(rewards).mean().item())
            step_losses.append(loss.item())
            step_kls.append(((kl * completion_mask).sum() / completion_mask.sum().clamp(min=1)).item())

        accelerator.print(
            f"step={step} reward={sum(step_rewards) / len(step_rewards):.6f} "
            f"loss={math.fsum(step_losses) / len(step_losses):.10f} kl={math.fsum(step_kls) / len(step_kls):.10f} "
            f"lr={scheduler.get_last_lr()[0]:.2e}"
        )

    weights = accelerator.unwrap_model(model).parameters()
    accelerator.print(f"final {sum(w.detach().double().abs().sum() for w in weights).item():.10f}")


if __name__ == "__main__":
    main(ScriptArguments())
