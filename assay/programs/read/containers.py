"""Methods of lists, dictionaries and parsers of the command line: what they change and what they give."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from assay.programs.graph import UNKNOWN, Value
from assay.programs.read.things import Instance, Listing, Table

if TYPE_CHECKING:
    from assay.programs.read.calls import Calls

Values = list[Value]
Keywords = dict[str, Value]


def of_listing(
    machine: Calls, base: Value, listing: Listing, name: str, positional: Values, node: ast.AST
) -> Value | None:
    if name in ("append", "add", "appendleft", "insert") and positional:
        listing.elements.append(positional[-1])
        listing.exact = False if machine.context.loops else listing.exact
        base.arguments[f"+{len(base.arguments)}"] = positional[-1]
        positional[-1].users.append(base)
        return machine.new("append", node, {"input": base, "value": positional[-1]}, constant=None)
    if name in ("extend", "update") and positional:
        other = positional[0]
        added = other.thing.elements if isinstance(other.thing, Listing) else [machine.element(other, node)]
        machine.extend(base, listing, other, added)
        return machine.constant(node, None)
    if name in ("pop", "popleft"):
        return machine.element(base, node)
    if name == "copy":
        return machine.listing(node, listing.elements, listing.exact)
    if name in ("sort", "reverse"):
        listing.exact = False
        return machine.new("method", node, {"input": base}, name=name)
    return None


def of_table(
    machine: Calls, base: Value, table: Table, name: str, positional: Values, keywords: Keywords, node: ast.AST
) -> Value | None:
    if base.op == "parser":
        return _of_parser(machine, table, name, positional, keywords, node)
    if name in ("get", "pop", "setdefault") and positional:
        found = machine.subscript(base, [positional[0]], node)
        if name == "setdefault" and len(positional) > 1 and found.op == "index":
            machine.put(table, positional[0], positional[1])
            return positional[1]
        if found.op == "index" and len(positional) > 1:
            return machine.phi(node, [found, positional[1]])
        return found
    if name == "items":
        return machine.new("items", node, {"input": base})
    if name in ("values", "keys"):
        values = [*table.entries.values(), *table.rest]
        if name == "values" and values:
            listed = machine.listing(node, values, exact=False)
            listed.name, listed.thing.parts = "values", (base,)
            return listed
        return machine.new(name, node, {"input": base})
    if name == "update":
        for one in positional:
            if isinstance(one.thing, Table):
                table.entries |= one.thing.entries
                table.rest += one.thing.rest
            else:
                table.rest.append(one)
        table.entries |= keywords
        return machine.constant(node, None)
    if name == "to":
        return base
    return None


def _of_parser(
    machine: Calls, table: Table, name: str, positional: Values, keywords: Keywords, node: ast.AST
) -> Value | None:
    if name == "add_argument":
        flags = [one.constant for one in positional if isinstance(one.constant, str)]
        if flags:
            longest = max(flags, key=len).lstrip("-").replace("-", "_")
            target = keywords["dest"].constant if "dest" in keywords else longest
            default = keywords.get("default")
            action = str(keywords["action"].constant) if "action" in keywords else ""
            constant = (
                default.constant
                if default is not None
                else {"store_true": False, "store_false": True}.get(action, UNKNOWN)
            )
            table.entries[target] = machine.new("config", node, keywords, name=str(target), constant=constant)
        return machine.constant(node, None)
    if name in ("parse_args", "parse_known_args"):
        parsed = machine.new("table", node, thing=table)
        return parsed if name == "parse_args" else machine.listing(node, [parsed, machine.new("unknown", node)])
    if name in ("add_argument_group", "add_mutually_exclusive_group"):
        return machine.new("parser", node, thing=table)
    return None


def configured_instance(machine: Calls, of: Value, node: ast.AST) -> Value:
    value = machine.invoke(of, [], {}, node)
    if isinstance(value.thing, Instance):
        for name in value.thing.of.all_fields():
            stored = machine.heap.get((id(value.thing), name))
            if stored is not None and stored.constant is not UNKNOWN and stored.op != "config":
                machine.heap[id(value.thing), name] = machine.new(
                    "config", node, {"input": stored}, constant=stored.constant
                )
    return value


def parsed_classes(machine: Calls, parser: Value, node: ast.AST) -> Value:
    given = parser.arguments.get("input")
    classes = (
        given.thing.elements if given is not None and isinstance(given.thing, Listing) else [given] if given else []
    )
    return machine.listing(node, [configured_instance(machine, one, node) for one in classes])
