from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer

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


SOFT, HARD = 7, 12


def mentions(completions, colour, **_):
    return [float(c in t.split()) + 0.1 * t.split().count("and") for t, c in zip(completions, colour)]


class Overlong(GRPOTrainer):
    """DAPO's soft punishment of answers that run into the buffer before the limit."""

    def _generate_and_score_completions(self, inputs):
        batch = super()._generate_and_score_completions(inputs)
        length = batch["completion_mask"].sum(1)
        excess = ((length - SOFT).clamp(min=0) / (HARD - SOFT)).float()
        batch["advantages"] = batch["advantages"] - excess
        return batch


def make(out):
    tok = tokenizer()
    args = GRPOConfig(
        output_dir=out, max_steps=10, per_device_train_batch_size=24, num_generations=6, max_completion_length=HARD,
        learning_rate=3e-3, lr_scheduler_type="constant", beta=0.0, loss_type="dapo", epsilon=0.2, epsilon_high=0.28,
        report_to="none", save_strategy="no", logging_steps=1, use_cpu=True, bf16=False, gradient_checkpointing=False,
        disable_tqdm=True, seed=23)
    return Overlong(network(tok), mentions, args, prompts(), processing_class=tok)
