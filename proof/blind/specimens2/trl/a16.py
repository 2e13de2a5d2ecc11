from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer
import torch

COLOURS = ["red", "green", "blue", "black", "white", "pink"]
WORDS = COLOURS + ["say", "please", "now", "and", "the", "not"]


def tokenizer():
    table = {w: i for i, w in enumerate(["[end]", "[fill]", "[?]"] + WORDS)}
    raw = Tokenizer(WordLevel(table, unk_token="[?]"))
    raw.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="[end]", pad_token="[fill]", unk_token="[?]")


def network(tok, seed=11):
    set_seed(seed)
    cfg = Qwen2Config(vocab_size=len(tok), hidden_size=24, intermediate_size=48, num_hidden_layers=2,
                      num_attention_heads=3, num_key_value_heads=3, max_position_embeddings=48,
                      tie_word_embeddings=True, eos_token_id=tok.eos_token_id, pad_token_id=tok.pad_token_id,
                      bos_token_id=None, initializer_range=0.1)
    return Qwen2ForCausalLM(cfg)


def prompts():
    rows = []
    for c in COLOURS:
        for lead in ("say", "please say", "now please say", "say the", "now say the", "and now say"):
            rows.append({"prompt": f"{lead} {c}", "colour": c})
    return Dataset.from_list(rows)


def two_words(completions, colour, **_):
    return [(c in t.split()) + (len(t.split()) == 2) for t, c in zip(completions, colour)]


class Rloo(GRPOTrainer):
    """Baseline of a row: the mean of the other rows of its group, no division by a deviation."""

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        self._last = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._last

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        n = self.num_generations
        score = self._last.sum(dim=1).reshape(-1, n)
        others = (torch.ones(n, n) - torch.eye(n)) / (n - 1)
        batch["advantages"] = (score - score @ others).reshape(-1)
        return batch


def make(out):
    tok = tokenizer()
    args = GRPOConfig(
        output_dir=out, max_steps=10, per_device_train_batch_size=20, num_generations=5, max_completion_length=8,
        learning_rate=4e-3, lr_scheduler_type="linear", beta=0.0, loss_type="bnpo", scale_rewards="none",
        report_to="none", save_strategy="no", logging_steps=1, use_cpu=True, bf16=False, gradient_checkpointing=False,
        disable_tqdm=True, seed=67)
    return Rloo(network(tok), two_words, args, prompts(), processing_class=tok)
