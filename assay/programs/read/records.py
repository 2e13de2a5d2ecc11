"""Records and what passes lists on: dataclasses, named tuples, random.sample, itertools.chain, zip(*rows)."""

from __future__ import annotations

import ast

from assay.programs.graph import Value
from assay.programs.read.collections import element
from assay.programs.read.interpreter import Interpreter
from assay.programs.read.things import Bound, Call, Class, Function, Instance, Listing, Partial, Table

# the same elements, some of them or in another order: by the end of the path
_SELECT = (
    "random.sample", "random.choices", "random.permutation", "itertools.islice", "itertools.cycle",
    "itertools.takewhile", "heapq.nlargest", "heapq.nsmallest",
)  # fmt: skip
_ONE = ("random.choice",)
_BATCHES = ("itertools.batched", "more_itertools.chunked", "more_itertools.batched")


def iterated(interpreter: Interpreter, path: str, given: Call) -> Value | None:
    """What functions of the standard library give that pass elements or fields on; None for any other function."""
    first, node = given.positional[0], given.node
    if path.endswith("dataclasses.replace"):
        return replaced(interpreter, first, given)
    if path.endswith(("dataclasses.asdict", "dataclasses.astuple")):
        return fields_as_table(interpreter, first, node)
    if path.endswith("dataclasses.fields"):
        return _fields(interpreter, first, node)
    if path.endswith(("itertools.islice", "heapq.nlargest", "heapq.nsmallest")) and len(given.positional) > 1:
        first = next((part for part in given.positional if part.constant is not None and part.thing is not None), first)
    if path.endswith(_ONE):
        return element(interpreter, first, node) if isinstance(first.thing, Listing) else None
    if path.endswith(_SELECT) and isinstance(first.thing, Listing):
        return interpreter.listing(node, first.thing.elements, exact=False)
    if path.endswith(_BATCHES):
        inner = interpreter.listing(node, [element(interpreter, first, node)], exact=False)
        return interpreter.listing(node, [inner], exact=False)
    if path.endswith("itertools.chain"):
        parts = [value.thing.elements for value in given.positional if isinstance(value.thing, Listing)]
        elements = [value for part in parts for value in part]
        return interpreter.listing(node, elements, exact=False) if len(parts) == len(given.positional) else None
    if path in ("asyncio.gather", "asyncio.wait", "ray.get", "asyncio.as_completed") and first.op != "starred":
        listed = first.thing.elements if isinstance(first.thing, Listing) else given.positional
        return interpreter.listing(node, listed, exact=False) if path != "ray.get" else first
    if path in ("asyncio.gather", "asyncio.wait") and first.input is not None:
        return interpreter.listing(node, [element(interpreter, first.input, node)], exact=False)
    if path in ("asyncio.create_task", "asyncio.wait_for", "asyncio.ensure_future", "asyncio.shield"):
        return first
    if path in ("asyncio.to_thread",):
        return interpreter.invoke(first, Call(node, given.positional[1:], given.keywords))
    if path.endswith("chain.from_iterable") and isinstance(first.thing, Listing):
        return interpreter.listing(
            node, [element(interpreter, part, node) for part in first.thing.elements], exact=False
        )
    return None


def started(interpreter: Interpreter, path: str, given: Call) -> Value | None:
    """Thread(target=f, args=(x,)), Process(target=f): what it runs is walked through; None for anything else."""
    if not path.endswith(("Thread", "Process", "Timer")) or "target" not in given.keywords:
        return None
    arguments = given.keywords.get("args")
    positional = arguments.thing.elements if arguments is not None and isinstance(arguments.thing, Listing) else []
    named = given.keywords.get("kwargs")
    keywords = named.thing.entries if named is not None and isinstance(named.thing, Table) else {}
    if isinstance(given.keywords["target"].thing, Function | Bound):
        interpreter.invoke(given.keywords["target"], Call(given.node, list(positional), dict(keywords)))
    return interpreter.new("call", given.node, given.arguments(), name=path)


def handed_over(interpreter: Interpreter, base: Value, name: str, given: Call) -> Value | None:
    """pool.map(f, xs), pool.submit(f, x), future.result(): a pool calls what it is given; None for anything else."""
    first, node = given.first, given.node
    if name == "result" and base.op == "submit" and "output" in base.arguments:
        return base.arguments["output"]
    if first is None or not isinstance(first.thing, Function | Bound | Partial | Class):
        return None
    if name in ("map", "imap", "imap_unordered", "starmap") and len(given.positional) > 1:
        parts = [element(interpreter, source, node) for source in given.positional[1:]]
        if name == "starmap":
            parts = _elements(interpreter, parts[0]) or parts
        return interpreter.listing(node, [interpreter.invoke(first, Call(node, parts))], exact=False)
    if name in ("submit", "apply_async", "apply", "run_in_executor"):
        output = interpreter.invoke(first, Call(node, given.positional[1:], given.keywords))
        return interpreter.new("submit", node, {"input": base, "output": output}, name=name, thing=output.thing)
    return None


def replaced(interpreter: Interpreter, record: Value, given: Call) -> Value | None:
    """A copy of a record with some fields changed."""
    if not isinstance(record.thing, Instance):
        return None
    copy = Instance(record.thing.cls)
    interpreter.keep(copy)
    for name in record.thing.cls.all_fields():
        value = given.keywords.get(name) or interpreter.heap.get((id(record.thing), name))
        if value is not None:
            interpreter.heap[id(copy), name] = value
    return interpreter.new("instance", given.node, name=copy.cls.name, thing=copy)


def fields_as_table(interpreter: Interpreter, record: Value, node: ast.AST) -> Value:
    """vars(record), dataclasses.asdict(record)"""
    entries: dict[str, Value] = {}
    if isinstance(record.thing, Instance):
        for (owner, name), value in list(interpreter.heap.items()):
            if owner == id(record.thing):
                entries[name] = value
    elif isinstance(record.thing, Table):
        return interpreter.new("table", node, thing=Table(record.thing.entries, record.thing.rest))
    rest = [] if entries else [interpreter.new("element", node, {"input": record})]
    return interpreter.new("table", node, entries or {"0": rest[0]}, thing=Table(dict(entries), rest))


def _fields(interpreter: Interpreter, record: Value, node: ast.AST) -> Value | None:
    cls = record.thing.cls if isinstance(record.thing, Instance) else record.thing
    if not isinstance(cls, Class):
        return None
    names = [
        interpreter.new("table", node, thing=Table({"name": interpreter.constant(node, name)}, is_namespace=True))
        for name in cls.all_fields()
    ]
    listed = interpreter.listing(node, names)
    listed.name = "fields"
    return listed


def named_tuple(interpreter: Interpreter, given: Call) -> Value:
    """collections.namedtuple("Name", "a b") or ("Name", ["a", "b"])"""
    named, listed = given.positional[0].constant, given.positional[1]
    name = named if isinstance(named, str) and named.isidentifier() else "Record"
    fields = listed.constant.replace(",", " ").split() if isinstance(listed.constant, str) else []
    if isinstance(listed.thing, Listing):
        fields = [value.constant for value in listed.thing.elements if isinstance(value.constant, str)]
    made = Class(name, ast.ClassDef(name, [], [], [], []), interpreter.frame, [], fields=fields, is_record=True)
    interpreter.keep(made)
    made.is_tuple = True
    return interpreter.new("class", given.node, name=name, thing=made)


def parts_of(interpreter: Interpreter, value: Value) -> list[Value] | None:
    """The fields of a named tuple, in order; None where it is something else, or where one is not known."""
    thing = value.thing
    if not isinstance(thing, Instance) or not thing.cls.is_tuple:
        return None
    found = [interpreter.heap.get((id(thing), name)) for name in thing.cls.all_fields()]
    known = [part for part in found if part is not None]
    return known if known and len(known) == len(found) else None


def transposed(interpreter: Interpreter, positional: list[Value], node: ast.AST) -> Value | None:
    """zip(*rows), where the rows are tuples of one length: a list for each place; None where they are not."""
    rows = positional[0].input if len(positional) == 1 and positional[0].op == "starred" else None
    if rows is None or not isinstance(rows.thing, Listing) or not rows.thing.elements:
        return None
    tuples = [_elements(interpreter, row) for row in rows.thing.elements]
    known = [elements for elements in tuples if elements is not None]
    if len(known) < len(tuples) or len({len(elements) for elements in known}) != 1:
        return None
    return interpreter.listing(
        node, [interpreter.listing(node, list(part), exact=False) for part in zip(*known, strict=True)]
    )


def _elements(interpreter: Interpreter, row: Value) -> list[Value] | None:
    if isinstance(row.thing, Listing):
        return row.thing.elements if row.thing.exact else None
    return parts_of(interpreter, row)
