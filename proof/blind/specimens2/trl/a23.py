import random
import torch
import trl
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import MistralConfig, MistralForCausalLM, PreTrainedTokenizerFast


class Vocab:
    symbols = ["~", "$"] + list("abcdefgh:>")

    @classmethod
    def tokenizer(cls):
        tk = Tokenizer(models.WordLevel({s: i for i, s in enumerate(cls.symbols)}, unk_token="~"))
        tk.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
        tk.decoder = decoders.Fuse()
        return PreTrainedTokenizerFast(tokenizer_object=tk, pad_token="~", eos_token="$")


def policy(tok):
    torch.manual_seed(5)
    return MistralForCausalLM(MistralConfig(
        vocab_size=len(Vocab.symbols), hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, sliding_window=None,
        pad_token_id=tok.pad_token_id, eos_token_id=tok.eos_token_id, bos_token_id=None, initializer_range=0.08))


def data(n=60, seed=0):
    rng = random.Random(seed)
    return Dataset.from_list([{"prompt": "".join(rng.choices("abcdefgh", k=rng.randint(3, 12))) + ":>"} for _ in range(n)])


def copies(prompts, completions, **_):
    """Up to three letters of the answer that occur in the question, less a price for going on and on."""
    return [min(sum(ch in p[:-2] for ch in c), 3) / 3 - 0.1 * max(len(c) - 3, 0) for p, c in zip(prompts, completions)]


def settings(out, **over):
    base = dict(output_dir=out, max_steps=10, per_device_train_batch_size=24, num_generations=6,
                max_completion_length=9, learning_rate=3e-3, lr_scheduler_type="constant", beta=0.0, report_to="none",
                save_strategy="no", logging_steps=1, use_cpu=True, bf16=False, gradient_checkpointing=False,
                disable_tqdm=True, seed=17)
    base.update(over)
    return trl.GRPOConfig(**base)


class DualClip(trl.GRPOTrainer):
    """Dual-clip PPO, taken over from another code base."""

    dual = 3.0

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        keep = inputs["completion_ids"].size(1)
        mask = inputs["completion_mask"]
        logp, entropy, _ = self._get_per_token_logps_and_entropies(model, ids, seen, keep, compute_entropy=True)
        old = inputs.get("old_per_token_logps")
        old = logp.detach() if old is None else old
        adv = inputs["advantages"].unsqueeze(1)
        ratio = (logp - old).exp()
        inner = torch.min(ratio * adv, ratio.clamp(1 - self.epsilon_low, 1 + self.epsilon_high) * adv)
        bounded = torch.min(inner, self.dual * adv)
        objective = torch.where(adv < 0, bounded, inner)
        self._metrics["train"]["entropy"].append(((entropy * mask).sum() / mask.sum()).item())
        per_row = (-objective * mask).sum(-1) / mask.sum(-1).clamp(min=1)
        return per_row.mean() / self.current_gradient_accumulation_steps


def make(out: str):
    tok = Vocab.tokenizer()
    return DualClip(policy(tok), copies, args=settings(out, loss_type="grpo", num_iterations=2, seed=3, max_steps=12),
                    train_dataset=data(), processing_class=tok)
