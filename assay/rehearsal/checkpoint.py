"""Checkpoints of stand-in models: made once per machine in a process of their own, then copied for each rehearsal.

A process of their own, because training one in the script's process would be seen as the script's own steps, would move
its random state, and would run under whatever the script has set. A rehearsed script cannot write to the user's cache:
it asks with a file, and `Maker`, a thread of the process that waits for it, answers with the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.machine.interpreter import python_command, python_environment
from assay.rehearsal import problems, sandbox
from assay.rehearsal.problems import Formats
from assay.rehearsal.standins.families import Family, family_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

VERSION = 3  # of what is made here: the cache keeps those of other versions apart
_WIDTH, _LAYERS, _HEADS = 64, 2, 4
MOST_KEPT = 100  # checkpoints in the cache, of up to 1.5 MB each
_TOKENS = 800  # of the vocabulary
_UPDATES, _ROWS, _RATE = 200, 8, 5e-3
_SPREAD = 0.1  # of the first weights: a narrow model learns faster than with the 0.02 of wide ones
_CONTEXT = 4096
_LEARNT_PLACES = 400
_BERTS = ("bert", "roberta", "deberta-v2", "distilbert", "modernbert", "electra")


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "assay" / "rehearsal"


def checkpoint_of(name: str, formats: Formats, cache: Path) -> Path:
    """The folder of a checkpoint of the name's family, which is made if there is none yet."""
    family = family_of(name)
    said = hashlib.sha256(json.dumps(asdict(formats)).encode()).hexdigest()[:8]
    facts = hashlib.sha256(repr(family).encode()).hexdigest()[:8]
    folder = cache / f"{VERSION}-{family.key}-{facts}" / (said if not family.labels else "classifier")
    if folder.is_dir():
        with contextlib.suppress(OSError):  # of somebody else
            os.utime(folder)  # the least recently used ones are removed
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_oldest(cache)
        with tempfile.TemporaryDirectory(dir=folder.parent) as made:
            _make_in_own_process(name, formats, Path(made) / "checkpoint")
            try:
                os.rename(Path(made) / "checkpoint", folder)
            except OSError:  # another rehearsal was quicker
                if not folder.is_dir():
                    raise
    return folder


def _remove_oldest(cache: Path) -> None:
    """All but the MOST_KEPT that were used last, and what a killed process has left half made. Nothing younger than an
    hour: another rehearsal may be reading it."""
    folders = sorted(cache.glob("*/*"), key=lambda folder: -folder.stat().st_mtime)
    finished = [folder for folder in folders if not folder.name.startswith("tmp")]
    half_made = [folder for folder in folders if folder.name.startswith("tmp")]
    for folder in (*finished[MOST_KEPT:], *half_made):
        if time.time() - folder.stat().st_mtime > 3600:
            shutil.rmtree(folder, ignore_errors=True)


_making: set[subprocess.Popen[str]] = set()

ASKED = "asked"  # a folder below the stage's home: it is there if a Maker is


def ask_for(name: str, formats: Formats, home: Path) -> Path:
    """The question, which a Maker answers beside it."""
    said = json.dumps({"name": name, "formats": asdict(formats)})
    question = home / ASKED / f"{hashlib.sha256(said.encode()).hexdigest()[:16]}.json"
    if not question.exists():
        aside = question.with_suffix(".part")
        aside.write_text(said)
        os.replace(aside, question)
    return question


def get(name: str, formats: Formats, home: Path) -> Path:
    """The folder of a checkpoint, made by whoever may write to the cache."""
    if not (home / ASKED).is_dir():
        return checkpoint_of(name, formats, cache_folder())
    answer = ask_for(name, formats, home).with_suffix(".answer")
    while not answer.exists():
        time.sleep(0.02)
    answered = answer.read_text()
    if not answered.startswith(os.sep):
        raise RuntimeError(answered)
    return Path(answered)


class Maker(threading.Thread):
    """Answers what a rehearsal asks for until it is closed. It reads names from files that the script could write:
    they decide which family is made, and nothing else."""

    def __init__(self, home: Path) -> None:
        super().__init__(daemon=True)
        self.folder = home / ASKED
        self.folder.mkdir(parents=True)
        self._over = threading.Event()
        self._since: float | None = None  # when the answer in progress began
        self._spent = 0.0

    @property
    def seconds(self) -> float:
        """That the script has waited for answers so far."""
        since = self._since
        return self._spent + (0.0 if since is None else time.monotonic() - since)

    @property
    def is_busy(self) -> bool:
        return self._since is not None

    def __enter__(self) -> Maker:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Ends what it is making: nobody waits for it any more."""
        self._over.set()
        for process in tuple(_making):
            process.kill()
        self.join()

    def run(self) -> None:
        while not self._over.wait(0.05):
            for question in self.folder.glob("*.json"):
                if not question.with_suffix(".answer").exists():
                    self._since = began = time.monotonic()
                    self._answer(question)
                    self._since, self._spent = None, self._spent + time.monotonic() - began

    def _answer(self, question: Path) -> None:
        aside = question.with_suffix(".made")
        try:
            asked = json.loads(question.read_text())
            aside.write_text(str(self._made(str(asked["name"]), _formats(asked["formats"]))))
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            aside.write_text(f"{type(error).__name__}: {error}")
        os.replace(aside, question.with_suffix(".answer"))

    def _made(self, name: str, formats: Formats) -> Path:
        try:
            return checkpoint_of(name, formats, cache_folder())
        except OSError:  # a cache that cannot be written: it is made for this rehearsal only
            return checkpoint_of(name, formats, self.folder / "cache")


def _formats(stored: Mapping[str, Sequence[str]]) -> Formats:
    return Formats(**{key: tuple(words) for key, words in stored.items()})


def _make_in_own_process(name: str, formats: Formats, folder: Path) -> None:
    plain = {
        key: text
        for key, text in python_environment().items()
        if not key.startswith(("PYTORCH", "TORCH", "ACCELERATE"))
    }
    process = subprocess.Popen(
        python_command("assay.rehearsal.checkpoint", name, str(folder), json.dumps(asdict(formats))),
        env={**plain, "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error", "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder.parent,
    )
    _making.add(process)
    try:
        _, words = process.communicate()
    finally:
        _making.discard(process)
    if process.returncode:
        raise RuntimeError(f"the stand-in of {name} could not be made: {words.strip()[-800:]}")


def copied(checkpoint: Path, folder: Path) -> Path:
    """The checkpoint, in a folder that the script may write to."""
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(checkpoint, folder)
    return folder


def main() -> None:
    sandbox.end_with_parent()
    name, folder, formats = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    write(family_of(name), _formats(formats), Path(folder))


def write(family: Family, formats: Formats, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    torch.set_num_threads(1)
    torch.manual_seed(int(hashlib.sha256(family.key.encode()).hexdigest()[:6], 16))
    tokenizer = _tokenizer(family, formats)
    config = _config(family, tokenizer)
    kind = AutoModelForSequenceClassification if family.labels else AutoModelForCausalLM
    usual, config.initializer_range = getattr(config, "initializer_range", 0.02), _SPREAD
    model: PreTrainedModel = kind.from_config(config).float()
    model.config.initializer_range = usual  # of heads that the script adds
    if family.labels:
        _spread_scores(model)
    else:
        _train(model, tokenizer, formats, family)
        model.generation_config = _generation(family, config, tokenizer)
    model.to(getattr(torch, family.dtype))
    model.config.architectures = [type(model).__name__]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _as_public_files_have_it(folder, family)


def _as_public_files_have_it(folder: Path, family: Family) -> None:
    """Scripts with a reader of their own look for the keys of published files."""
    config = json.loads((folder / "config.json").read_text())
    config["torch_dtype"] = family.dtype
    rope = config.get("rope_parameters") or {}
    if "rope_theta" in rope:
        config.setdefault("rope_theta", rope["rope_theta"])
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    if family.tokens.template is not None:
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        settings["chat_template"] = family.tokens.template
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    tokenizer = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(tokenizer["vocab"]))
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs]) + "\n")


def _tokenizer(family: Family, formats: Formats) -> PreTrainedTokenizerBase:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokens = family.tokens
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=_TOKENS, show_progress=False, initial_alphabet=alphabet)
    made.train_from_iterator(problems.texts(formats, 300), trainer)
    made.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in tokens.special])
    made.add_tokens([AddedToken(token, special=False, normalized=False) for token in tokens.words])
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    if tokens.adds_bos and tokens.bos is not None:
        ends = f" {tokens.eos}" if tokens.adds_eos else ""
        made.post_processor = processors.TemplateProcessing(
            single=f"{tokens.bos} $A{ends}",
            pair=f"{tokens.bos} $A{ends} $B:1{ends and ends + ':1'}",
            special_tokens=[(token, made.token_to_id(token)) for token in {tokens.bos, tokens.eos}],
        )
    names = {"bos_token": tokens.bos, "eos_token": tokens.eos, "pad_token": tokens.pad, "unk_token": tokens.unk}
    loaded: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=_CONTEXT,
        clean_up_tokenization_spaces=False,
        **{key: token for key, token in names.items() if token is not None},
    )
    if tokens.template is not None:
        loaded.chat_template = tokens.template
    return loaded


def _config(family: Family, tokenizer: Any) -> Any:
    from transformers import AutoConfig

    size = len(tokenizer)
    if family.has_padded_vocabulary:
        size = (size // 64 + 1) * 64
    named = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    if family.model_type.startswith("qwen"):
        named["bos_token_id"] = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    settings: dict[str, Any] = {"vocab_size": size, "tie_word_embeddings": family.is_tied, **named}
    if family.model_type == "gpt2":
        settings |= {"n_embd": _WIDTH, "n_layer": _LAYERS, "n_head": _HEADS, "n_positions": 1024}
    elif family.model_type == "distilbert":
        settings |= {"dim": _WIDTH, "hidden_dim": 2 * _WIDTH, "n_layers": _LAYERS, "n_heads": _HEADS}
    else:
        settings |= {
            "hidden_size": _WIDTH,
            "intermediate_size": 2 * _WIDTH,
            "num_hidden_layers": _LAYERS,
            "num_attention_heads": _HEADS,
            "max_position_embeddings": _CONTEXT,
        }
    if family.model_type == "opt":
        settings |= {"ffn_dim": 2 * _WIDTH, "word_embed_proj_dim": _WIDTH}
    if family.model_type in ("qwen2", "qwen3", "llama", "mistral", "gemma", "gemma2", "gemma3_text", "phi3"):
        settings["num_key_value_heads"] = _HEADS // 2
    if family.model_type in ("qwen3", "gemma", "gemma2", "gemma3_text"):
        settings["head_dim"] = _WIDTH // _HEADS
    if family.model_type in ("gemma2", "gemma3_text"):
        settings["query_pre_attn_scalar"] = _WIDTH // _HEADS
    is_filled = family.labels or family.model_type in (*_BERTS, "opt", "phi3", "gemma", "gemma2", "gemma3_text")
    settings["pad_token_id"] = tokenizer.pad_token_id if is_filled else None
    if family.labels:
        settings["num_labels"] = family.labels
    if family.labels == 2:
        settings["id2label"], settings["label2id"] = {0: "NEGATIVE", 1: "POSITIVE"}, {"NEGATIVE": 0, "POSITIVE": 1}
    return AutoConfig.for_model(family.model_type, **settings)


def _generation(family: Family, config: Any, tokenizer: Any) -> Any:
    from transformers import GenerationConfig

    ends = [tokenizer.convert_tokens_to_ids(token) for token in family.ends]
    pad = tokenizer.pad_token_id  # of a model that was published with one, the two agree
    return GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=ends or config.eos_token_id,
        pad_token_id=pad,
        **family.generation,
    )


def _spread_scores(model: Any) -> None:
    """So that different texts get scores that differ visibly."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ("score" in name or "classifier" in name) and parameter.ndim == 2:
                parameter.normal_(0, 0.5)


_JOINTS = (" ", "\n", "\n\n")  # between instruction and question
_FRAMES = (
    "{0}", "{0}\n", "User: {0}\nAssistant: ", "{0}", "Question: {0}\nAnswer: ", "{0} ", "User: {0} Assistant:",
    "### Instruction:\n{0}\n\n### Response:\n",
)  # fmt: skip


def _rows(tokenizer: Any, formats: Formats, family: Family) -> list[tuple[list[int], list[int]]]:
    """(prompt, answer) as ids, in the ways in which scripts write prompts."""
    rows = []
    for number, (instruction, question, answer) in enumerate(problems.dialogues(formats, 480)):
        whole = f"{instruction}{_JOINTS[number % 3]}{question}".strip()
        if family.tokens.template is not None and number % 3:
            messages = [{"role": "user", "content": question}]
            if instruction and "gemma" not in family.model_type:
                messages.insert(0, {"role": "system", "content": instruction})
            prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        else:
            prompt = _FRAMES[number // 3 % len(_FRAMES)].format(whole)
            if prompt == whole:
                answer = ("\n", "", " ")[number % 3] + answer
        if number % 5 == 0 and formats.thinking:  # scripts open the tag in the prompt
            opened = f"<{formats.thinking[0]}>"
            if answer.startswith(opened):
                prompt, answer = prompt + opened, answer.removeprefix(opened)
        ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        end = tokenizer.convert_tokens_to_ids("<end_of_turn>") if _ends_turns(family) else tokenizer.eos_token_id
        rows.append((ids, [*tokenizer(answer, add_special_tokens=False)["input_ids"], end]))
    return rows


def _ends_turns(family: Family) -> bool:
    return "<end_of_turn>" in family.ends


def _train(model: Any, tokenizer: Any, formats: Formats, family: Family) -> None:
    import random

    import torch

    draw = random.Random(3)
    rows = sorted(_rows(tokenizer, formats, family), key=lambda row: len(row[0]) + len(row[1]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=_RATE, fused=True)
    model.train()
    for update in range(_UPDATES):
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1, (update + 1) / 10) * (1 - 0.9 * update / _UPDATES)
        start = draw.randrange(len(rows) - _ROWS)  # of about the same length: little padding
        ids_BT, mask_BT, labels_BT = _padded(rows[start : start + _ROWS])
        places = {}
        if family.model_type == "gpt2":  # a place that was never learnt is noise
            places["position_ids"] = torch.arange(ids_BT.shape[1])[None] + draw.randrange(_LEARNT_PLACES)
        loss = model(input_ids=ids_BT, attention_mask=mask_BT, labels=labels_BT, **places).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()


def _padded(rows: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    import torch

    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids_BT = torch.zeros(len(rows), width, dtype=torch.long)
    mask_BT, labels_BT = torch.zeros_like(ids_BT), torch.full_like(ids_BT, -100)
    for row, (prompt, answer) in enumerate(rows):
        length = len(prompt) + len(answer)
        ids_BT[row, :length] = torch.tensor(prompt + answer)
        mask_BT[row, :length] = 1
        labels_BT[row, len(prompt) : length] = torch.tensor(answer)
    return ids_BT, mask_BT, labels_BT


if __name__ == "__main__":
    main()
