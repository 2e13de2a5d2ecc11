import random

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

SYMBOLS = ["p", "q", "r", "s", "t", "u", "v", "w"]


class Setup:
    """Tokenizer, model and prompts of the copy task."""

    def __init__(self, prompts=60, seed=4):
        vocab = {w: i for i, w in enumerate(["<pad>", "<end>", "<unk>", "copy", "=", ";"] + SYMBOLS)}
        inner = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
        inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self.tok = PreTrainedTokenizerFast(
            tokenizer_object=inner, pad_token="<pad>", eos_token="<end>", unk_token="<unk>", padding_side="left"
        )
        torch.manual_seed(seed)
        self.model = GPTNeoXForCausalLM(
            GPTNeoXConfig(
                vocab_size=len(self.tok), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                intermediate_size=64, max_position_embeddings=128, bos_token_id=None,
                eos_token_id=self.tok.eos_token_id, pad_token_id=self.tok.pad_token_id, initializer_range=0.1,
            )
        )
        rng = random.Random(seed)
        items = [rng.sample(SYMBOLS, rng.randint(2, 5)) for _ in range(prompts)]
        self.data = Dataset.from_list([{"prompt": "copy " + " ".join(i) + " =", "items": i} for i in items])


def task_reward(completions, items, **kwargs):
    out = []
    for text, want in zip(completions, items):
        got = text.split()
        place = sum(g == w for g, w in zip(got, want)) / len(want)
        out.append(place + 0.5 * len(set(got) & set(want)) / len(want) - 0.03 * abs(len(got) - len(want)))
    return out

def extend(trainer, ids, n):
    tok = trainer.processing_class
    width = max(map(len, ids))
    x = torch.tensor([[tok.pad_token_id] * (width - len(r)) + r for r in ids])
    m = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in ids])
    model = trainer.accelerator.unwrap_model(trainer.model)
    with torch.no_grad():
        y = model.generate(
            input_ids=x, attention_mask=m, max_new_tokens=n, do_sample=True, temperature=trainer.temperature,
            top_k=0, top_p=1.0, pad_token_id=tok.pad_token_id, eos_token_id=tok.eos_token_id,
        )[:, width:].tolist()
    return [r[: r.index(tok.eos_token_id) + 1] if tok.eos_token_id in r else r for r in y]


def two_turns(prompts, trainer):
    """Five tokens, then the environment shows the wanted symbols once more, then the rest."""
    tok = trainer.processing_class
    prompt_ids = tok(prompts)["input_ids"]
    first = extend(trainer, prompt_ids, 5)
    done = [r[-1] == tok.eos_token_id for r in first]
    hints = [[] if d else tok("; " + p.replace("copy ", ""))["input_ids"] for d, p in zip(done, prompts)]
    second = extend(trainer, [p + a + h for p, a, h in zip(prompt_ids, first, hints)], 10)
    completion_ids, env_mask = [], []
    for a, h, b, d in zip(first, hints, second, done):
        b = [] if d else b
        completion_ids.append(a + h + b)
        own = [1] * len(a) + [0] * len(h) + [1] * len(b)
        env_mask.append(own[1:] + [1])
    return {"prompt_ids": prompt_ids, "completion_ids": completion_ids, "logprobs": None, "env_mask": env_mask}


def make(out: str):
    setup = Setup()
    trainer = GRPOTrainer(
        model=setup.model,
        reward_funcs=task_reward,
        args=GRPOConfig(
            output_dir=out, max_steps=9, per_device_train_batch_size=16, num_generations=4,
            max_completion_length=24, learning_rate=0.002, logging_steps=1, save_strategy="no",
            report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
        ),
        train_dataset=setup.data,
        processing_class=setup.tok,
        rollout_func=two_turns,
    )
    return trainer
