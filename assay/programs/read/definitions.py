"""Functions, classes and imports; and the functions that nothing in a program calls."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from typing import Any

from assay.programs.graph import Value
from assay.programs.read.calls import enter, instantiate
from assay.programs.read.expressions import defaults_of
from assay.programs.read.interpreter import OUTSIDE, Interpreter
from assay.programs.read.things import Call, Class, Function, Instance, Listing, Module, Pending, Table

NO_GRAD = ("no_grad", "inference_mode")
_RECORDS = ("dataclass", "NamedTuple", "BaseModel", "Struct", "define", "TypedDict")
# methods of a subclass that return the loss, and what such a class is derived from
_LOSSES = ("compute_loss", "_compute_loss", "training_step")
_FRAMEWORKS = ("Trainer", "LightningModule")


def _function(interpreter: Interpreter, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    interpreter.store(node.name, define(interpreter, node, None))


def define(interpreter: Interpreter, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: Class | None) -> Value:
    function = Function(node, interpreter.frame, owner)
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        last = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
        if last in NO_GRAD:
            function.no_grad = True
        elif last == "autocast":
            function.autocast = True
        elif last in ("staticmethod", "classmethod"):
            function.kind = last.removesuffix("method")
        elif last in ("property", "cached_property"):
            function.kind = "property"
    function.defaults = defaults_of(interpreter, node.args)
    return interpreter.new("function", node, name=node.name, thing=function)


def _class(interpreter: Interpreter, node: ast.ClassDef) -> None:
    bases = [interpreter.evaluate(base) for base in node.bases]
    made = Class(node.name, node, interpreter.frame, bases)
    names = [ast.unparse(decorator) for decorator in node.decorator_list] + made.library_bases()
    made.is_record = any(word in name for name in names for word in _RECORDS) or any(
        isinstance(base.thing, Class) and base.thing.is_record for base in bases
    )
    made.is_tuple = any(name.endswith("NamedTuple") for name in names) or any(
        isinstance(base.thing, Class) and base.thing.is_tuple for base in bases
    )
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            made.members[statement.name] = define(interpreter, statement, made)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            made.fields.append(statement.target.id)
            if statement.value is not None:
                made.members[statement.target.id] = interpreter.evaluate(statement.value)
        elif isinstance(statement, ast.Assign):
            value = interpreter.evaluate(statement.value)
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    made.members[target.id] = value
                    interpreter.name(value, target.id)
    interpreter.store(node.name, interpreter.new("class", node, name=node.name, thing=made))


def _import(interpreter: Interpreter, node: ast.Import) -> None:
    for alias in node.names:
        name = alias.asname or alias.name.partition(".")[0]
        interpreter.store(name, _bring(interpreter, node, partial(_module_as, interpreter, node, alias)))


def _bring(interpreter: Interpreter, node: ast.stmt, bring: Callable[[], Value]) -> Value:
    """The script's own imports and those in functions are read at once, those of other files when they are used."""
    frame = interpreter.frame
    if frame.module.name == "__main__" or frame is not frame.module.frame:
        return bring()
    return interpreter.new("library", node, thing=Pending(bring, interpreter.frame))


def _module_as(interpreter: Interpreter, node: ast.Import, alias: ast.alias) -> Value:
    module = _find(interpreter, alias.name)
    if module is not None:
        table = _as_table(module)
        if not alias.asname:  # import package.part: the name is that of the package
            for part in reversed(alias.name.split(".")[1:]):
                table = Table({part: interpreter.new("library", node, name=part, thing=table)}, is_namespace=True)
            before = interpreter.frame.variables.get(alias.name.partition(".")[0])
            if "." in alias.name and before is not None and isinstance(before.thing, Table):
                table.entries = {**before.thing.entries, **table.entries}
        return interpreter.new("library", node, name=alias.name, thing=table)
    return interpreter.library(node, alias.name if alias.asname else alias.name.partition(".")[0])


def _importfrom(interpreter: Interpreter, node: ast.ImportFrom) -> None:
    path = "." * node.level + (node.module or "")
    for alias in node.names:
        if alias.name == "*":
            module = _find(interpreter, path)
            for name, value in list(module.frame.variables.items()) if module is not None else ():
                interpreter.frame.variables[name] = value
        else:
            name = alias.asname or alias.name
            interpreter.frame.variables[name] = _bring(
                interpreter, node, partial(_part_of, interpreter, node, path, alias.name)
            )


def _part_of(interpreter: Interpreter, node: ast.ImportFrom, path: str, name: str) -> Value:
    module = _find(interpreter, path, name)
    if module is not None and name in module.frame.variables:
        return interpreter.resolve(module.frame.variables[name])
    inner = _find(interpreter, f"{path.rstrip('.')}.{name}" if node.module else f"{path}{name}")
    if inner is not None:
        return interpreter.new("library", node, thing=_as_table(inner))
    return interpreter.library(node, f"{path.lstrip('.')}.{name}".lstrip("."))


def _find(interpreter: Interpreter, path: str, part: str = "") -> Module | None:
    """A file of the program, walked through once; None for a library. `part` is what is wanted of it."""
    module = interpreter.find_module(path, interpreter.frame.module, part)
    if module is None:
        return None
    if module.file not in interpreter.modules:
        interpreter.modules[module.file] = module
        with interpreter.under(**OUTSIDE):
            interpreter.run_module(module)
    return interpreter.modules[module.file]


def run_uncalled(interpreter: Interpreter, module: Module) -> None:
    """Walks through functions that nothing in the program calls, with arguments of which nothing is known.

    Those that no other one uses come first: they call the others with what these get.
    """
    interpreter.frame = module.frame
    used = _used_names(module.tree)
    values = [value for value in module.frame.variables.values() if getattr(value.thing, "frame", None) is not None]
    functions = [value.thing for value in values if isinstance(value.thing, Function)]
    own = [function for function in functions if function.frame.module is module]
    for function in own:
        if function.name not in used and not interpreter.was_entered(function):
            enter(interpreter, function, Call(function.node))
    for value in sorted(values, key=lambda value: value.name in used):
        if isinstance(value.thing, Class) and value.thing.frame.module is module and value.op == "class":
            _enter_class(interpreter, value, value.thing, used)
    for function in own:
        if not interpreter.was_entered(function):
            enter(interpreter, function, Call(function.node))


def _used_names(tree: ast.Module) -> set[str]:
    """Names of functions and methods that something in the file uses, or that Python and torch call by themselves."""
    used = {"forward"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Load):
            used.add(node.attr if isinstance(node, ast.Attribute) else node.id)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("__"):
            used.add(node.name)
    return used


def _enter_class(interpreter: Interpreter, value: Value, cls: Class, used: set[str]) -> None:
    methods = [
        member.thing
        for ancestor in cls.ancestry()
        for member in ancestor.members.values()
        if isinstance(member.thing, Function) and not interpreter.was_entered(member.thing)
    ]
    if not methods:
        return
    objects = interpreter.graph.of("instance", "optimizer")
    known = (value for value in objects if isinstance(value.thing, Instance) and value.thing.cls is cls)
    made = next(known, None) or instantiate(interpreter, cls, Call(cls.node))
    for function in sorted(methods, key=lambda function: function.name in used):
        if not interpreter.was_entered(function):
            owner = {"static": [], "class": [value]}.get(function.kind, [made])
            returned = enter(interpreter, function, Call(function.node, list(owner)), owner=made)
            if function.name in _LOSSES and any(path.endswith(_FRAMEWORKS) for path in cls.library_bases()):
                _differentiate(interpreter, returned, function.node)


def _differentiate(interpreter: Interpreter, returned: Value, node: ast.AST) -> None:
    """What a trainer of a library asks for as its loss: the library calls backward() on it."""
    parts = returned.thing.elements if isinstance(returned.thing, Listing) else []
    loss = parts[0] if parts else returned
    if loss.constant is not None:
        interpreter.new("backward", node, {"input": loss}, name="framework")


def _as_table(module: Module) -> Table:
    return Table(dict(module.frame.variables), is_namespace=True)


DEFINITIONS: dict[type[ast.stmt], Callable[[Interpreter, Any], bool | None]] = {
    ast.AsyncFunctionDef: _function,
    ast.ClassDef: _class,
    ast.FunctionDef: _function,
    ast.Global: lambda interpreter, node: interpreter.frame.globals.update(node.names),
    ast.Import: _import,
    ast.ImportFrom: _importfrom,
    ast.Nonlocal: lambda interpreter, node: interpreter.frame.nonlocals.update(node.names),
}
