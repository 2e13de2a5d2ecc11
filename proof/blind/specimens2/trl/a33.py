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


def no_filler(completions, colour, **_):
    return [min(t.split().count(c), 2) - 0.1 * len(t.split()) - 0.2 * sum(w in ("and", "the", "not") for w in t.split())
            for t, c in zip(completions, colour)]


def make(out):
    tok = tokenizer()
    network(tok).save_pretrained(f"{out}/start")
    model = Qwen2ForCausalLM.from_pretrained(f"{out}/start")
    args = GRPOConfig(
        output_dir=out, max_steps=12, per_device_train_batch_size=24, num_generations=4, max_completion_length=9,
        learning_rate=4e-3, lr_scheduler_type="constant", beta=0.1, loss_type="sapo", num_iterations=2,
        sync_ref_model=True, ref_model_mixup_alpha=0.5, ref_model_sync_steps=4, scale_rewards="batch",
        report_to="none", save_strategy="no", logging_steps=1, use_cpu=True, bf16=False, gradient_checkpointing=False,
        disable_tqdm=True, seed=107)
    return GRPOTrainer(model, no_filler, args, prompts(), processing_class=tok)
