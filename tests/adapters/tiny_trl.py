"""A real TRL run around a Llama of a few thousand weights, offline, in a second or two."""

import tempfile
from pathlib import Path

import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

PAD, EOS = 0, 1
LETTERS = "abcdefgh"
PROMPTS = ["a b", "c", "d e f g", "h a c"]
GROUP = 4


def tokenizer():
    words = Tokenizer(models.WordLevel({"<pad>": PAD, "<eos>": EOS, **{one: 2 + at for at, one in enumerate(LETTERS)}}))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def model_directory(root, **settings):
    """TRL loads its reference from where the model came from, so the model is saved."""
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(
        **shape,
        vocab_size=2 + len(LETTERS),
        max_position_embeddings=64,
        initializer_range=0.35,
        eos_token_id=EOS,
        bos_token_id=None,
        pad_token_id=PAD,
        **settings,
    )
    LlamaForCausalLM(config).save_pretrained(root)
    tokenizer().save_pretrained(root)
    return root


def vowels(completions, **others):
    """Rewards that differ between completions."""
    return [one.count("a") + 0.5 * one.count("e") + 0.01 * len(one) for one in completions]


def brevity(completions, **others):
    return [-0.1 * len(one) for one in completions]


def made_trainer(model, output, kind=GRPOTrainer, rewards=vowels, peft=None, eval_prompts=None, **settings):
    config = {
        "output_dir": str(output),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "logging_steps": 1,
        "max_steps": 3,
        "num_generations": GROUP,
        "per_device_train_batch_size": 8,
        "steps_per_generation": 1,
        "max_completion_length": 10,
        "temperature": 0.7,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "seed": 3,
        "gradient_checkpointing": False,
        "log_level": "error",
        **settings,
    }
    return kind(
        model=str(model),
        args=GRPOConfig(**config, model_init_kwargs={"dtype": "float32"}),
        processing_class=tokenizer(),
        reward_funcs=rewards,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS * 4}),
        eval_dataset=None if eval_prompts is None else Dataset.from_dict({"prompt": eval_prompts}),
        peft_config=peft,
    )


def fresh(root):
    return Path(tempfile.mkdtemp(dir=root))


class Models:
    """Saved once: the tiny Llama, and the same with dropout in its attention."""

    def __init__(self, root):
        self.root = Path(root)
        self.plain = model_directory(self.root / "plain")
        self.dropout = model_directory(self.root / "dropout", attention_dropout=0.3)

    def trainer(self, *, dropout=0.0, **settings):
        return made_trainer(self.dropout if dropout else self.plain, fresh(self.root), **settings)


def quietly():
    """TRL and transformers print much; a run of a test says nothing but what the doctor says."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
