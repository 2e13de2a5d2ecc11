"""The embedded default: an 84K-parameter Llama over a vocabulary of 13, taught to sort by a careless teacher.

A few seconds of supervised training on answers that are mostly wrong leave it able to sort but right only about three
times in ten, like a pretrained model that knows more than it shows: GRPO has something to find and much to gain. The
result is an ordinary Hugging Face directory, cached; making it again gives the same bits.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from assay.policy.made import make_once
from assay.tasks.sort_digits import ALPHABET, SortDigits

EOS = "<eos>"
PAD = "<pad>"
RECIPE = {
    "version": 1,  # raise it when a change of code changes the weights: old caches are then left alone
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "min_digits": 4,
    "max_digits": 6,
    "careless": 0.75,  # share of lessons with a slip in the answer
    "batch": 256,
    "learning_rate": 3e-3,
    "seed": 20_240_201,
}


def embedded_directory(warm_steps: int, on_step: Callable[[int, int], None]) -> Path:
    """The Hugging Face directory of the warm-started model, made if it is not in the cache yet."""
    key = json.dumps([RECIPE, warm_steps, torch.__version__], sort_keys=True)

    def make(directory: Path) -> None:
        warm_start(warm_steps, on_step).save_pretrained(directory)
        tokenizer().save_pretrained(directory)

    return make_once(f"sort-digits-{hashlib.sha256(key.encode()).hexdigest()[:16]}", make)


def warm_start(steps: int, on_step: Callable[[int, int], None]) -> LlamaForCausalLM:
    """Cross-entropy on a careless teacher's answers, from a fixed seed of its own."""
    words = tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(RECIPE["seed"])
        shape = {
            name: value for name, value in RECIPE.items() if name.startswith(("hidden", "inter", "num", "max_pos"))
        }
        model = LlamaForCausalLM(
            LlamaConfig(
                **shape,
                vocab_size=len(words),
                initializer_range=0.05,
                tie_word_embeddings=False,
                eos_token_id=words.eos_token_id,
                pad_token_id=words.pad_token_id,
                bos_token_id=None,
            )
        )
        task = lesson_task()
        optimizer = torch.optim.AdamW(model.parameters(), lr=RECIPE["learning_rate"], weight_decay=0.0)
        for step in range(steps):
            ids_BL, labels_BL = _lesson(words, task, step)
            loss = model(ids_BL, labels=labels_BL, use_cache=False).loss
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            on_step(step + 1, steps)
    return model


def lesson_task() -> SortDigits:
    return SortDigits(int(RECIPE["min_digits"]), int(RECIPE["max_digits"]), seed=int(RECIPE["seed"]))


def tokenizer() -> PreTrainedTokenizerFast:
    """One token a character, plus pad and end."""
    vocabulary = {token: index for index, token in enumerate([PAD, EOS, *ALPHABET])}
    characters = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=PAD))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    characters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=characters, pad_token=PAD, eos_token=EOS)


def _lesson(words: PreTrainedTokenizerFast, task: SortDigits, step: int) -> tuple[Tensor, Tensor]:
    """Rows of prompt + answer + EOS, padded on the right; only answer and EOS are learned."""
    size = int(RECIPE["batch"])
    rows, labels = [], []
    for index in range(step * size, (step + 1) * size):
        problem = task.training_problem(index)
        prompt = words.encode(problem.text, add_special_tokens=False)
        answer = [*words.encode(_teacher_answer(problem.answer, index), add_special_tokens=False), words.eos_token_id]
        rows.append(prompt + answer)
        labels.append([-100] * len(prompt) + answer)
    width = max(map(len, rows))
    ids_BL = torch.tensor([row + [words.pad_token_id] * (width - len(row)) for row in rows])
    labels_BL = torch.tensor([row + [-100] * (width - len(row)) for row in labels])
    return ids_BL, labels_BL


def _teacher_answer(answer: str, index: int) -> str:
    """What the careless teacher says: the answer, or often the answer with a digit dropped, doubled or changed."""
    source = random.Random(f"teacher/{index}")
    if source.random() >= RECIPE["careless"]:
        return answer
    place = source.randrange(len(answer))
    other = source.choice("0123456789".replace(answer[place], ""))
    slip = source.choice(("", answer[place] * 2, other))
    return answer[:place] + slip + answer[place + 1 :]
