"""A frozen judge in this process: a sequence classifier of which one logit is the reward.

A wrong judge trains without a sound, so it is examined when it is opened: a head that was never trained, a label that
was not chosen, a score that depends on the padding or that is the same for every answer are refused. It reads text, as
its own tokenizer cuts it, and computes in float32.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForSequenceClassification

from assay.config import ConfigError
from assay.config.sections import JudgeConfig
from assay.foreign import faults
from assay.foreign.read import read_model
from assay.foreign.template import TemplateFault, render_chat
from assay.grpo import REWARD_LIMIT
from assay.rewards.judge_http import check_judge_path, check_places, fill
from assay.types import Prompt, Rollout, Score

LANGUAGE_MODELS = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
PADDING_TOLERANCE = 1e-4  # of a float32 score, next to its size: padding moves the last bits only
PROBE_PROMPT = "What is 2 + 2?"
# one prompt: a judge that never sees the completion gives all of them the same score
PROBE_COMPLETIONS = (
    "4",
    "2 + 2 = 4.",
    "I do not know the answer, sorry.",
    "The sum of 2 and 2 is 5, because 5 comes after 4 and 4 is what 2 and 2 make.",
)
Rows = Sequence[Sequence[int]]


class JudgeModel:
    """The classifier in judge.path. Its score of an answer depends on nothing but the text that it reads."""

    def __init__(
        self, settings: JudgeConfig, device: str = "cpu", check_interrupt: Callable[[], None] = lambda: None
    ) -> None:
        if settings.template != "chat":
            check_places("judge.template", settings.template, ("prompt", "completion"))
        self._settings = settings
        self._device = device
        self._check_interrupt = check_interrupt  # called between batches; it may raise
        self.model, self._tokenizer = _load(settings.path)
        self.model.eval().requires_grad_(False).to(device)
        self._config = self.model.config.get_text_config()
        self._label = label_number(settings, self.model.config.id2label)
        vocabulary = self.model.get_input_embeddings().num_embeddings
        if len(self._tokenizer) > vocabulary:
            raise ConfigError(
                f"judge.path = {settings.path!r}: its tokenizer has {len(self._tokenizer)} tokens, but its model knows "
                f"only {vocabulary}; give a directory in which they belong together"
            )
        own_pad = self._config.pad_token_id
        self._pad = own_pad if own_pad is not None and 0 <= own_pad < vocabulary else None
        self._limit = _context(self.model, self._tokenizer)
        if settings.template == "chat" and not self._tokenizer.chat_template:
            raise ConfigError(
                f"judge.template = 'chat', but the tokenizer in {settings.path!r} has no chat template; set "
                r"judge.template = '{prompt}\n{completion}', or as the judge was trained"
            )
        self._reserved = _reserved_spellings(self._tokenizer)
        self._examine()

    def score(self, pairs: Sequence[tuple[Prompt, Rollout]], on_score: Callable[[int, Score], None]) -> list[Score]:
        scores: dict[int, Score] = {}

        def keep(index: int, score: Score) -> None:
            scores[index] = score
            on_score(index, score)

        rows: dict[int, list[int]] = {}
        fitting = []
        for index, (prompt, rollout) in enumerate(pairs):
            try:
                rows[index] = row = self._read(prompt.text, rollout.text)
            except TemplateFault as fault:
                keep(index, Score.failed(f"the judge's chat template {fault}"))
                self._check_interrupt()
                continue
            if not row:
                keep(index, Score.failed("judge.template gives an empty text for this answer"))
            elif len(row) > self._limit and self._settings.too_long == "fail":
                reason = f"{len(row)} tokens do not fit into the judge's context of {self._limit}"
                keep(index, Score.failed(f"{reason}; judge.too_long = 'left' cuts them"))
            else:
                fitting.append(index)
        fitting.sort(key=lambda index: len(rows[index]))  # rows of like length waste little padding
        size = self._settings.batch_size
        for start in range(0, len(fitting), size):
            self._check_interrupt()
            places = fitting[start : start + size]
            marks = self._forward([self._cut(rows[index]) for index in places])
            for index, mark in zip(places, marks, strict=True):
                keep(index, _score_of(mark))
        return [scores[index] for index in range(len(pairs))]

    def close(self) -> None:
        """Nothing is held open; the weights go with the object."""

    def _read(self, prompt: str, completion: str) -> list[int]:
        """The tokens that the judge sees. A control token spelled out in the completion stays text."""
        completion = self._reserved.sub(lambda token: f"{token[0][0]} {token[0][1:]}", completion)
        chat = self._settings.template == "chat"
        if chat:
            turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
            text = render_chat(self._tokenizer, turns, add_generation_prompt=False)
        else:
            text = fill(self._settings.template, {"prompt": prompt, "completion": completion})
        text = text.encode("utf-8", "replace").decode("utf-8")  # no tokenizer takes a lone surrogate
        # a chat template writes its own special tokens
        row: list[int] = self._tokenizer(text, add_special_tokens=not chat, verbose=False)["input_ids"]
        begin = self._tokenizer.bos_token_id
        return row[1:] if begin is not None and row[:2] == [begin, begin] else row

    def _cut(self, row: list[int]) -> list[int]:
        """The last tokens that fit, after the token that begins every text: an encoder is read there."""
        if len(row) <= self._limit:
            return row
        begins = {self._tokenizer.bos_token_id, self._tokenizer.cls_token_id}
        kept = row[:1] if row[0] in begins else []
        return kept + row[len(row) - self._limit + len(kept) :]

    def _forward(self, rows: Rows) -> list[float]:
        """The label's logit of each row. The padding is on the right and masked by position."""
        pad = self._pad
        if pad is None:
            # Such a head is read at the last token that is not the pad token: any will do that no row ends with.
            ends = {row[-1] for row in rows}
            pad = next(token for token in range(len(ends) + 1) if token not in ends)
            self._config.pad_token_id = pad
        width = max(map(len, rows))
        ids_BL = torch.tensor([[*row, *[pad] * (width - len(row))] for row in rows], device=self._device)
        mask_BL = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows], device=self._device)
        with torch.inference_mode():
            logits_BC: Tensor = self.model(input_ids=ids_BL, attention_mask=mask_BL).logits
        marks: list[float] = logits_BC[:, self._label].float().tolist()
        return marks

    def _examine(self) -> None:
        try:
            rows = [self._cut(self._read(PROBE_PROMPT, completion)) for completion in PROBE_COMPLETIONS]
        except TemplateFault as fault:
            raise ConfigError(
                f"judge.template = 'chat': for a question and its answer, the chat template in {self._settings.path!r} "
                f"{fault}; give a text with {{prompt}} and {{completion}}"
            ) from fault
        cannot, fix = f"judge.path = {self._settings.path!r} cannot judge", "give a trained sequence classifier"
        with faults.translate_faults(
            lambda error: f"{cannot}: it fails on a batch of texts ({faults.reason(error)}); {fix}"
        ):
            reason = flaw(self._forward, rows)
        if reason:
            raise ConfigError(f"{cannot}: {reason}; {fix}")


def flaw(forward: Callable[[Rows], list[float]], rows: Rows) -> str:
    """What is wrong with a judge, seen from its scores of a few different texts; "" if nothing is.

    >>> flaw(lambda rows: [0.5 for row in rows], [[1], [2, 3]])
    'it scores different answers to one question alike (all 0.5), as a head without training does'
    >>> flaw(lambda rows: [float(len(row)) for row in rows], [[1], [2, 3]])
    ''
    """
    together = forward(rows)
    alone = [forward([row])[0] for row in rows]
    if not all(map(math.isfinite, together + alone)):
        return f"it scores plain texts with {', '.join(map(str, together))}"
    if forward(rows) != together:
        return "it scores the same texts differently when asked again, so something in it is random, such as dropout"
    size = max(1.0, *map(abs, together))
    if max(together) - min(together) <= 1e-6 * size:
        return (
            f"it scores different answers to one question alike (all {together[0]:.6g}), as a head without training "
            "does"
        )
    for single, batched in zip(alone, together, strict=True):
        if abs(single - batched) > PADDING_TOLERANCE * size:
            return f"its score of a text is {single:.6g} alone but {batched:.6g} in a batch, so it reads the padding"
    return ""


def label_number(settings: JudgeConfig, id2label: dict[int, str]) -> int:
    """Which logit is the reward. A name comes before a number: labels may be called "1" to "5"."""
    names = [str(id2label[number]) for number in sorted(id2label)]
    listed = ", ".join(names[:20])
    if not settings.label:
        if len(names) == 1:
            return 0
        raise ConfigError(
            f"judge.path = {settings.path!r} has {len(names)} labels ({listed}), and the reward is the logit of one of "
            f"them; name it, for instance judge.label = {names[-1]!r}"
        )
    if names.count(settings.label) == 1:
        return names.index(settings.label)
    if re.fullmatch(r"[0-9]{1,6}", settings.label) and int(settings.label) < len(names):
        return int(settings.label)
    lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(settings.label.lower(), lower, n=1, cutoff=0.5)
    meant = f"; did you mean {lower[close[0]]!r}?" if close else f"; choose one, or a number below {len(names)}"
    raise ConfigError(f"judge.label = {settings.label!r} is not one label of {settings.path!r} ({listed}){meant}")


def _load(path: str) -> tuple[Any, Any]:
    directory = Path(path)
    check_judge_path(path)
    # a model's own code is never run, and weights are never unpickled
    model, tokenizer, loading = read_model(
        directory,
        AutoModelForSequenceClassification,
        dtype=torch.float32,
        what=f"judge.path = {path!r}",
        trust_remote_code=False,
        local_files_only=True,
    )
    if loading["missing_keys"]:
        missing = ", ".join(sorted(loading["missing_keys"])[:3])
        kind = ", ".join(json.loads((directory / "config.json").read_text(encoding="utf-8")).get("architectures") or ())
        what = f"is a language model ({kind})" if kind.endswith(LANGUAGE_MODELS) else "is incomplete"
        raise ConfigError(
            f"judge.path = {path!r} {what}: it has no {missing}, and a judge would be made up at random; give a "
            "model that was trained as a sequence classifier"
        )
    return model, tokenizer


def _context(model: Any, tokenizer: Any) -> int:
    """How many tokens the judge can read."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or math.inf
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            positions = module.num_embeddings - module.padding_idx - 1  # RoBERTa counts from after its pad token
    return int(min(positions, tokenizer.model_max_length, 10**9))


def _reserved_spellings(tokenizer: Any) -> re.Pattern[str]:
    """The spellings of the control tokens, longest first."""
    added = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    spellings = {token for token in (*tokenizer.all_special_tokens, *added) if len(token) > 1}
    return re.compile("|".join(map(re.escape, sorted(spellings, key=len, reverse=True))) or r"(?!)")


def _score_of(mark: float) -> Score:
    if not abs(mark) <= REWARD_LIMIT:  # NaN included
        return Score.failed(f"the judge's score is {mark}")
    return Score.of({"judge": mark})
