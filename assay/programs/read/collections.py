"""Lists, tuples and dictionaries: what they hold, and what one of their elements is."""

from __future__ import annotations

import ast

from assay.programs.graph import UNKNOWN, Value
from assay.programs.read.interpreter import Interpreter
from assay.programs.read.things import Bound, Call, Function, Instance, Listing, Table
from assay.programs.walk import walk

MOST_EACH = 16  # entries that are followed one by one
MOST_CHOICES = 8  # things that a value may be, followed one by one


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
        if source.name == "fields":
            return thing.elements
        return thing.elements if all(isinstance(value.constant, str) for value in thing.elements) else None
    return None


def choices(value: Value) -> list[Value]:
    """What a value may be that the text does not decide, without None; nothing where it is not such a choice."""
    is_one_of = value.op == "element" and ("key" in value.arguments or value.name == "next")
    if is_one_of and value.input is not None and value.input.op == "phi":
        value = value.input
    if value.op != "phi":
        return []
    ends = [part for part in walk(value, lambda one: one.inputs if one.op == "phi" else ()) if part.op != "phi"]
    found = [part for part in ends if part.constant is not None]
    return found if len(found) <= MOST_CHOICES else []


def element(interpreter: Interpreter, container: Value, node: ast.AST) -> Value:
    """One of the elements: which one, the text does not say."""
    thing, inner = container.thing, container.input
    if container.op == "module" and container.name in ("ModuleList", "Sequential"):
        return interpreter.new("submodule", node, {"input": container})
    if container.op == "element" and container.name == "next" and isinstance(thing, Listing) and thing.elements:
        inner_thing = interpreter.phi(node, thing.elements[:16]).thing
        return interpreter.new("element", node, {"input": container}, thing=inner_thing)
    if isinstance(thing, Listing) and thing.elements:
        return interpreter.phi(node, thing.elements[:16])
    options = choices(container) if thing is None else []
    if any(isinstance(part.thing, Listing) and part.thing.elements for part in options):
        filled = [part for part in options if not isinstance(part.thing, Listing) or part.thing.elements]
        return interpreter.phi(node, [element(interpreter, part, node) for part in filled])
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
    if container.op == "dataloader" and inner is not None:
        return _loaded(interpreter, container, element(interpreter, inner, node), node)
    if container.op in ("reversed", "progress", "values") and inner is not None:
        return element(interpreter, inner, node)
    if isinstance(thing, Instance) and (given := _of_object(interpreter, container, thing, node)) is not None:
        return given
    if container.op == "tensor_dataset":
        parts = [
            interpreter.new("index", node, {"input": part, "0": interpreter.new("element", node, {"input": container})})
            for part in container.inputs
        ]
        return interpreter.listing(node, parts)
    return interpreter.new("element", node, {"input": container})


def _loaded(interpreter: Interpreter, loader: Value, item: Value, node: ast.AST) -> Value:
    """What a loader makes of the elements of its data set: a batch, by the program's own function if it has one."""
    collate = loader.argument("collate_fn")
    if collate is not None and collate.constant is not None:
        item = interpreter.invoke(collate, Call(node, [interpreter.listing(node, [item], exact=False)]))
    return interpreter.new("element", node, {"input": item}, name="next", thing=item.thing)


def drawn(interpreter: Interpreter, container: Value, part: Value, node: ast.AST) -> Value:
    """A part of what a loader or an iterator gave: of each batch another one, wherever the text made it."""
    if container.op != "element" or container.name != "next":
        return part
    return interpreter.new("element", node, {"input": part}, name="next", constant=part.constant, thing=part.thing)


def _of_object(interpreter: Interpreter, container: Value, thing: Instance, node: ast.AST) -> Value | None:
    """What a loop over an object of the program gives: by its __iter__ and __next__, or by its __getitem__."""
    for name in ("__iter__", "__next__", "__getitem__"):
        member = thing.member(name)
        if member is None or not isinstance(member.thing, Function):
            continue
        method = interpreter.new("bound", node, {"input": container}, name=name, thing=Bound(member.thing, container))
        given = (
            [interpreter.new("element", node, {"input": container}, name="counter")] if name == "__getitem__" else []
        )
        made = interpreter.invoke(method, Call(node, given))
        if name != "__iter__":
            return made
        if made.thing is not thing:  # not `return self`
            return element(interpreter, made, node)
    return None


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
