import random

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

KINDS = {"animal": ["cat", "dog", "cow", "hen"], "fruit": ["fig", "plum", "pear", "lime"]}
WORDS = ["name", "an", "a", "not", "please", "animal", "fruit"] + KINDS["animal"] + KINDS["fruit"]


def build_tokenizer():
    vocab = {w: i for i, w in enumerate(["<pad>", "<eos>", "<unk>"] + WORDS)}
    t = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=t, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def policy(tok, seed=0):
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


def quality(completions, kind, ban, **kwargs):
    scores = []
    for text, k, b in zip(completions, kind, ban):
        words = text.split()
        good = [w for w in words if w in KINDS[k] and w not in b.split()]
        scores.append(len(good) / max(len(words), 3) - 0.02 * max(0, len(words) - 6))
    return scores

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


def with_reminder(prompts, trainer):
    tok = trainer.processing_class
    prompt_ids = tok(prompts)["input_ids"]
    draft = extend(trainer, prompt_ids, 6)
    out, own = [], []
    todo = [i for i, d in enumerate(draft) if d[-1] != tok.eos_token_id]
    notes = {i: tok("please " + " ".join(prompts[i].split()[1:3]))["input_ids"] for i in todo}
    more = dict(zip(todo, extend(trainer, [prompt_ids[i] + draft[i] + notes[i] for i in todo], 26))) if todo else {}
    for i, d in enumerate(draft):
        note, rest = notes.get(i, []), more.get(i, [])
        out.append(d + note + rest)
        own.append([1] * len(d) + [0] * len(note) + [1] * len(rest))
    return {"prompt_ids": prompt_ids, "completion_ids": out, "logprobs": None, "env_mask": own}


def make(out: str):
    tok = build_tokenizer()
    trainer = GRPOTrainer(
        model=policy(tok),
        reward_funcs=quality,
        args=GRPOConfig(
            output_dir=out, max_steps=9, per_device_train_batch_size=16, num_generations=4,
            max_completion_length=36, learning_rate=0.002, logging_steps=1, save_strategy="no",
            report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
        ),
        train_dataset=dataset(),
        processing_class=tok,
        rollout_func=with_reminder,
    )
    return trainer
