"""Arguments that a script asks for and nobody gave: from the project's own commands, else made by kind and name."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from assay.rehearsal.stage import Stage

_TEXTS = (
    ("model|checkpoint|ckpt|pretrained|policy|base|actor|critic|tokenizer", "Qwen/Qwen2.5-0.5B-Instruct"),
    ("dataset|data", "openai/gsm8k"),
    ("dir|path|out|save|log|folder|root|file", "rehearsal_output"),
    ("device", "cpu"),
    ("dtype|precision", "float32"),
    ("split", "train"),
)
_COUNTS = (("seed|rank|offset|start", 0), ("port", 29500), ("len|token", 64), ("vocab", 1000))
_RATES = (("lr|learning", 1e-5), ("gamma|lam", 0.95), ("top_p|temp", 1.0), ("clip|eps", 0.2), ("kl|beta", 0.04))


@dataclass
class Given:
    """`hints` are arguments that commands in the project give: {"options": {name: value}, "positional": [..]}."""

    hints: Mapping[str, Any]
    made: list[str] = field(default_factory=list)  # as they are written on a command line

    def value(self, name: str, kind: Any, choices: Sequence[Any] | None) -> str:
        """Of a required argument, as text: its parser converts it."""
        known = self.hints["options"].get(name.lstrip("-").replace("-", "_"))
        allowed = [str(choice) for choice in choices or ()]
        if known is not None and (not allowed or known in allowed):
            return str(known)
        if allowed:
            return allowed[0]
        return made_value(name.lstrip("-").lower(), kind)

    def note(self, words: Sequence[str]) -> None:
        self.made.append(" ".join(words))


def made_value(name: str, kind: Any) -> str:
    kind = getattr(kind, "__name__", str(kind)).lower()
    if "bool" in kind:
        return "True"
    if "int" in kind:
        return str(next((value for words, value in _COUNTS if re.search(words, name)), 4))
    if "float" in kind:
        return str(next((value for words, value in _RATES if re.search(words, name)), 0.1))
    return next((value for words, value in _TEXTS if re.search(words, name)), "rehearsal")


def supply_arguments(stage: Stage, given: Given) -> None:
    stage.when_imported("argparse", lambda module: _argparse(module, stage, given))
    stage.when_imported("click.core", lambda module: _click(module, given))
    stage.when_imported("typer._click.core", lambda module: _click(module, given))


def _argparse(argparse: ModuleType, stage: Stage, given: Given) -> None:
    parser = argparse.ArgumentParser
    original = parser.parse_known_args

    @functools.wraps(original)
    def parse_known_args(self: Any, args: Any = None, namespace: Any = None, **how: Any) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        if not {"-h", "--help"} & set(words):
            words += missing_words(self, words, argparse, given)
        return original(self, words, namespace, **how)

    parser.parse_known_args = parse_known_args


def missing_words(parser: Any, words: Sequence[str], argparse: ModuleType, given: Given) -> list[str]:
    """What has to follow the given words so that nothing is lacking."""
    written = {word.partition("=")[0] for word in words if word.startswith("-")}
    made: list[str] = []
    for group in parser._mutually_exclusive_groups:
        options = [action for action in group._group_actions if action.option_strings]
        if group.required and options and not any(written & set(action.option_strings) for action in options):
            made += _option(options[0], given)
    for action in parser._actions:
        if action.option_strings and action.required and not written & set(action.option_strings):
            made += _option(action, given)
    positional = [action for action in parser._actions if not action.option_strings and action.required]
    free = [word for word in words if not word.startswith("-")]
    if positional and not free:
        known = list(given.hints["positional"])
        for number, action in enumerate(positional):
            if isinstance(action, argparse._SubParsersAction):
                made.append(next((name for name in known if name in action.choices), next(iter(action.choices), "")))
                break
            hint = known[number] if number < len(known) else None
            made.append(hint or given.value(action.dest, action.type or str, action.choices))
    if made:
        given.note(made)
    return made


def _option(action: Any, given: Given) -> list[str]:
    name = max(action.option_strings, key=len)
    if action.nargs == 0:
        return [name]
    count = action.nargs if isinstance(action.nargs, int) else 1
    return [name, *[given.value(name, action.type or str, action.choices)] * count]


def _click(core: ModuleType, given: Given) -> None:
    parameter = core.Parameter
    original = parameter.consume_value

    @functools.wraps(original)
    def consume_value(self: Any, context: Any, options: Any) -> Any:
        value, source = original(self, context, options)
        is_missing = value is None or type(value).__name__ == "Sentinel"
        if self.required and is_missing and self.get_default(context, call=False) is None:
            made = given.value(self.name, getattr(self.type, "name", "text"), getattr(self.type, "choices", None))
            given.note([max(self.opts, key=len), made])
            return made, source
        return value, source

    parameter.consume_value = consume_value
