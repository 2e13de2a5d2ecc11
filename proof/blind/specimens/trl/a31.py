import random

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

KINDS = {"animal": ["cat", "dog", "cow", "hen"], "fruit": ["fig", "plum", "pear", "lime"]}
WORDS = ["name", "an", "a", "not", "please", "animal", "fruit"] + KINDS["animal"] + KINDS["fruit"]


def tokenizer():
    vocab = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>"] + WORDS)}
    t = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=t, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def build_model(tok, seed=0):
    torch.manual_seed(seed)
    cfg = LlamaConfig(
        vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, pad_token_id=tok.pad_token_id,
        eos_token_id=tok.eos_token_id, bos_token_id=None, initializer_range=0.1,
    )
    return LlamaForCausalLM(cfg)


def prompts(n=64, seed=1):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        kind = rng.choice(["animal", "fruit"])
        ban = rng.sample(KINDS[kind], rng.randint(0, 3))
        text = "name " + ("an animal" if kind == "animal" else "a fruit")
        if ban:
            text += " not " + " ".join(ban)
        if rng.random() < 0.4:
            text += " please"
        rows.append({"prompt": text, "kind": kind, "ban": " ".join(ban)})
    return Dataset.from_list(rows)


def quality(completions, kind, ban, **kwargs):
    scores = []
    for text, k, b in zip(completions, kind, ban):
        words = text.split()
        good = [w for w in words if w in KINDS[k] and w not in b.split()]
        scores.append(len(good) / max(len(words), 3) - 0.02 * max(0, len(words) - 6))
    return scores


class PackedRows(GRPOTrainer):
    """Three rows per sequence; positions start anew at each row, which keeps the rows apart in attention."""

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **kwargs
    ):
        rows = [ids[m.bool()] for ids, m in zip(input_ids, attention_mask)]
        tails = attention_mask[:, -logits_to_keep:].sum(1).tolist()
        logps, ents = [], []
        for at in range(0, len(rows), 3):
            block = rows[at : at + 3]
            seq = torch.cat(block)[None]
            pos = torch.cat([torch.arange(len(r)) for r in block])[None]
            table = (model(input_ids=seq, position_ids=pos).logits[0].float() / self.temperature).log_softmax(-1)
            for r, n, part in zip(block, tails[at : at + 3], table.split([len(r) for r in block])):
                part = part[len(r) - n - 1 : len(r) - 1]
                picked = part.gather(1, r[len(r) - n :, None])[:, 0]
                entropy = -(part.exp() * part).sum(-1).detach()
                pad = (0, logits_to_keep - n)
                logps.append(torch.nn.functional.pad(picked, pad))
                ents.append(torch.nn.functional.pad(entropy, pad))
        return torch.stack(logps), torch.stack(ents) if compute_entropy else None, None


def make(out: str):
    tok = tokenizer()
    trainer = PackedRows(
        model=build_model(tok),
        reward_funcs=quality,
        args=GRPOConfig(
            output_dir=out, max_steps=8, per_device_train_batch_size=16, num_generations=4,
            max_completion_length=34, learning_rate=0.002, logging_steps=1, save_strategy="no",
            report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
        ),
        train_dataset=prompts(),
        processing_class=tok,
    )
    return trainer
