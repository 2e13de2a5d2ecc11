"""Calls --> Values: the program's own functions are walked through, those of libraries are named."""

from __future__ import annotations

import ast
from itertools import takewhile

from assay.programs.graph import UNKNOWN, Value
from assay.programs.read import library
from assay.programs.read.access import attribute
from assay.programs.read.collections import choices
from assay.programs.read.interpreter import Interpreter, numbered
from assay.programs.read.things import Bound, Call, Class, Frame, Function, Instance, Library, Listing, Partial, Table
from assay.programs.walk import ancestors

DEEPEST = 24  # calls within calls
TIMES_ON_STACK = 1  # a function that calls itself is not followed
MOST_DECLARED = 4  # records that a parameter may be
_MANY = ("list", "List", "Sequence", "Iterable", "Iterator", "tuple", "Tuple", "Deque", "deque")
MOST_OF_FUNCTION = 6_000  # values: a function whose walks have made more is not walked through again


def call(interpreter: Interpreter, node: ast.Call) -> Value:
    before = len(interpreter.graph.values)
    value = _call_of(interpreter, node)
    if value.order >= before and not value.given:
        parts = [*node.args, *(keyword.value for keyword in node.keywords)]
        if isinstance(node.func, ast.Attribute):
            parts.append(node.func.value)
        for part in parts:
            made = interpreter.evaluated.get(id(part))
            for name, argument in value.arguments.items():
                if argument is made:
                    value.given.setdefault(name, interpreter.place(part))
    return value


def _call_of(interpreter: Interpreter, node: ast.Call) -> Value:
    function = node.func
    if not isinstance(function, ast.Attribute):
        callee = interpreter.evaluate(function)
        return invoke(interpreter, callee, _given(interpreter, node))
    if isinstance(function.value, ast.Call) and getattr(function.value.func, "id", "") == "super":
        return _super(interpreter, function.attr, _given(interpreter, node))
    base = interpreter.evaluated[id(function.value)] = interpreter.evaluate(function.value)
    is_own = isinstance(base.thing, Library | Class) or _has(interpreter, base, function.attr)
    method = attribute(interpreter, base, function.attr, function) if is_own else None
    given = _given(interpreter, node)
    if function.attr == "forward" and isinstance(base.thing, Instance) and base.thing.cls.is_module:
        return _call_instance(interpreter, base, base.thing, given)
    if method is not None and not (base.op == "optimizer" and function.attr in ("step", "zero_grad")):
        return invoke(interpreter, method, given)
    objects = [
        part for part in choices(base) if isinstance(part.thing, Instance) and _has(interpreter, part, function.attr)
    ]
    if objects:
        methods = [attribute(interpreter, part, function.attr, function) for part in objects]
        return interpreter.phi(node, [invoke(interpreter, method, given) for method in methods])
    return library.method(interpreter, base, function.attr, given)


def _has(interpreter: Interpreter, base: Value, name: str) -> bool:
    """Whether the object has that attribute by the program's own doing."""
    if isinstance(base.thing, Instance):
        return (id(base.thing), name) in interpreter.heap or base.thing.member(name) is not None
    if isinstance(base.thing, Table) and base.thing.is_namespace:
        return name in base.thing.entries
    stored = interpreter.heap.get((id(base), name))
    return stored is not None and stored.op != "attribute"


def _given(interpreter: Interpreter, node: ast.Call) -> Call:
    positional: list[Value] = []
    for part in node.args:
        value = interpreter.evaluated[id(part)] = interpreter.evaluate(part)
        if not isinstance(part, ast.Starred):
            positional.append(value)
        elif isinstance(value.thing, Listing) and value.thing.exact:
            positional += value.thing.elements
        else:
            positional.append(interpreter.new("starred", part, {"input": value}))
    keywords: dict[str, Value] = {}
    for keyword in node.keywords:
        value = interpreter.evaluated[id(keyword.value)] = interpreter.evaluate(keyword.value)
        if keyword.arg is not None:
            keywords[keyword.arg] = value
            continue
        if isinstance(value.thing, Table):
            keywords |= {key: entry for key, entry in value.thing.entries.items() if isinstance(key, str)}
        if not isinstance(value.thing, Table) or value.thing.rest:
            keywords["**"] = value
    return Call(node, positional, keywords)


def invoke(interpreter: Interpreter, callee: Value, given: Call) -> Value:
    """What calling a value gives."""
    thing = callee.thing
    if isinstance(thing, Partial):
        first = thing.given
        merged = Call(given.node, [*first.positional, *given.positional], {**first.keywords, **given.keywords})
        return invoke(interpreter, thing.function, merged)
    if isinstance(thing, Bound):
        return enter(interpreter, thing.function, given.with_first(thing.owner), owner=thing.owner)
    if isinstance(thing, Function):
        return enter(interpreter, thing, given)
    if isinstance(thing, Class):
        return instantiate(interpreter, thing, given)
    if isinstance(thing, Instance):
        return _call_instance(interpreter, callee, thing, given)
    if isinstance(thing, Library):
        return library.call(interpreter, thing, given)
    own = [part for part in choices(callee) if isinstance(part.thing, Function | Bound | Partial | Class | Instance)]
    if thing is None and own:
        return interpreter.phi(given.node, [invoke(interpreter, part, given) for part in own])
    if callee.op == "attribute" and callee.input is not None and library.is_known_method(callee.name):
        # clear = optimizer.zero_grad; clear()
        return library.method(interpreter, callee.input, callee.name, given)
    return library.unknown_call(interpreter, callee, given)


def enter(interpreter: Interpreter, function: Function, given: Call, owner: Value | None = None) -> Value:
    """Walks through the body of a function with these arguments."""
    body, node = id(function.node), given.node
    spent = interpreter.spent.get(body, 0)
    on_stack = interpreter.running.count(body) >= TIMES_ON_STACK or len(interpreter.running) >= DEEPEST
    if on_stack or spent > MOST_OF_FUNCTION:
        arguments = numbered([*given.positional, *given.keywords.values()])
        return interpreter.new("call", node, arguments, name=function.name)
    interpreter.entered.add(body)
    calls = (*interpreter.context.calls, interpreter.place(node))
    frame = Frame(function.frame.module, outer=function.frame, owner=owner, defined_in=function.owner)
    before, interpreter.frame = interpreter.frame, frame
    first = len(interpreter.graph.values)
    interpreter.running.append(body)
    try:
        _bind(interpreter, function, given)
        template = _arguments_of_template(interpreter, function)
        context = interpreter.context
        with interpreter.under(
            no_grad=context.no_grad or function.no_grad,
            autocast=context.autocast or function.autocast,
            calls=calls,
            functions=(*context.functions, function.name),
        ):
            if isinstance(function.node, ast.Lambda):
                frame.returned.append(interpreter.evaluate(function.node.body))
            else:
                interpreter.run_body(function.node.body)
    finally:
        interpreter.running.pop()
        interpreter.spent[body] = spent + len(interpreter.graph.values) - first
        interpreter.frame = before
    if frame.yielded:
        return interpreter.listing(node, frame.yielded, exact=False)
    if not frame.returned:
        return interpreter.constant(node, None)
    output = _join(interpreter, node, frame.returned)
    if not template or any(value.op == "apply_chat_template" for value in ancestors(output)):
        return output
    return interpreter.new(
        "apply_chat_template",
        node,
        {**template, "output": output},
        name=function.name,
        constant=output.constant,
        thing=output.thing,
    )


def _arguments_of_template(interpreter: Interpreter, function: Function) -> dict[str, Value]:
    """What a chat template of the program is given, if the function is one in the manner of transformers."""
    arguments = function.node.args
    names = [parameter.arg for parameter in (*arguments.args, *arguments.kwonlyargs) if parameter.arg != "self"]
    if "add_generation_prompt" not in names:
        return {}
    variables = interpreter.frame.variables
    return {"1": variables[names[0]], "add_generation_prompt": variables["add_generation_prompt"]}


def _join(interpreter: Interpreter, node: ast.AST, returned: list[Value]) -> Value:
    """What a function with several returns gives back: tuples of one length meet part by part."""
    things = [value.thing for value in returned]
    if len(returned) > 1 and all(isinstance(thing, Listing) and thing.exact for thing in things):
        tuples = [thing.elements for thing in things]
        if all(len(elements) == len(tuples[0]) for elements in tuples):
            return interpreter.listing(node, [interpreter.phi(node, part) for part in zip(*tuples, strict=True)])
    return interpreter.phi(node, returned)


def _bind(interpreter: Interpreter, function: Function, given: Call) -> None:
    arguments, node = function.node.args, given.node
    positional, keywords = given.positional, given.keywords
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    known = [*names, *(argument.arg for argument in arguments.kwonlyargs)]
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    spread = any(value.op == "starred" for value in positional)
    plain = function.owner is None and not getattr(function.node, "decorator_list", None)
    if plain and not spread and arguments.vararg is None and len(positional) > len(names):
        interpreter.new("misfit", node, name=function.name)  # this call raises
    certain = takewhile(lambda value: value.op != "starred", positional)
    variables = dict(zip(names, certain, strict=False))
    if arguments.vararg is not None:
        variables[arguments.vararg.arg] = interpreter.listing(node, positional[len(names) :], exact=not spread)
    variables |= {name: value for name, value in keywords.items() if name in known}
    if arguments.kwarg is not None:
        rest = {name: value for name, value in keywords.items() if name not in known and name != "**"}
        table = Table(rest, [keywords["**"]] if "**" in keywords else [])
        variables[arguments.kwarg.arg] = interpreter.new("table", node, thing=table)
    for name in known:
        default = function.defaults.get(name)
        if name in variables:
            continue
        if default is not None and not spread and "**" not in keywords:
            variables[name] = default
        else:
            annotation = next((part.annotation for part in parameters if part.arg == name), None)
            declared = _declared(interpreter, function, annotation) if annotation is not None else None
            if declared is not None and default is None:
                variables[name] = declared
                continue
            variables[name] = interpreter.new("parameter", function.node, name=name)
            if default is not None and default.constant is not UNKNOWN:
                variables[name].arguments["default"] = default
    for name, value in variables.items():
        interpreter.store(name, value)


def _declared(interpreter: Interpreter, function: Function, annotation: ast.expr) -> Value | None:
    """What a parameter that is given nothing may be, where it is declared: `batch: Batch`, `rows: list[Row]`.

    Records that the program has made elsewhere are meant; None where it has made none.
    """
    names = [getattr(part, "id", getattr(part, "value", None)) for part in ast.walk(annotation)]
    frame: Frame | None = function.frame
    found: Value | None = None
    while frame is not None and found is None:
        found = next(
            (frame.variables[name] for name in names if isinstance(name, str) and name in frame.variables), None
        )
        frame = frame.outer
    cls = interpreter.resolve(found).thing if found is not None else None
    if not isinstance(cls, Class) or not cls.is_record:
        return None
    made = [value for value in interpreter.graph.of("instance") if value.thing.cls is cls][-MOST_DECLARED:]
    if not made:
        return None
    record = interpreter.phi(function.node, made)
    is_many = isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "") in _MANY
    return interpreter.listing(function.node, [record], exact=False) if is_many else record


def instantiate(interpreter: Interpreter, cls: Class, given: Call) -> Value:
    instance = Instance(cls)
    interpreter.keep(instance)
    paths = cls.library_bases()
    if library.is_optimizer_class(paths):
        return interpreter.new(
            "optimizer", given.node, library.given_to_optimizer(given), name=cls.name, thing=instance
        )
    value = interpreter.new("instance", given.node, name=cls.name, thing=instance)
    start = cls.method("__init__")
    if start is not None:
        enter(interpreter, start, given.with_first(value), owner=value)
    elif cls.is_record:
        fields = cls.all_fields()
        named = {**dict(zip(fields, given.positional, strict=False)), **given.keywords}
        for name in fields:
            default = cls.member(name)
            if name in named:
                interpreter.heap[id(instance), name] = named[name]
            elif default is not None:
                interpreter.heap[id(instance), name] = library.field_default(interpreter, default, given.node)
        after = cls.method("__post_init__")
        if after is not None:
            enter(interpreter, after, Call(given.node, [value]), owner=value)
    elif paths:
        _keep_given(interpreter, value, given)
    return value


def _keep_given(interpreter: Interpreter, owner: Value, given: Call) -> None:
    """What an object gives to the __init__ of a library's class: such a class keeps it under the same name."""
    for name, value in given.keywords.items():
        interpreter.heap.setdefault_at((id(owner.thing), name), value)
    for name in ("policy", "policy_model", "actor"):
        if name in given.keywords:
            interpreter.heap.setdefault_at((id(owner.thing), "model"), given.keywords[name])


def _call_instance(interpreter: Interpreter, callee: Value, instance: Instance, given: Call) -> Value:
    member = instance.member("__call__") or instance.member("forward")
    if member is None or not isinstance(member.thing, Function):
        return library.unknown_call(interpreter, callee, given)
    first = len(interpreter.graph.values)
    output = enter(interpreter, member.thing, given.with_first(callee), owner=callee)
    if not instance.cls.is_module or not any(map(_has_weights, interpreter.graph.values[first:])):
        return output  # a loss that is written as a module is arithmetic, not a network
    names = [argument.arg for argument in member.thing.node.args.args[1:]]
    arguments = {**dict(zip(names, given.positional, strict=False)), **given.keywords}
    return _forward(interpreter, callee, output, arguments, given.node)


def _has_weights(value: Value) -> bool:
    """Whether a step of a forward pass asks a layer, a network or a tensor of weights."""
    if value.op == "forward":
        return not library.is_without_weights(value.name)
    if value.op == "super" or (value.op == "call" and "callee" in value.arguments):
        return True
    return any(part.op in library.MODELS and part.op != "instance" for part in value.inputs)


def _forward(
    interpreter: Interpreter, model: Value, output: Value, arguments: dict[str, Value], node: ast.AST
) -> Value:
    """The output of a network of the program: what its forward computed, and which network it was."""
    if isinstance(output.thing, Listing) and output.thing.exact:
        parts = [_forward(interpreter, model, part, arguments, node) for part in output.thing.elements]
        return interpreter.listing(node, parts)
    if isinstance(output.thing, Table | Instance):
        return output
    given = {f"given_{name}": value for name, value in arguments.items()}
    return interpreter.new("forward", node, {"model": model, "output": output, **given})


def _super(interpreter: Interpreter, name: str, given: Call) -> Value:
    owner, within = interpreter.frame.owner, interpreter.frame.defined_in
    if owner is not None and isinstance(owner.thing, Instance) and within is not None:
        line = owner.thing.cls.ancestry()
        for ancestor in line[line.index(within) + 1 :] if within in line else []:
            member = ancestor.members.get(name)
            if member is not None and isinstance(member.thing, Function):
                return enter(interpreter, member.thing, given.with_first(owner), owner=owner)
        if name == "__init__":
            _keep_given(interpreter, owner, given)
    return interpreter.new("super", given.node, numbered([*given.positional, *given.keywords.values()]), name=name)
