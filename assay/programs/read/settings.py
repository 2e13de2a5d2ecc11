"""Settings that a script writes down as text: yaml.safe_load of a literal, json.loads of a literal."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from assay.programs.graph import Value
from assay.programs.read.interpreter import Interpreter
from assay.programs.read.things import Table

READERS = ("yaml.safe_load", "yaml.load", "yaml.full_load", "json.loads", "OmegaConf.create")
_LINE = re.compile(r"([A-Za-z_][\w-]*)\s*:\s*(.*)")
_NUMBER = re.compile(r"[-+]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][-+]?\d+)?")


def parse_settings(interpreter: Interpreter, text: str, node: ast.AST) -> Value | None:
    """The table of a text of plain `name: value` lines, or of a JSON object; None where it is anything else."""
    entries = _of_json(text) if text.lstrip().startswith("{") else _of_lines(text)
    if not entries:
        return None
    values = {
        name: interpreter.new("config", node, {"input": interpreter.constant(node, constant)}, constant=constant)
        for name, constant in entries.items()
    }
    return interpreter.new("table", node, values, thing=Table(dict(values)))


def _of_json(text: str) -> dict[str, Any]:
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return {name: value for name, value in read.items() if isinstance(value, str | int | float | bool)}


def _of_lines(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in text.splitlines():
        line = line.split(" #")[0].rstrip()
        if not line or line.startswith("#"):
            continue
        matched = _LINE.fullmatch(line)
        if matched is None or not matched[2]:
            return {}  # nested, or a list
        found[matched[1]] = _scalar(matched[2])
    return found


def _scalar(text: str) -> Any:
    if _NUMBER.fullmatch(text):
        plain = text.replace("_", "")
        return int(plain) if plain.lstrip("+-").isdigit() else float(plain)
    named = {"true": True, "false": False, "null": None, "~": None}
    return named.get(text.lower(), text.strip("\"'"))
