from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig, GRPOTrainer
import torch
from transformers import TrainerCallback

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


class AveragedWeights(TrainerCallback):
    """Keeps a moving average of the weights and looks at it now and then."""

    def __init__(self, decay=0.9, every=5):
        self.decay, self.every, self.average = decay, every, None

    @torch.no_grad()
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if self.average is None:
            self.average = {k: v.clone() for k, v in model.state_dict().items()}
        for k, v in model.state_dict().items():
            self.average[k].lerp_(v, 1 - self.decay)
        if state.global_step % self.every == 0:
            live = {k: v.clone() for k, v in model.state_dict().items()}
            model.load_state_dict(self.average)
            spread = sum((live[k] - v).norm().item() for k, v in self.average.items())
            state.log_history.append({"average_distance": spread, "step": state.global_step})


def polite(completions, colour, **_):
    return [min(t.split().count(c), 2) * 0.5 + ("please" in t) - 0.1 * len(t.split()) for t, c in zip(completions, colour)]


def make(out):
    tok = tokenizer()
    args = GRPOConfig(
        output_dir=out, max_steps=12, per_device_train_batch_size=24, num_generations=8, max_completion_length=10,
        learning_rate=6e-3, lr_scheduler_type="constant", beta=0.0, loss_type="grpo", report_to="none",
        save_strategy="no", logging_steps=1, use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
        seed=31)
    return GRPOTrainer(network(tok), polite, args, prompts(), processing_class=tok, callbacks=[AveragedWeights()])
