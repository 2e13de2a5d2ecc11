"""Lists, tuples and dictionaries: what they hold, and what one of their elements is."""

from __future__ import annotations

import ast

from assay.programs.graph import UNKNOWN, Value
from assay.programs.read.interpreter import Interpreter
from assay.programs.read.things import Listing, Table

MOST_EACH = 16  # entries that are followed one by one


def extend(interpreter: Interpreter, base: Value, listing: Listing, other: Value, node: ast.AST) -> None:
    """base += other"""
    added = other.thing.elements if isinstance(other.thing, Listing) else [element(interpreter, other, node)]
    listing.elements += added
    listing.exact = False
    listing.parts = (*listing.parts, other)
    for value in added:
        hold(base, value)


def hold(container: Value, value: Value) -> None:
    """From now on the container is made of the value too."""
    container.arguments[f"+{len(container.arguments)}"] = value
    value.users.append(container)


def put(table: Table, key: Value, value: Value) -> None:
    if key.constant is UNKNOWN or isinstance(key.constant, float):
        table.rest.append(value)
    else:
        table.entries[key.constant] = value


def merge(table: Table, other: Value) -> None:
    """{**table, **other}"""
    if isinstance(other.thing, Table):
        table.entries |= other.thing.entries
        table.rest += other.thing.rest
    else:
        table.rest.append(other)


def each(interpreter: Interpreter, source: Value, node: ast.AST) -> list[Value] | None:
    """The elements one by one, where the text lists them: the entries of a dictionary, a tuple of names."""
    if source.op == "items" and isinstance(source.arguments["input"].thing, Table):
        table = source.arguments["input"].thing
        if table.rest or not 0 < len(table.entries) <= MOST_EACH:
            return None
        return [
            interpreter.listing(node, [interpreter.constant(node, key), value]) for key, value in table.entries.items()
        ]
    thing = source.thing
    if isinstance(thing, Listing) and thing.exact and 0 < len(thing.elements) <= MOST_EACH:
        return thing.elements if all(isinstance(value.constant, str) for value in thing.elements) else None
    return None


def element(interpreter: Interpreter, container: Value, node: ast.AST) -> Value:
    """One of the elements: which one, the text does not say."""
    thing, inner = container.thing, container.input
    if container.op == "module" and container.name in ("ModuleList", "Sequential"):
        return interpreter.new("submodule", node, {"input": container})
    if isinstance(thing, Listing) and thing.elements:
        return interpreter.phi(node, thing.elements[:16])
    if isinstance(thing, Table) and container.op != "items":
        return interpreter.new("element", node, {"input": container}, name="key")
    if container.op == "zip":
        return interpreter.listing(node, [element(interpreter, part, node) for part in container.inputs])
    if container.op == "enumerate" and inner is not None:
        counter = interpreter.new("element", node, {"input": container}, name="counter")
        return interpreter.listing(node, [counter, element(interpreter, inner, node)])
    if container.op == "items" and inner is not None and isinstance(inner.thing, Table):
        values = [*inner.thing.entries.values(), *inner.thing.rest]
        key = interpreter.new("element", node, {"input": container}, name="key")
        value = interpreter.phi(node, values) if values else interpreter.new("element", node, {"input": container})
        return interpreter.listing(node, [key, value])
    if container.op in ("dataloader", "reversed", "progress", "values") and inner is not None:
        return element(interpreter, inner, node)
    if container.op == "tensor_dataset":
        parts = [
            interpreter.new("index", node, {"input": part, "0": interpreter.new("element", node, {"input": container})})
            for part in container.inputs
        ]
        return interpreter.listing(node, parts)
    return interpreter.new("element", node, {"input": container})


def first(interpreter: Interpreter, container: Value, node: ast.AST) -> Value:
    """The first or last element: of a dictionary's values one of many, whatever its key."""
    inner = element(interpreter, container, node)
    if table_of_values(container) is None:
        return inner
    return interpreter.new("element", node, {"input": container}, name="first", thing=inner.thing)


def table_of_values(listing: Value) -> Value | None:
    """The dictionary whose values() a list is, or is a copy of."""
    for _ in range(4):
        if not isinstance(listing.thing, Listing) or not listing.thing.parts:
            return None
        if listing.name == "values":
            return listing.thing.parts[0]
        listing = listing.thing.parts[0]
    return None
