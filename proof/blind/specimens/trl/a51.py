import random

import torch
import torch.nn.functional as F
from datasets import Dataset
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

CHARS = "0123456789+=. "


def make_tok():
    vocab = {"<pad>": 0, "</s>": 1, "<unk>": 2, **{c: i + 3 for i, c in enumerate(CHARS)}}
    t = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    t.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=t, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def sums(n, seed):
    rng = random.Random(seed)
    return [(rng.randint(0, 19), rng.randint(0, 9)) for _ in range(n)]


def build_model(tok, steps=80):
    torch.manual_seed(2)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tok), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=4, max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=None,
            initializer_range=0.08,
        )
    )
    if steps:
        warm_start(model, tok, steps)
    return model


def warm_start(model, tok, steps):
    """A short supervised start, so that answers look like answers."""
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for s in range(steps):
        texts = [f"{a}+{b}={a + b}." for a, b in sums(32, 1000 + s)]
        ids = [tok(x)["input_ids"] + [1] for x in texts]
        width = max(map(len, ids))
        x = torch.tensor([i + [0] * (width - len(i)) for i in ids])
        logits = model(input_ids=x, attention_mask=(x != 0).long()).logits[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].masked_fill(x[:, 1:] == 0, -100).flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()


def load_prompts(n=80):
    pairs = sums(n, 7)
    return Dataset.from_dict({"prompt": [f"{a}+{b}=" for a, b in pairs], "answer": [a + b for a, b in pairs]})


def task_reward(completions, answer, **kwargs):
    res = []
    for c, y in zip(completions, answer):
        head = c.split(".")[0].strip()
        if head.isdigit():
            res.append(1.0 if int(head) == y else max(0.0, 0.6 - abs(int(head) - y) / 30))
        else:
            res.append(0.0)
    return res


def make(out: str):
    tok = make_tok()
    model = build_model(tok, steps=0)
    model.save_pretrained(f"{out}/init")
    model.config._name_or_path = f"{out}/init"
    warm_start(model, tok, 90)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=task_reward,
        args=GRPOConfig(
            output_dir=out, max_steps=10, per_device_train_batch_size=16, num_generations=8,
            max_completion_length=10, learning_rate=0.001, logging_steps=1, save_strategy="no",
            report_to="none", use_cpu=True, bf16=False, gradient_checkpointing=False, disable_tqdm=True,
            beta=0.05,
        ),
        train_dataset=load_prompts(),
        processing_class=tok,
    )
    return trainer
