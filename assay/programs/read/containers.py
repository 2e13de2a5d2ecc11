"""Methods of lists, dictionaries and parsers of the command line: what they change and what they give."""

from __future__ import annotations

import ast
from typing import Any

from assay.programs.graph import UNKNOWN, Value
from assay.programs.read.access import subscript
from assay.programs.read.collections import element, extend, hold, merge, put
from assay.programs.read.interpreter import Interpreter
from assay.programs.read.things import Call, Instance, Listing, Table

_DEFAULTS = {"store_true": False, "store_false": True}  # of a flag, by its action


def method_of_listing(interpreter: Interpreter, base: Value, listing: Listing, name: str, given: Call) -> Value | None:
    node, positional = given.node, given.positional
    if name in ("put", "put_nowait") and positional:
        positional = positional[:1]
    if name in ("append", "add", "appendleft", "insert", "put", "put_nowait") and positional:
        listing.elements.append(positional[-1])
        listing.exact = False if interpreter.context.loops else listing.exact
        hold(base, positional[-1])
        return interpreter.new("append", node, {"input": base, "value": positional[-1]}, constant=None)
    if name in ("extend", "update") and positional:
        extend(interpreter, base, listing, positional[0], node)
        return interpreter.constant(node, None)
    if name in ("pop", "popleft", "get", "get_nowait"):
        return element(interpreter, base, node)
    if name == "copy":
        return interpreter.listing(node, listing.elements, listing.exact)
    if name in ("sort", "reverse"):
        listing.exact = False
        return interpreter.new("method", node, {"input": base}, name=name)
    return None


def method_of_table(interpreter: Interpreter, base: Value, table: Table, name: str, given: Call) -> Value | None:
    node, positional = given.node, given.positional
    if base.op == "parser":
        return _method_of_parser(interpreter, table, name, given)
    if name in ("get", "pop", "setdefault") and positional:
        found = subscript(interpreter, base, [positional[0]], node)
        if found.op != "index" or len(positional) == 1:
            return found
        if name != "setdefault":
            return interpreter.phi(node, [found, positional[1]])
        put(table, positional[0], positional[1])
        return positional[1]
    values = [*table.entries.values(), *table.rest]
    if name == "values" and values:
        listed = interpreter.listing(node, values, exact=False)
        listed.name, listed.thing.parts = "values", (base,)
        return listed
    if name in ("items", "values", "keys"):
        return interpreter.new(name, node, {"input": base})
    if name == "update":
        for other in positional:
            merge(table, other)
        table.entries |= given.keywords
        return interpreter.constant(node, None)
    return base if name == "to" else None


def _method_of_parser(interpreter: Interpreter, table: Table, name: str, given: Call) -> Value | None:
    node, keywords = given.node, given.keywords
    if name == "add_argument":
        flags = [value.constant for value in given.positional if isinstance(value.constant, str)]
        if flags:
            longest = max(flags, key=len).lstrip("-").replace("-", "_")
            target = keywords["dest"].constant if "dest" in keywords else longest
            constant: Any = (
                _DEFAULTS.get(str(keywords["action"].constant), UNKNOWN) if "action" in keywords else UNKNOWN
            )
            if "default" in keywords:
                constant = keywords["default"].constant
            table.entries[target] = interpreter.new("config", node, keywords, name=str(target), constant=constant)
        return interpreter.constant(node, None)
    if name in ("parse_args", "parse_known_args"):
        parsed = interpreter.new("table", node, thing=table)
        return parsed if name == "parse_args" else interpreter.listing(node, [parsed, interpreter.new("unknown", node)])
    if name in ("add_argument_group", "add_mutually_exclusive_group"):
        return interpreter.new("parser", node, thing=table)
    return None


def configured_instance(interpreter: Interpreter, cls: Value, node: ast.AST) -> Value:
    """An object whose fields a user sets on the command line."""
    value = interpreter.invoke(cls, Call(node))
    if isinstance(value.thing, Instance):
        for name in value.thing.cls.all_fields():
            stored = interpreter.heap.get((id(value.thing), name))
            if stored is not None and stored.constant is not UNKNOWN and stored.op != "config":
                interpreter.heap[id(value.thing), name] = interpreter.new(
                    "config", node, {"input": stored}, constant=stored.constant
                )
    return value


def parsed_classes(interpreter: Interpreter, parser: Value, node: ast.AST) -> Value:
    given = parser.input
    classes = given.thing.elements if given is not None and isinstance(given.thing, Listing) else [given]
    return interpreter.listing(
        node, [configured_instance(interpreter, cls, node) for cls in classes if cls is not None]
    )
