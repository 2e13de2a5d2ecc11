"""A task made of rows of one's own: a prompt template over their fields, an answer field, a held-out part.

Every row is checked when the task is opened, so that a fault stops the run before it begins, with file and line.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar

from assay.config import ConfigError
from assay.config.sections import setting
from assay.tasks.rows import FileRow, fingerprint_of, read_rows
from assay.tasks.split import is_heldout
from assay.tasks.template import Template
from assay.types import Problem, Prompt, Rollout, Score

Messages = tuple[Mapping[str, str], ...]

ROLES = ("system", "developer", "user", "assistant", "tool")
LONGEST_NUMBER = 300  # digits; what is longer fits no float, and other readers would round it
DEEPEST = 64  # levels of a field; records and workers write it as JSON, where a few hundred would be too many


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Rows of your own."""

    prompt: str = setting(
        "", "the prompt, with {field} for what a row holds; by default {prompt}, or {question} if there is no prompt"
    )
    answer: str = setting("", "the field with the right answer, which the prompt must not show; by default answer")
    chat: bool = setting(True, "the prompt is a user's message; false = it is raw text to continue")
    system: str = setting("", "chat: a system message before it, unless the row has its own")
    heldout: float = setting(0.1, "share of the prompts that are held out", low=0.0)
    heldout_file: str = setting("", "a second file, whose rows are held out, instead of a share")
    limit: int = setting(0, "use only this many rows, the first ones; 0 = all", low=0)


class FileTask:
    """Problems in a new random order every epoch. Its own reward is 1 for exactly the answer, white space aside."""

    own_reward: ClassVar[str] = ""

    def __init__(
        self, path: Path, options: FileOptions, seed: int, *, needs_answer: bool = True, needs_heldout: bool = True
    ) -> None:
        self.path = path
        self.options = options
        self.seed = seed
        self.fingerprint = fingerprint_of(path)
        self._check_options()
        self.needs_answer = needs_answer
        self._training = self._read(path)
        if options.heldout_file:
            other = Path(options.heldout_file).expanduser()
            self.fingerprint = hashlib.sha256((self.fingerprint + fingerprint_of(other)).encode()).hexdigest()
            self._heldout = self._read(other)
            self._refuse_common(other)
        else:
            sides: tuple[list[CheckedRow], list[CheckedRow]] = ([], [])
            for row in self._training:
                sides[is_heldout(row.content(options.system), options.heldout)].append(row)
            self._training, self._heldout = sides
            self._check_parts(needs_heldout)
        random.Random(f"{seed}/heldout").shuffle(self._heldout)
        self._epoch, self._order = -1, list(range(len(self._training)))

    def training_problem(self, index: int) -> Problem:
        epoch, place = divmod(index, len(self._training))
        if epoch != self._epoch:
            order = list(range(len(self._training)))
            random.Random(f"{self.seed}/train/{epoch}").shuffle(order)
            self._epoch, self._order = epoch, order
        return self._problem("train", index, self._training[self._order[place]])

    def heldout_problem(self, index: int) -> Problem:
        if not self._heldout:
            raise ConfigError(f"{self.path}: no row is held out; raise task.options.heldout or give heldout_file")
        return self._problem("heldout", index, self._heldout[index % len(self._heldout)])

    def score(self, prompt: Prompt, rollout: Rollout) -> Score:
        return Score.of({"exact": float(rollout.text.strip() == prompt.answer.strip())})

    @property
    def sizes(self) -> tuple[int, int]:
        """Rows to train on, rows held out."""
        return len(self._training), len(self._heldout)

    def _problem(self, split: str, index: int, row: CheckedRow) -> Problem:
        name = f"{row.source}-{split}-{index}-row-{row.number}"
        return Problem(name, row.text, row.answer, row.messages, row.fields)

    def _read(self, path: Path) -> list[CheckedRow]:
        rows = read_rows(path)
        first = next(rows, None)
        if first is None:
            raise ConfigError(f"{path}: holds no rows; give a file with at least one problem")
        reader = RowReader.of(self.options, first, path, needs_answer=self.needs_answer)
        return [reader.check(row) for row in islice(chain([first], rows), self.options.limit or None)]

    def _check_options(self) -> None:
        if self.options.heldout >= 1:
            raise ConfigError(f"task.options.heldout = {self.options.heldout} is a share, and must be below 1")
        if self.options.system and not self.options.chat:
            raise ConfigError("task.options.system is a chat message, but task.options.chat = false")

    def _check_parts(self, needs_heldout: bool) -> None:
        rows = sum(self.sizes)
        share = f"{rows} row{'s' * (rows != 1)} and task.options.heldout = {self.options.heldout:g}"
        if not self._training:
            raise ConfigError(f"{self.path}: with {share} no row is left to train on; add rows or lower the share")
        if needs_heldout and not self._heldout:
            raise ConfigError(
                f"{self.path}: with {share} no row is held out; add rows, raise the share, give "
                "task.options.heldout_file, or set evaluate.prompts = 0"
            )

    def _refuse_common(self, other: Path) -> None:
        held = {row.content(self.options.system) for row in self._heldout}
        common = [row for row in self._training if row.content(self.options.system) in held]
        if common:
            raise ConfigError(
                f"{common[0].where}: this prompt is in {other} too ({len(common)} in all are); take what is held out "
                "out of the training file"
            )


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """A row that can be posed."""

    where: str
    source: str  # the file's name without its ending
    number: int
    text: str
    answer: str
    messages: Messages  # as they are posed; none: raw text
    fields: Mapping[str, Any]

    def content(self, system: str) -> str:
        """What decides the side of the split: prompts that are posed alike, white space aside, are on the same side.

        The common system message is left out, so that a row stays on its side when that message is changed.
        """
        posed = [(message["role"], _one_line(message["content"])) for message in self.messages]
        if posed and posed[0] == ("system", _one_line(system)):
            del posed[0]
        if [role for role, _ in posed] in ([], ["user"]):
            return _one_line(self.text)
        return json.dumps(posed)


@dataclass(frozen=True, slots=True)
class RowReader:
    """FileRow -> CheckedRow. The first row of a file decides which fields there are."""

    source: str
    template: Template
    answer: str  # "": there is no answer
    needs_answer: bool
    chat: bool
    system: str

    @classmethod
    def of(cls, options: FileOptions, first: FileRow, path: Path, *, needs_answer: bool) -> RowReader:
        columns = list(first.fields)
        text = options.prompt or next((f"{{{name}}}" for name in ("prompt", "question") if name in columns), "")
        if not text:
            raise ConfigError(
                f"{first.where}: has no field 'prompt' and no 'question'; say which is the prompt, for instance "
                f"task.options.prompt = '{{{columns[0] if columns else 'text'}}}' (its fields: {', '.join(columns)})"
            )
        template = Template(text)
        template.check(columns, first.where)
        answer = options.answer or "answer"
        if answer not in columns and (needs_answer or options.answer):
            raise ConfigError(
                f"{first.where}: has no field {answer!r} for the answer; name it as task.options.answer (its fields: "
                f"{', '.join(columns)}), or score without one by setting reward.functions"
            )
        if answer in template.names:
            raise ConfigError(
                f"task.options.prompt = {text!r}: the prompt template shows the answer, so that only copying would be "
                f"learned; take {{{answer}}} out of it, or name another field as task.options.answer"
            )
        found = answer if answer in columns else ""
        return cls(path.stem, template, found, needs_answer, options.chat, options.system)

    def check(self, row: FileRow) -> CheckedRow:
        for name, value in row.fields.items():
            _refuse_deep(f"{row.where}: field {name!r}", value)
        prompt = row.fields.get(self.template.only_name)
        messages: Messages = ()
        if isinstance(prompt, list):
            messages = _conversation(f"{row.where}: field {self.template.only_name!r}", prompt, chat=self.chat)
            text = messages[-1]["content"]
        else:
            text = self.template.fill({name: _text(row, name) for name in self.template.names})
        if not text.strip():
            raise ConfigError(f"{row.where}: the prompt is empty; fill it in or leave the row out")
        answer = _text(row, self.answer) if self.answer else ""
        if self.needs_answer and not answer.strip():
            raise ConfigError(
                f"{row.where}: field {self.answer!r} is empty, so that saying nothing would be right; fill it in, "
                "leave the row out, or score without an answer by setting reward.functions"
            )
        others = {
            _unicode(row.where, name): _jsonable(f"{row.where}: field {name!r}", value)
            for name, value in row.fields.items()
            if name != self.answer and name not in self.template.names
        }
        return CheckedRow(row.where, self.source, row.number, text, answer, self._messages(text, messages), others)

    def _messages(self, text: str, messages: Messages) -> Messages:
        if not self.chat:
            return ()
        messages = messages or ({"role": "user", "content": text},)
        if self.system and messages[0]["role"] != "system":
            return ({"role": "system", "content": self.system}, *messages)
        return messages


def _text(row: FileRow, name: str) -> str:
    if name not in row.fields:
        raise ConfigError(f"{row.where}: has no field {name!r} (its fields: {', '.join(row.fields)})")
    value = row.fields[name]
    if isinstance(value, str):
        return _unicode(f"{row.where}: field {name!r}", value)
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= 10**LONGEST_NUMBER:
            raise ConfigError(
                f"{row.where}: field {name!r} is a number of more than {LONGEST_NUMBER} digits; write it as a text"
            )
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return str(value)
    shown = "empty (null)" if value is None else f"a {type(value).__name__}"
    raise ConfigError(f"{row.where}: field {name!r} is {shown}, where text or a number is needed")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _unicode(where: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where}: holds half of a surrogate pair, which is not valid text; remove it") from error
    return text


def _conversation(where: str, value: Sequence[Any], *, chat: bool) -> Messages:
    """The messages of a row, in the form of TRL: role and content, the last one not the assistant's."""
    if not chat:
        raise ConfigError(f"{where}: is a conversation, which task.options.chat = false cannot pose as raw text")
    if not value:
        raise ConfigError(f"{where}: is an empty conversation")
    for message in value:
        if not (isinstance(message, dict) and all(isinstance(message.get(key), str) for key in ("role", "content"))):
            raise ConfigError(f"{where}: a message must have the texts 'role' and 'content', not {str(message)[:60]}")
        if message["role"] not in ROLES:
            raise ConfigError(f"{where}: the role {message['role'][:60]!r} is not one of {', '.join(ROLES)}")
        others = [key for key, part in message.items() if key not in ("role", "content") and part is not None]
        if others:
            raise ConfigError(f"{where}: a message holds {others[0]!r}, and only 'role' and 'content' can be posed")
    if value[-1]["role"] == "assistant":
        raise ConfigError(f"{where}: the last message is the assistant's; it must be one that the policy can answer")
    return tuple({key: _unicode(where, message[key]) for key in ("role", "content")} for message in value)


def _refuse_deep(where: str, value: Any) -> None:
    """Level by level: a function that calls itself for every level would fail where it is meant to refuse."""
    level = [value]
    for _ in range(DEEPEST + 1):
        containers = [part for part in level if isinstance(part, dict | list | tuple)]
        if not containers:
            return
        level = [inner for part in containers for inner in (part.values() if isinstance(part, dict) else part)]
    raise ConfigError(f"{where}: is nested more than {DEEPEST} levels deep; flatten it, or leave the field out")


def _jsonable(where: str, value: Any) -> Any:
    """The value as JSON can hold it. NaN, which some writers of Parquet use for what is missing, becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return _unicode(where, value)
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, list | tuple):
        return [_jsonable(where, part) for part in value]
    if isinstance(value, dict):
        return {_unicode(where, str(name)): _jsonable(where, part) for name, part in value.items()}
    raise ConfigError(f"{where}: holds {type(value).__name__}, which JSON cannot; leave the field out of the file")
