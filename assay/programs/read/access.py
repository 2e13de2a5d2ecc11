"""Attributes, subscripts and the targets of assignments: where values are kept and found again."""

from __future__ import annotations

import ast

from assay.programs.graph import UNKNOWN, Value
from assay.programs.read.collections import element, first, hold, put
from assay.programs.read.machine import Machine, numbered
from assay.programs.read.things import Bound, Call, Class, Function, Instance, Library, Listing, Table
from assay.programs.walk import peel


def attribute(machine: Machine, base: Value, name: str, node: ast.AST) -> Value:
    thing = base.thing
    if isinstance(thing, Library):
        return machine.library(node, f"{thing.path}.{name}")
    key = (id(thing if isinstance(thing, Instance) else base), name)
    if isinstance(thing, Instance) and key in machine.heap:
        return machine.heap[key]
    if isinstance(thing, Instance | Class):
        member = thing.member(name)
        if member is not None:
            return _member(machine, base, member, name, node)
    if isinstance(thing, Table) and name in thing.entries and thing.is_namespace:
        return machine.resolve(thing.entries[name])
    if key not in machine.heap:
        machine.keep(thing if isinstance(thing, Instance) else base)
        inside = name == "module" and base.op == "wrapped"  # the network within its wrapper
        machine.heap[key] = machine.new("attribute", node, {"input": base}, name=name, thing=thing if inside else None)
    return machine.heap[key]


def _member(machine: Machine, base: Value, member: Value, name: str, node: ast.AST) -> Value:
    """What an object or a class gives for a member of the class."""
    function = member.thing
    if not isinstance(function, Function):
        return member
    if isinstance(base.thing, Class):
        if function.kind != "class":
            return member
        return machine.new("bound", node, thing=Bound(function, base), name=name)
    if function.kind == "property":
        return machine.invoke(machine.new("bound", node, thing=Bound(function, base)), Call(node))
    if function.kind == "static":
        return member
    return machine.new("bound", node, {"input": base}, name=name, thing=Bound(function, base))


def subscript(machine: Machine, base: Value, keys: list[Value], node: ast.AST) -> Value:
    found: Value | None = None
    if base.thing is None and holds_modules(base):
        return _part_of_network(machine, base, str(keys[0].constant), node)
    if len(keys) == 1 and isinstance(base.thing, Table):
        found = _entry(machine, base, base.thing, keys[0], node)
    elif len(keys) == 1 and isinstance(base.thing, Listing) and base.op != "phi":
        found = _item(machine, base, base.thing, keys[0], node)
    if found is not None:
        return found
    if len(keys) == 1 and isinstance(name := keys[0].constant, str):
        memo = (id(base), f"[{name}]")
        if memo not in machine.heap:
            machine.keep(base)
            machine.heap[memo] = machine.new("index", node, {"input": base, "0": keys[0]}, name=name)
        return machine.heap[memo]
    return machine.new("index", node, {"input": base, **numbered(keys)})


def _entry(machine: Machine, base: Value, table: Table, under: Value, node: ast.AST) -> Value | None:
    key = under.constant
    if key is not UNKNOWN and not isinstance(key, float) and key in table.entries:
        return table.entries[key]
    if table.factory is not None and key is not UNKNOWN:
        table.entries[key] = machine.invoke(table.factory, Call(node))
        return table.entries[key]
    known = [*table.rest, *(table.entries.values() if key is UNKNOWN else ())]
    if known:
        return _unplaced(machine, base, under, known, node)
    if table.factory is None:
        return None
    made = machine.invoke(table.factory, Call(node))
    table.rest.append(made)
    return made


def _item(machine: Machine, base: Value, listing: Listing, under: Value, node: ast.AST) -> Value | None:
    key, elements = under.constant, listing.elements
    if listing.exact and isinstance(key, int) and -len(elements) <= key < len(elements):
        return elements[key]
    if not elements:
        return None
    if under.op == "slice":
        cut = machine.listing(node, elements, exact=False)
        cut.arguments["slice"] = under
        cut.thing.cut_from = base
        return cut
    if key is UNKNOWN and all(_is_written(value) for value in elements):  # which one, the key says
        return _unplaced(machine, base, under, elements[:16], node)
    return first(machine, base, node) if key in (0, -1) else element(machine, base, node)


def _part_of_network(machine: Machine, base: Value, name: str, node: ast.AST) -> Value:
    memo = (id(base), f"part {name}")
    if memo not in machine.heap:
        machine.keep(base)
        layer = layer_of(base, name)
        known = {"layer": layer} if layer is not None else {}
        machine.heap[memo] = machine.new("submodule", node, {"input": base, **known}, name=name)
    return machine.heap[memo]


def _unplaced(machine: Machine, base: Value, under: Value, known: list[Value], node: ast.AST) -> Value:
    """What a dictionary holds under a key, where keys were computed: two keys are two values."""
    key = under.constant
    memo = (id(base.thing), f"[{key!r}]")
    if key is UNKNOWN or memo not in machine.heap:
        inner = machine.phi(node, known)
        machine.keep(base.thing)
        machine.heap[memo] = machine.new(
            "element", node, {"input": inner, "key": under}, name=str(key), thing=inner.thing
        )
    return machine.heap[memo]


# targets


def assign(machine: Machine, target: ast.expr, value: Value, node: ast.AST) -> None:
    if isinstance(target, ast.Name):
        machine.store(target.id, value)
    elif isinstance(target, ast.Tuple | ast.List):
        _unpack(machine, target.elts, value, node)
    elif isinstance(target, ast.Starred):
        assign(machine, target.value, value, node)
    elif isinstance(target, ast.Attribute):
        base = machine.evaluate(target.value)
        if isinstance(base.thing, Table) and base.thing.is_namespace:
            base.thing.entries[target.attr] = value
        if isinstance(base.thing, Class):
            base.thing.members[target.attr] = value
        set_attribute(machine, base, target.attr, value)
        machine.name(value, target.attr)
        machine.new("setattr", node, {"input": base, "value": value}, name=target.attr)
    elif isinstance(target, ast.Subscript):
        _assign_item(machine, target, value, node)


def set_attribute(machine: Machine, base: Value, name: str, value: Value) -> None:
    owner = base.thing if isinstance(base.thing, Instance) else base
    machine.keep(owner)
    machine.heap[id(owner), name] = value


def _assign_item(machine: Machine, target: ast.Subscript, value: Value, node: ast.AST) -> None:
    base = machine.evaluate(target.value)
    keys = keys_of(machine, target)
    if isinstance(base.thing, Table):
        put(base.thing, keys[0], value)
        hold(base, value)
    elif isinstance(base.thing, Listing):
        base.thing.elements.append(value)
        base.thing.exact = False
    elif len(keys) == 1 and isinstance(keys[0].constant, str):
        machine.keep(base)
        machine.heap[id(base), f"[{keys[0].constant}]"] = value
    else:
        changed = machine.new("setitem", node, {"input": base, "value": value, **numbered(keys)}, thing=base.thing)
        if isinstance(target.value, ast.Name | ast.Attribute):
            assign(machine, target.value, changed, node)


def keys_of(machine: Machine, node: ast.Subscript) -> list[Value]:
    """What stands between the brackets."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return [machine.evaluate(part) for part in parts]


def _unpack(machine: Machine, targets: list[ast.expr], value: Value, node: ast.AST) -> None:
    thing = value.thing
    starred = [number for number, target in enumerate(targets) if isinstance(target, ast.Starred)]
    exact = thing.elements if isinstance(thing, Listing) and thing.exact else None
    if exact is not None and starred and len(exact) >= len(targets) - 1:
        first, behind = starred[0], len(exact) - (len(targets) - starred[0] - 1)
        exact = [*exact[:first], machine.listing(node, exact[first:behind]), *exact[behind:]]
    for number, target in enumerate(targets):
        if thing is None and holds_modules(value) and not starred:
            part = _part_of_network(machine, value, str(number), node)
        elif exact is not None and len(exact) == len(targets):
            part = exact[number]
        else:
            arguments = {"input": value, "0": machine.constant(target, number)}
            part = machine.new("index", target, arguments, name="unpacked")
        assign(machine, target, part, node)


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
