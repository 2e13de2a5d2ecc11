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


def ends_with(completions, colour, **_):
    return [1.0 if t.split()[-1:] == [c] else 0.3 if c in t else -0.02 * len(t.split())
            for t, c in zip(completions, colour)]


def make(out):
    tok = tokenizer()
    args = GRPOConfig(
        output_dir=out, max_steps=12, per_device_train_batch_size=16, num_generations=2, max_completion_length=11,
        learning_rate=5e-3, lr_scheduler_type="cosine", warmup_steps=3, beta=0.0, loss_type="dr_grpo",
        scale_rewards="none", max_grad_norm=0.0, adam_beta1=0.8, report_to="none", save_strategy="no", logging_steps=1,
        use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True, seed=83)
    return GRPOTrainer(network(tok), ends_with, args, prompts(), processing_class=tok)
