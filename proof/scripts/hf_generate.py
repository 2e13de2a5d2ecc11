#!/usr/bin/env python
# Minimal R1-style GRPO with Hugging Face transformers.
#   python hf_generate.py --steps 100 --lr 2e-3
import argparse
import random
import re

import torch
from tokenizers import Tokenizer, decoders, models
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_tokenizer():
    alphabet = ["<pad>", "<eos>", "<|user|>", "<|assistant|>"] + list("0123456789+-= ad")
    vocab = {tok: i for i, tok in enumerate(alphabet)}
    merges = [("1", "0"), ("1", "1"), ("1", "2"), ("a", "d")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tok.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tok,
        pad_token="<pad>",
        eos_token="<eos>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        padding_side="left",
        truncation_side="left",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer):
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attention_dropout=0.0,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    # what a released checkpoint ships in its generation_config.json
    model.generation_config.top_k = 8
    model.generation_config.top_p = 0.8
    model.generation_config.repetition_penalty = 1.05
    return model


def sample_question():
    a, b = random.randint(0, 12), random.randint(0, 20)
    verb = random.choice(["add ", "a ", ""])
    return f"{verb}{a}+{b}=", str(a + b)


def accuracy_reward(text, answer):
    match = re.search(r"\d+", text)
    return 1.0 if match and match.group(0) == answer else 0.0


def format_reward(text):
    return 0.5 if sum(c.isdigit() for c in text) > len(text) / 2 else 0.0


def get_per_token_logps(model, input_ids, attention_mask, logits_to_keep, temperature):
    logits = model(input_ids=input_ids, attention_mask=attention_mask).logits
    logits = logits[:, :-1, :]  # the last position predicts a token we do not have
    input_ids = input_ids[:, -logits_to_keep:]
    logits = logits[:, -logits_to_keep:].float() / temperature
    logps = logits.log_softmax(dim=-1)
    return torch.gather(logps, dim=-1, index=input_ids.unsqueeze(-1)).squeeze(-1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--num_prompts", type=int, default=3)
    parser.add_argument("--num_generations", type=int, default=6)
    parser.add_argument("--num_iterations", type=int, default=2)
    parser.add_argument("--max_prompt_length", type=int, default=8)
    parser.add_argument("--max_completion_length", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--beta", type=float, default=0.04)
    parser.add_argument("--epsilon", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()

    random.seed(args.seed)
    torch.manual_seed(args.seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    ref_model = build_model(tokenizer)
    ref_model.load_state_dict(model.state_dict())
    ref_model.eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    generation_config = GenerationConfig(
        do_sample=True,
        temperature=args.temperature,
        top_k=0,
        top_p=1.0,
        repetition_penalty=1.0,
        max_new_tokens=args.max_completion_length,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        use_cache=True,
    )

    for step in range(args.steps):
        questions = [sample_question() for _ in range(args.num_prompts)]
        questions = [q for q in questions for _ in range(args.num_generations)]
        texts = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": q}], tokenize=False, add_generation_prompt=True
            )
            for q, _ in questions
        ]
        enc = tokenizer(
            texts,
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=args.max_prompt_length,
            add_special_tokens=False,
        )
        prompt_ids, prompt_mask = enc["input_ids"], enc["attention_mask"]
        prompt_length = prompt_ids.size(1)

        model.eval()
        with torch.no_grad():
            prompt_completion_ids = model.generate(
                input_ids=prompt_ids, attention_mask=prompt_mask, generation_config=generation_config
            )
        model.train()
        completion_ids = prompt_completion_ids[:, prompt_length:]

        # mask everything after the first EOS
        is_eos = completion_ids == tokenizer.eos_token_id
        eos_idx = torch.full((is_eos.size(0),), is_eos.size(1), dtype=torch.long)
        eos_idx[is_eos.any(dim=1)] = is_eos.int().argmax(dim=1)[is_eos.any(dim=1)]
        sequence_indices = torch.arange(is_eos.size(1)).expand(is_eos.size(0), -1)
        completion_mask = (sequence_indices <= eos_idx.unsqueeze(1)).int()
        attention_mask = torch.cat([prompt_mask, completion_mask], dim=1)
        logits_to_keep = completion_ids.size(1)

        with torch.no_grad():
            old_per_token_logps = get_per_token_logps(
                model, prompt_completion_ids, attention_mask, logits_to_keep, args.temperature
            )
            ref_per_token_logps = get_per_token_logps(
                ref_model, prompt_completion_ids, attention_mask, logits_to_keep, args.temperature
            )

        completions = tokenizer.batch_decode(completion_ids, skip_special_tokens=True)
        rewards_per_func = torch.zeros(len(completions), 2)
        for i, (completion, (_, answer)) in enumerate(zip(completions, questions)):
            rewards_per_func[i, 0] = accuracy_reward(completion, answer)
            rewards_per_func[i, 1] = format_reward(completion)
        rewards = rewards_per_func.sum(dim=1)

        mean_grouped_rewards = rewards.view(-1, args.num_generations).mean(dim=1)
        std_grouped_rewards = rewards.view(-1, args.num_generations).std(dim=1)
        mean_grouped_rewards = mean_grouped_rewards.repeat_interleave(args.num_generations, dim=0)
        std_grouped_rewards = std_grouped_rewards.repeat_interleave(args.num_generations, dim=0)
        advantages = (rewards - mean_grouped_rewards) / (std_grouped_rewards + 1e-4)

        for _ in range(args.num_iterations):
            per_token_logps = get_per_token_logps(
                model, prompt_completion_ids, attention_mask, logits_to_keep, args.temperature
            )
            coef_1 = torch.exp(per_token_logps - old_per_token_logps)
            coef_2 = torch.clamp(coef_1, 1 - args.epsilon, 1 + args.epsilon)
            per_token_loss1 = coef_1 * advantages.unsqueeze(1)
            per_token_loss2 = coef_2 * advantages.unsqueeze(1)
            per_token_loss = -torch.min(per_token_loss1, per_token_loss2)
            diff = ref_per_token_logps - per_token_logps
            per_token_kl = torch.exp(diff) - diff - 1
            per_token_loss = per_token_loss + args.beta * per_token_kl
            loss = (per_token_loss * completion_mask).sum() / completion_mask.sum().clamp(min=1.0)

            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        mean_kl = ((per_token_kl * completion_mask).sum() / completion_mask.sum()).item()
        print({"step": step, "loss": round(loss.item(), 10), "reward": rewards.mean().item(), "kl": mean_kl})

    print("final", f"{sum(p.detach().double().abs().sum() for p in model.parameters()).item():.10f}")


if __name__ == "__main__":
    main()
