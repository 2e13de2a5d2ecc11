import random

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

KINDS = {"animal": ["cat", "dog", "cow", "hen"], "fruit": ["fig", "plum", "pear", "lime"]}
WORDS = ["name", "an", "a", "not", "please", "animal", "fruit"] + KINDS["animal"] + KINDS["fruit"]


def get_tokenizer():
    vocab = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>"] + WORDS)}
    t = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=t, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def tiny_model(tok, seed=0):
    torch.manual_seed(seed)
    cfg = LlamaConfig(
        vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, pad_token_id=tok.pad_token_id,
        eos_token_id=tok.eos_token_id, bos_token_id=None, initializer_range=0.1,
    )
    return LlamaForCausalLM(cfg)


def dataset(n=64, seed=1):
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


def score(completions, kind, ban, **kwargs):
    scores = []
    for text, k, b in zip(completions, kind, ban):
        words = text.split()
        good = [w for w in words if w in KINDS[k] and w not in b.split()]
        scores.append(len(good) / max(len(words), 3) - 0.02 * max(0, len(words) - 6))
    return scores


class ShortLoss(GRPOTrainer):
    """GRPO loss on one page, with the KL term of Schulman's note."""

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        attn = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        mask = inputs["completion_mask"]
        logps, entropy, _ = self._get_per_token_logps_and_entropies(
            model, ids, attn, mask.size(1), compute_entropy=True
        )
        old = inputs.get("old_per_token_logps")
        if old is None:
            old = logps.detach()
        adv = inputs["advantages"][:, None]
        ratio = (logps - old).exp()
        surrogate = torch.min(ratio * adv, ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high) * adv)
        diff = inputs["ref_per_token_logps"] - logps
        kl = diff.exp() + diff - 1
        per_row = ((-surrogate + self.beta * kl) * mask).sum(1) / mask.sum(1).clamp(min=1)
        self._metrics["train"]["kl"].append(((kl * mask).sum() / mask.sum()).item())
        self._metrics["train"]["entropy"].append(((entropy * mask).sum() / mask.sum()).item())
        return per_row.mean() / self.current_gradient_accumulation_steps


def make(out: str):
    tok = get_tokenizer()
    model = tiny_model(tok)
    model.save_pretrained(f"{out}/start")
    model.config._name_or_path = f"{out}/start"
    trainer = ShortLoss(
        model=model,
        reward_funcs=score,
        args=GRPOConfig(
            output_dir=out, max_steps=10, per_device_train_batch_size=16, num_generations=4,
            max_completion_length=24, learning_rate=0.002, logging_steps=1, save_strategy="no",
            report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
            beta=0.15, loss_type="grpo",
        ),
        train_dataset=dataset(),
        processing_class=tok,
    )
    return trainer
