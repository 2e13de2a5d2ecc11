"""Calls --> Values: the program's own functions are walked through, those of libraries are named."""

from __future__ import annotations

import ast
from itertools import takewhile

from assay.programs.graph import UNKNOWN, Value
from assay.programs.read import library
from assay.programs.read.access import attribute
from assay.programs.read.machine import Machine, numbered
from assay.programs.read.things import Bound, Call, Class, Frame, Function, Instance, Library, Listing, Partial, Table
from assay.programs.walk import ancestors

DEEPEST = 24  # calls within calls
TIMES_ON_STACK = 1  # a function that calls itself is not followed
MOST_OF_FUNCTION = 6_000  # values: a function whose walks have made more is not walked through again


def call(machine: Machine, node: ast.Call) -> Value:
    before = len(machine.graph.values)
    value = _call_of(machine, node)
    if value.order >= before and not value.given:
        parts = [*node.args, *(keyword.value for keyword in node.keywords)]
        if isinstance(node.func, ast.Attribute):
            parts.append(node.func.value)
        for part in parts:
            made = machine.evaluated.get(id(part))
            for name, argument in value.arguments.items():
                if argument is made:
                    value.given.setdefault(name, machine.place(part))
    return value


def _call_of(machine: Machine, node: ast.Call) -> Value:
    function = node.func
    if not isinstance(function, ast.Attribute):
        callee = machine.evaluate(function)
        return invoke(machine, callee, _given(machine, node))
    if isinstance(function.value, ast.Call) and getattr(function.value.func, "id", "") == "super":
        return _super(machine, function.attr, _given(machine, node))
    base = machine.evaluated[id(function.value)] = machine.evaluate(function.value)
    is_own = isinstance(base.thing, Library | Class) or _has(machine, base, function.attr)
    method = attribute(machine, base, function.attr, function) if is_own else None
    given = _given(machine, node)
    if function.attr == "forward" and isinstance(base.thing, Instance) and base.thing.of.is_module:
        return _call_instance(machine, base, base.thing, given)
    if method is not None:
        return invoke(machine, method, given)
    return library.method(machine, base, function.attr, given)


def _has(machine: Machine, base: Value, name: str) -> bool:
    """Whether the object has that attribute by the program's own doing."""
    if isinstance(base.thing, Instance):
        return (id(base.thing), name) in machine.heap or base.thing.member(name) is not None
    if isinstance(base.thing, Table) and base.thing.is_namespace:
        return name in base.thing.entries
    stored = machine.heap.get((id(base), name))
    return stored is not None and stored.op != "attribute"


def _given(machine: Machine, node: ast.Call) -> Call:
    positional: list[Value] = []
    for part in node.args:
        value = machine.evaluated[id(part)] = machine.evaluate(part)
        if not isinstance(part, ast.Starred):
            positional.append(value)
        elif isinstance(value.thing, Listing) and value.thing.exact:
            positional += value.thing.elements
        else:
            positional.append(machine.new("starred", part, {"input": value}))
    keywords: dict[str, Value] = {}
    for keyword in node.keywords:
        value = machine.evaluated[id(keyword.value)] = machine.evaluate(keyword.value)
        if keyword.arg is not None:
            keywords[keyword.arg] = value
            continue
        if isinstance(value.thing, Table):
            keywords |= {key: entry for key, entry in value.thing.entries.items() if isinstance(key, str)}
        if not isinstance(value.thing, Table) or value.thing.rest:
            keywords["**"] = value
    return Call(node, positional, keywords)


def invoke(machine: Machine, callee: Value, given: Call) -> Value:
    """What calling a value gives."""
    thing = callee.thing
    if isinstance(thing, Partial):
        first = thing.given
        merged = Call(given.node, [*first.positional, *given.positional], {**first.keywords, **given.keywords})
        return invoke(machine, thing.function, merged)
    if isinstance(thing, Bound):
        return enter(machine, thing.function, given.with_first(thing.owner), owner=thing.owner)
    if isinstance(thing, Function):
        return enter(machine, thing, given)
    if isinstance(thing, Class):
        return instantiate(machine, thing, given)
    if isinstance(thing, Instance):
        return _call_instance(machine, callee, thing, given)
    if isinstance(thing, Library):
        return library.call(machine, thing, given)
    if callee.op == "attribute" and callee.input is not None and library.is_known_method(callee.name):
        # clear = optimizer.zero_grad; clear()
        return library.method(machine, callee.input, callee.name, given)
    return library.unknown_call(machine, callee, given)


def enter(machine: Machine, function: Function, given: Call, owner: Value | None = None) -> Value:
    """Walks through the body of a function with these arguments."""
    body, node = id(function.node), given.node
    spent = machine.spent.get(body, 0)
    on_stack = machine.running.count(body) >= TIMES_ON_STACK or len(machine.running) >= DEEPEST
    if on_stack or spent > MOST_OF_FUNCTION:
        arguments = numbered([*given.positional, *given.keywords.values()])
        return machine.new("call", node, arguments, name=function.name)
    machine.entered.add(body)
    calls = (*machine.context.calls, machine.place(node))
    frame = Frame(function.frame.module, outer=function.frame, owner=owner, defined_in=function.owner)
    before, machine.frame = machine.frame, frame
    first = len(machine.graph.values)
    machine.running.append(body)
    try:
        _bind(machine, function, given)
        template = _arguments_of_template(machine, function)
        context = machine.context
        with machine.under(
            no_grad=context.no_grad or function.no_grad,
            autocast=context.autocast or function.autocast,
            calls=calls,
            functions=(*context.functions, function.name),
        ):
            if isinstance(function.node, ast.Lambda):
                frame.returned.append(machine.evaluate(function.node.body))
            else:
                machine.run_body(function.node.body)
    finally:
        machine.running.pop()
        machine.spent[body] = spent + len(machine.graph.values) - first
        machine.frame = before
    if frame.yielded:
        return machine.listing(node, frame.yielded, exact=False)
    if not frame.returned:
        return machine.constant(node, None)
    output = _join(machine, node, frame.returned)
    if not template or any(value.op == "apply_chat_template" for value in ancestors(output)):
        return output
    return machine.new(
        "apply_chat_template",
        node,
        {**template, "output": output},
        name=function.name,
        constant=output.constant,
        thing=output.thing,
    )


def _arguments_of_template(machine: Machine, function: Function) -> dict[str, Value]:
    """What a chat template of the program is given, if the function is one in the manner of transformers."""
    arguments = function.node.args
    names = [parameter.arg for parameter in (*arguments.args, *arguments.kwonlyargs) if parameter.arg != "self"]
    if "add_generation_prompt" not in names:
        return {}
    variables = machine.frame.variables
    return {"1": variables[names[0]], "add_generation_prompt": variables["add_generation_prompt"]}


def _join(machine: Machine, node: ast.AST, returned: list[Value]) -> Value:
    """What a function with several returns gives back: tuples of one length meet part by part."""
    things = [value.thing for value in returned]
    if len(returned) > 1 and all(isinstance(thing, Listing) and thing.exact for thing in things):
        tuples = [thing.elements for thing in things]
        if all(len(elements) == len(tuples[0]) for elements in tuples):
            return machine.listing(node, [machine.phi(node, part) for part in zip(*tuples, strict=True)])
    return machine.phi(node, returned)


def _bind(machine: Machine, function: Function, given: Call) -> None:
    arguments, node = function.node.args, given.node
    positional, keywords = given.positional, given.keywords
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    known = [*names, *(argument.arg for argument in arguments.kwonlyargs)]
    spread = any(value.op == "starred" for value in positional)
    plain = function.owner is None and not getattr(function.node, "decorator_list", None)
    if plain and not spread and arguments.vararg is None and len(positional) > len(names):
        machine.new("misfit", node, name=function.name)  # this call raises
    certain = takewhile(lambda value: value.op != "starred", positional)
    variables = dict(zip(names, certain, strict=False))
    if arguments.vararg is not None:
        variables[arguments.vararg.arg] = machine.listing(node, positional[len(names) :], exact=not spread)
    variables |= {name: value for name, value in keywords.items() if name in known}
    if arguments.kwarg is not None:
        rest = {name: value for name, value in keywords.items() if name not in known and name != "**"}
        table = Table(rest, [keywords["**"]] if "**" in keywords else [])
        variables[arguments.kwarg.arg] = machine.new("table", node, thing=table)
    for name in known:
        default = function.defaults.get(name)
        if name in variables:
            continue
        if default is not None and not spread and "**" not in keywords:
            variables[name] = default
        else:
            variables[name] = machine.new("parameter", function.node, name=name)
            if default is not None and default.constant is not UNKNOWN:
                variables[name].arguments["default"] = default
    for name, value in variables.items():
        machine.store(name, value)


def instantiate(machine: Machine, of: Class, given: Call) -> Value:
    instance = Instance(of)
    machine.keep(instance)
    value = machine.new("instance", given.node, name=of.name, thing=instance)
    start = of.method("__init__")
    if start is not None:
        enter(machine, start, given.with_first(value), owner=value)
    elif of.is_record:
        fields = of.all_fields()
        named = {**dict(zip(fields, given.positional, strict=False)), **given.keywords}
        for name in fields:
            default = of.member(name)
            if name in named:
                machine.heap[id(instance), name] = named[name]
            elif default is not None:
                machine.heap[id(instance), name] = library.field_default(machine, default, given.node)
        after = of.method("__post_init__")
        if after is not None:
            enter(machine, after, Call(given.node, [value]), owner=value)
    return value


def _call_instance(machine: Machine, callee: Value, instance: Instance, given: Call) -> Value:
    member = instance.member("__call__") or instance.member("forward")
    if member is None or not isinstance(member.thing, Function):
        return library.unknown_call(machine, callee, given)
    output = enter(machine, member.thing, given.with_first(callee), owner=callee)
    if not instance.of.is_module:
        return output
    names = [argument.arg for argument in member.thing.node.args.args[1:]]
    arguments = {**dict(zip(names, given.positional, strict=False)), **given.keywords}
    return _forward(machine, callee, output, arguments, given.node)


def _forward(machine: Machine, model: Value, output: Value, arguments: dict[str, Value], node: ast.AST) -> Value:
    """The output of a network of the program: what its forward computed, and which network it was."""
    if isinstance(output.thing, Listing) and output.thing.exact:
        parts = [_forward(machine, model, part, arguments, node) for part in output.thing.elements]
        return machine.listing(node, parts)
    if isinstance(output.thing, Table | Instance):
        return output
    given = {f"given_{name}": value for name, value in arguments.items()}
    return machine.new("forward", node, {"model": model, "output": output, **given})


def _super(machine: Machine, name: str, given: Call) -> Value:
    owner, within = machine.frame.owner, machine.frame.defined_in
    if owner is not None and isinstance(owner.thing, Instance) and within is not None:
        line = owner.thing.of.ancestry()
        for ancestor in line[line.index(within) + 1 :] if within in line else []:
            member = ancestor.members.get(name)
            if member is not None and isinstance(member.thing, Function):
                return enter(machine, member.thing, given.with_first(owner), owner=owner)
    return machine.new("super", given.node, numbered([*given.positional, *given.keywords.values()]), name=name)
