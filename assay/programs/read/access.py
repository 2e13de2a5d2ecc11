"""Attributes, subscripts and the targets of assignments: where values are kept and found again."""

from __future__ import annotations

import ast

from assay.programs.graph import UNKNOWN, Value
from assay.programs.read.collections import choices, drawn, element, first, hold, put
from assay.programs.read.interpreter import Interpreter, numbered
from assay.programs.read.records import parts_of
from assay.programs.read.things import Bound, Call, Class, Function, Instance, Library, Listing, Table
from assay.programs.walk import peel


def attribute(interpreter: Interpreter, base: Value, name: str, node: ast.AST) -> Value:
    thing = base.thing
    if isinstance(thing, Library):
        return interpreter.library(node, f"{thing.path}.{name}")
    # the network within its wrapper
    is_inside = name == "module" and any(part.op == "wrapped" for part in (base, *choices(base)))
    key = (id(thing if isinstance(thing, Instance) and not is_inside else base), name)
    if isinstance(thing, Instance) and key in interpreter.heap:
        return interpreter.heap[key]
    if isinstance(thing, Instance | Class):
        member = thing.member(name)
        if member is not None:
            return _member(interpreter, base, member, name, node)
    if isinstance(thing, Table) and name in thing.entries and thing.is_namespace:
        return interpreter.resolve(thing.entries[name])
    if (
        thing is None
        and not is_inside
        and key not in interpreter.heap
        and any(_is_object(part) for part in choices(base))
    ):
        parts = [part for part in choices(base) if part.constant is UNKNOWN]
        return interpreter.phi(node, [attribute(interpreter, part, name, node) for part in parts])
    if key not in interpreter.heap:
        interpreter.keep(thing if isinstance(thing, Instance) else base)
        interpreter.heap[key] = interpreter.new(
            "attribute", node, {"input": base}, name=name, thing=thing if is_inside else None
        )
    return interpreter.heap[key]


def _member(interpreter: Interpreter, base: Value, member: Value, name: str, node: ast.AST) -> Value:
    """What an object or a class gives for a member of the class."""
    function = member.thing
    if not isinstance(function, Function):
        return member
    if isinstance(base.thing, Class):
        if function.kind != "class":
            return member
        return interpreter.new("bound", node, thing=Bound(function, base), name=name)
    if function.kind == "property":
        return interpreter.invoke(interpreter.new("bound", node, thing=Bound(function, base)), Call(node))
    if function.kind == "static":
        return member
    return interpreter.new("bound", node, {"input": base}, name=name, thing=Bound(function, base))


def _is_object(value: Value) -> bool:
    """Something whose attributes the program itself has set."""
    return isinstance(value.thing, Instance) or (isinstance(value.thing, Table) and value.thing.is_namespace)


def subscript(interpreter: Interpreter, base: Value, keys: list[Value], node: ast.AST) -> Value:
    found: Value | None = None
    if len(keys) == 1 and base.thing is None:
        holders = [part for part in choices(base) if _may_hold(part, keys[0])]
        if any(isinstance(part.thing, Table | Listing) for part in holders):
            return interpreter.phi(node, [subscript(interpreter, part, keys, node) for part in holders])
    if base.thing is None and holds_modules(base):
        return _part_of_network(interpreter, base, str(keys[0].constant), node)
    if len(keys) == 1 and isinstance(base.thing, Instance):
        found = _item_of_object(interpreter, base, base.thing, keys[0], node)
    elif len(keys) == 1 and isinstance(base.thing, Table):
        found = _entry(interpreter, base, base.thing, keys[0], node)
    elif len(keys) == 1 and isinstance(base.thing, Listing) and base.op != "phi":
        found = _item(interpreter, base, base.thing, keys[0], node)
    if found is not None:
        return drawn(interpreter, base, found, node)
    if len(keys) == 1 and isinstance(name := keys[0].constant, str):
        memo = (id(base), f"[{name}]")
        if memo not in interpreter.heap:
            interpreter.keep(base)
            interpreter.heap[memo] = interpreter.new("index", node, {"input": base, "0": keys[0]}, name=name)
        return interpreter.heap[memo]
    return interpreter.new("index", node, {"input": base, **numbered(keys)})


def _may_hold(value: Value, key: Value) -> bool:
    """Whether there may be something under a key; of a list or a dictionary the text may say that there is not."""
    thing, name = value.thing, key.constant
    if not isinstance(thing, Table | Listing):
        return value.constant is UNKNOWN
    if isinstance(thing, Table):
        return name is UNKNOWN or isinstance(name, float) or name in thing.entries or bool(thing.rest)
    if not thing.elements:
        return False
    is_beyond = isinstance(name, int) and not -len(thing.elements) <= name < len(thing.elements)
    return not (thing.exact and is_beyond)


def _entry(interpreter: Interpreter, base: Value, table: Table, under: Value, node: ast.AST) -> Value | None:
    key = under.constant
    if key is not UNKNOWN and not isinstance(key, float) and key in table.entries:
        return table.entries[key]
    if table.factory is not None and key is not UNKNOWN:
        table.entries[key] = interpreter.invoke(table.factory, Call(node))
        return table.entries[key]
    known = [*table.rest, *(table.entries.values() if key is UNKNOWN else ())]
    if known:
        return _unplaced(interpreter, base, under, known, node)
    if table.factory is None:
        return None
    made = interpreter.invoke(table.factory, Call(node))
    table.rest.append(made)
    return made


def _item(interpreter: Interpreter, base: Value, listing: Listing, under: Value, node: ast.AST) -> Value | None:
    key, elements = under.constant, listing.elements
    if listing.exact and isinstance(key, int) and -len(elements) <= key < len(elements):
        return elements[key]
    if not elements:
        return None
    if under.op == "slice":
        cut = interpreter.listing(node, elements, exact=False)
        cut.arguments["slice"] = under
        cut.thing.cut_from = base
        return cut
    if key is UNKNOWN and all(_is_written(value) for value in elements):  # which one, the key says
        return _unplaced(interpreter, base, under, elements[:16], node)
    return first(interpreter, base, node) if key in (0, -1) else element(interpreter, base, node)


def _item_of_object(
    interpreter: Interpreter, base: Value, instance: Instance, key: Value, node: ast.AST
) -> Value | None:
    """x[key] of an object of the program: its own __getitem__, or a field of a named tuple."""
    parts = parts_of(interpreter, base)
    if parts is not None and isinstance(key.constant, int) and -len(parts) <= key.constant < len(parts):
        return parts[key.constant]
    member = instance.member("__getitem__")
    if member is None or not isinstance(member.thing, Function) or base.op in ("deepcopy", "wrapped"):
        return None
    method = interpreter.new("bound", node, {"input": base}, name="__getitem__", thing=Bound(member.thing, base))
    return interpreter.invoke(method, Call(node, [key]))


def _part_of_network(interpreter: Interpreter, base: Value, name: str, node: ast.AST) -> Value:
    memo = (id(base), f"part {name}")
    if memo not in interpreter.heap:
        interpreter.keep(base)
        layer = layer_of(base, name)
        known = {"layer": layer} if layer is not None else {}
        interpreter.heap[memo] = interpreter.new("submodule", node, {"input": base, **known}, name=name)
    return interpreter.heap[memo]


def _unplaced(interpreter: Interpreter, base: Value, under: Value, known: list[Value], node: ast.AST) -> Value:
    """What a dictionary holds under a key, where keys were computed: two keys are two values."""
    key = under.constant
    memo = (id(base.thing), f"[{key!r}]")
    if key is UNKNOWN or memo not in interpreter.heap:
        inner = interpreter.phi(node, known)
        interpreter.keep(base.thing)
        interpreter.heap[memo] = interpreter.new(
            "element", node, {"input": inner, "key": under}, name=str(key), thing=inner.thing
        )
    return interpreter.heap[memo]


# targets


def assign(interpreter: Interpreter, target: ast.expr, value: Value, node: ast.AST) -> None:
    if isinstance(target, ast.Name):
        interpreter.store(target.id, value)
    elif isinstance(target, ast.Tuple | ast.List):
        _unpack(interpreter, target.elts, value, node)
    elif isinstance(target, ast.Starred):
        assign(interpreter, target.value, value, node)
    elif isinstance(target, ast.Attribute):
        base = interpreter.evaluate(target.value)
        if isinstance(base.thing, Table) and base.thing.is_namespace:
            base.thing.entries[target.attr] = value
        if isinstance(base.thing, Class):
            base.thing.members[target.attr] = value
        set_attribute(interpreter, base, target.attr, value)
        interpreter.name(value, target.attr)
        interpreter.new("setattr", node, {"input": base, "value": value}, name=target.attr)
    elif isinstance(target, ast.Subscript):
        _assign_item(interpreter, target, value, node)


def set_attribute(interpreter: Interpreter, base: Value, name: str, value: Value) -> None:
    owner = base.thing if isinstance(base.thing, Instance) else base
    interpreter.keep(owner)
    interpreter.heap[id(owner), name] = value


def _assign_item(interpreter: Interpreter, target: ast.Subscript, value: Value, node: ast.AST) -> None:
    base = interpreter.evaluate(target.value)
    keys = keys_of(interpreter, target)
    if isinstance(base.thing, Table):
        put(base.thing, keys[0], value)
        hold(base, value)
    elif isinstance(base.thing, Listing):
        base.thing.elements.append(value)
        base.thing.exact = False
        hold(base, value)
    elif len(keys) == 1 and isinstance(keys[0].constant, str):
        interpreter.keep(base)
        interpreter.heap[id(base), f"[{keys[0].constant}]"] = value
    else:
        changed = interpreter.new("setitem", node, {"input": base, "value": value, **numbered(keys)}, thing=base.thing)
        if isinstance(target.value, ast.Name | ast.Attribute):
            assign(interpreter, target.value, changed, node)


def keys_of(interpreter: Interpreter, node: ast.Subscript) -> list[Value]:
    """What stands between the brackets."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return [interpreter.evaluate(part) for part in parts]


def _unpack(interpreter: Interpreter, targets: list[ast.expr], value: Value, node: ast.AST) -> None:
    thing = value.thing
    starred = [number for number, target in enumerate(targets) if isinstance(target, ast.Starred)]
    exact = thing.elements if isinstance(thing, Listing) and thing.exact else parts_of(interpreter, value)
    tuples = [part.thing.elements for part in choices(value) if isinstance(part.thing, Listing) and part.thing.exact]
    if exact is None and not starred and tuples and all(len(elements) == len(targets) for elements in tuples):
        exact = [interpreter.phi(node, part) for part in zip(*tuples, strict=True)]
    if exact is not None and starred and len(exact) >= len(targets) - 1:
        first, behind = starred[0], len(exact) - (len(targets) - starred[0] - 1)
        exact = [*exact[:first], interpreter.listing(node, exact[first:behind]), *exact[behind:]]
    rows = [part.thing for part in value.inputs] if value.op == "zip" else []
    if rows and all(isinstance(row, Listing) and row.exact and len(row.elements) == len(targets) for row in rows):
        exact = [interpreter.listing(node, list(part)) for part in zip(*(row.elements for row in rows), strict=True)]
    for number, target in enumerate(targets):
        if thing is None and holds_modules(value) and not starred:
            part = _part_of_network(interpreter, value, str(number), node)
        elif exact is not None and len(exact) == len(targets):
            part = drawn(interpreter, value, exact[number], target)
        else:
            arguments = {"input": value, "0": interpreter.constant(target, number)}
            part = interpreter.new("index", target, arguments, name="unpacked")
        assign(interpreter, target, part, node)


# what values are


def _is_written(value: Value) -> bool:
    """A constant, a letter of one or of a library's, or a counted number as text."""
    if value.op == "call" and value.name in ("builtins.str", "builtins.chr"):
        return all(_is_written(part) for part in value.inputs)
    source = value.input if value.op == "element" else None
    if source is not None and (source.op in ("range", "library") or isinstance(source.constant, str)):
        return True
    return value.constant is not UNKNOWN


def holds_modules(value: Value) -> bool:
    """A network made of others by name or number: nn.ModuleDict, nn.ModuleList, nn.Sequential, or a copy of one."""
    value = peel(value, ("deepcopy", "wrapped", "submodule"))
    return value.op == "module" and value.name in ("ModuleDict", "ModuleList", "Sequential")


def layer_of(value: Value, name: str) -> Value | None:
    """The layer of such a network under a name or a number, where the text shows it."""
    value = peel(value, ("deepcopy", "wrapped"))
    given = value.argument("0")
    found: Value | None = None
    if value.op == "module" and value.name == "Sequential":
        found = value.argument(name)
    elif given is not None and isinstance(given.thing, Table):
        found = given.thing.entries.get(name)
    elif given is not None and isinstance(given.thing, Listing) and given.thing.exact and name.isdigit():
        found = given.thing.elements[int(name)] if int(name) < len(given.thing.elements) else None
    return found if found is not None and found.op == "module" else None
