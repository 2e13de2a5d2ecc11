"""Engines of libraries that take a network over: deepspeed.initialize."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from assay.programs.graph import Value
from assay.programs.read.things import Table

if TYPE_CHECKING:
    from assay.programs.read.calls import Calls

_NAMES = ("args", "model", "optimizer", "model_parameters", "training_data", "lr_scheduler")


def initialized(machine: Calls, positional: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value | None:
    """(engine, optimizer, loader, scheduler) of deepspeed.initialize; None where it is given no network."""
    given = {**dict(zip(_NAMES, positional, strict=False)), **keywords}
    model = given.get("model")
    if model is None:
        return None
    engine = machine.new(
        "wrapped", node, {"0": model, **_others(given)}, name="deepspeed.initialize", thing=model.thing
    )
    optimizer = given.get("optimizer")
    if optimizer is None or optimizer.constant is None:
        held = given.get("model_parameters")
        if held is None or held.constant is None:
            held = machine.new("parameters", node, {"input": model}, name="parameters")
        optimizer = machine.new("optimizer", node, {"parameters": held, **_rate(given.get("config"))}, name="deepspeed")
    loader = machine.new("unknown", node, name="training_dataloader")
    scheduler = given.get("lr_scheduler") or machine.new("unknown", node, name="lr_scheduler")
    return machine.listing(node, [engine, optimizer, loader, scheduler])


def _others(given: dict[str, Value]) -> dict[str, Value]:
    return {name: one for name, one in given.items() if name in ("config", "config_params", "args")}


def _rate(config: Value | None) -> dict[str, Value]:
    """The learning rate that a configuration in the text gives its optimizer."""
    found: Value | None = config
    for key in ("optimizer", "params", "lr"):
        found = found.thing.entries.get(key) if found is not None and isinstance(found.thing, Table) else None
    return {"lr": found} if found is not None else {}
