"""Statements --> what they change: names, the heap, and the circumstances under which values are made.

A statement gives True when nothing after it runs.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from assay.programs.graph import Branch, Value, canonical
from assay.programs.read.access import assign
from assay.programs.read.collections import each, element, extend
from assay.programs.read.definitions import NO_GRAD
from assay.programs.read.expressions import BINARY, binary, truth
from assay.programs.read.interpreter import Interpreter
from assay.programs.read.library import is_model
from assay.programs.read.switches import switches_network
from assay.programs.read.things import Class, Function, Instance, Library, Listing


def _expression(interpreter: Interpreter, node: ast.Expr) -> None:
    value = interpreter.evaluate(node.value)
    function = node.value.func if isinstance(node.value, ast.Call) else None
    if isinstance(function, ast.Attribute) and function.attr.endswith("_") and not function.attr.endswith("__"):
        if function.attr == "copy_" and isinstance(node.value, ast.Call) and node.value.args:
            value = interpreter.evaluate(node.value.args[0])  # its numbers are those of the other from here on
        in_place = function.attr == "copy_" or canonical(function.attr) not in (None, "cast", "clip_grad_norm")
        if in_place and isinstance(function.value, ast.Name):
            interpreter.new("in_place", node, {"input": value}, name=function.attr)
            interpreter.store(function.value.id, value)


def _assign(interpreter: Interpreter, node: ast.Assign) -> None:
    value = interpreter.evaluate(node.value)
    for target in node.targets:
        assign(interpreter, target, value, node)


def _annassign(interpreter: Interpreter, node: ast.AnnAssign) -> None:
    if node.value is not None:
        assign(interpreter, node.target, interpreter.evaluate(node.value), node)


def _augassign(interpreter: Interpreter, node: ast.AugAssign) -> None:
    loaded = interpreter.evaluate(node.target)
    right = interpreter.evaluate(node.value)
    if isinstance(loaded.thing, Listing) and isinstance(node.op, ast.Add):
        extend(interpreter, loaded, loaded.thing, right, node)
        return
    value = binary(interpreter, BINARY[type(node.op)], loaded, right, node)
    interpreter.new("in_place", node, {"input": value, "target": loaded}, name="augmented")
    assign(interpreter, node.target, value, node)


def _delete(interpreter: Interpreter, node: ast.Delete) -> None:
    for target in node.targets:
        if isinstance(target, ast.Name):
            interpreter.frame.variables.forget(target.id)


def _return(interpreter: Interpreter, node: ast.Return) -> bool:
    interpreter.frame.returned.append(interpreter.evaluate(node.value))
    return True


def _raise(interpreter: Interpreter, node: ast.Raise) -> bool:
    if node.exc is not None:
        interpreter.evaluate(node.exc)
    return True


def _break(interpreter: Interpreter, node: ast.Break | ast.Continue) -> bool:
    interpreter.leave_loop()
    return True


def _assert(interpreter: Interpreter, node: ast.Assert) -> None:
    interpreter.new("assert", node, {"input": interpreter.evaluate(node.test)})


def _if(interpreter: Interpreter, node: ast.If) -> bool:
    if _is_main(node.test):
        return interpreter.run_body(node.body if interpreter.frame.module.name == "__main__" else node.orelse)
    condition = interpreter.evaluate(node.test)
    known = truth(condition)
    if known is not None:
        return interpreter.run_body(node.body if known else node.orelse)
    place = interpreter.place(node.test)
    left: list[bool] = []

    def side(holds: bool) -> bool:
        stopped = interpreter.run_body(node.body if holds else node.orelse)
        if stopped:
            left.append(holds)
        return stopped

    sides = [(Branch(place, condition, holds), partial(side, holds)) for holds in (True, False)]
    stopped = interpreter.alternatives(node, sides)
    if len(left) == 1:  # what follows runs on the other side alone
        rest = Branch(place, condition, not left[0])
        interpreter.context = replace(interpreter.context, branches=(*interpreter.context.branches, rest))
    return stopped


def _for(interpreter: Interpreter, node: ast.For | ast.AsyncFor) -> None:
    source = interpreter.evaluate(node.iter)
    entries = each(interpreter, source, node) if source.op == "items" or _names_parts(node) else None

    def turn() -> bool:
        if entries is None:
            assign(interpreter, node.target, element(interpreter, source, node.iter), node)
            return interpreter.run_body(node.body)
        stopped = False
        for entry in entries:  # of a dictionary, one by one: for name, tensor in batch.items()
            assign(interpreter, node.target, entry, node)
            stopped = interpreter.run_body(node.body)
        return stopped

    interpreter.repeat(node, source, node.body, turn)
    interpreter.run_body(node.orelse)


def _names_parts(node: ast.For | ast.AsyncFor) -> bool:
    """Whether the loop's variable says which part is meant: getattr(x, name), x[name], field.name."""
    if not isinstance(node.target, ast.Name):
        return False
    name = node.target.id
    for part in (part for statement in node.body for part in ast.walk(statement)):
        keys = [part.slice] if isinstance(part, ast.Subscript) else []
        if isinstance(part, ast.Call) and getattr(part.func, "id", "") in ("getattr", "setattr") and len(part.args) > 1:
            keys = [part.args[1]]
        for key in keys:
            inner = key.value if isinstance(key, ast.Attribute) else key
            if isinstance(inner, ast.Name) and inner.id == name:
                return True
    return False


def _while(interpreter: Interpreter, node: ast.While) -> None:
    def turn() -> bool:
        interpreter.evaluate(node.test)
        return interpreter.run_body(node.body)

    interpreter.repeat(node, None, node.body, turn)
    interpreter.run_body(node.orelse)


def _try(interpreter: Interpreter, node: ast.Try) -> bool:
    handled = any(_swallows(handler) for handler in node.handlers)

    def body() -> bool:
        with interpreter.under(handled=interpreter.context.handled or handled):
            return interpreter.run_body(node.body) or interpreter.run_body(node.orelse)

    handlers = [(None, partial(_handle, interpreter, handler)) for handler in node.handlers]
    stopped = interpreter.alternatives(node, [(None, body), *handlers])
    return interpreter.run_body(node.finalbody) or stopped


def _handle(interpreter: Interpreter, handler: ast.ExceptHandler) -> bool:
    if handler.name:
        interpreter.store(handler.name, interpreter.new("exception", handler))
    with interpreter.under(in_handler=True):
        return interpreter.run_body(handler.body)


def _match(interpreter: Interpreter, node: ast.Match) -> bool:
    subject = interpreter.evaluate(node.subject)
    place = interpreter.place(node)
    cases = [(Branch(place, subject, True), partial(interpreter.run_body, case.body)) for case in node.cases]
    return interpreter.alternatives(node, [*cases, (Branch(place, subject, False), lambda: False)])


def _with(interpreter: Interpreter, node: ast.With | ast.AsyncWith) -> bool:
    changes: dict[str, Any] = {}
    for item in node.items:
        value = interpreter.evaluate(item.context_expr)
        changes |= _circumstances(interpreter, item.context_expr, value)
        if item.optional_vars is not None:
            assign(interpreter, item.optional_vars, _entered(interpreter, value, node), node)
    with interpreter.under(**changes):
        return interpreter.run_body(node.body)


def _entered(interpreter: Interpreter, manager: Value, node: ast.AST) -> Value:
    """What `with ... as` binds: a library's manager that is given a network gives it back, in another state."""
    network = next((value for value in manager.inputs if is_model(value)), None) if manager.op == "call" else None
    if network is None:
        return manager
    return interpreter.new("wrapped", node, {"0": network}, name=manager.name, thing=network.thing)


def _circumstances(interpreter: Interpreter, node: ast.expr, value: Value) -> dict[str, Any]:
    last = value.name.rpartition(".")[2]
    if isinstance(value.thing, Library):
        last = value.thing.last
    if last in NO_GRAD:
        return {"no_grad": True}
    if last.startswith("no_grad"):  # misspelt: it raises, and nobody knows what was meant
        return {"grad_unknown": True}
    if last == "set_grad_enabled":
        enabled = value.setting("0", value.setting("mode"))
        return {"no_grad": not enabled} if isinstance(enabled, bool) else {"grad_unknown": True}
    if last == "enable_grad":
        return {"no_grad": False}
    if last == "autocast":
        return {"autocast": value.setting("enabled", True) is not False}
    if last == "disable_adapter":
        return {"adapter_off": True}
    if value.op == "phi":
        found: dict[str, Any] = {}
        for alternative in value.inputs:
            inner = _circumstances(interpreter, node, alternative)
            found |= {"grad_unknown": True} if "no_grad" in inner else {}
            found |= {"adapter_off": True} if "adapter_off" in inner else {}
            found |= {"autocast": True} if inner.get("autocast") else {}
        return found
    manager = _own_manager(interpreter, node)
    if manager is None:
        return {}
    found = {"grad_unknown": True} if _may_stop_gradients(manager) else {}
    return found | ({"adapter_off": True} if not _is_given_true(node) and switches_network(manager) else {})


def _is_given_true(node: ast.expr) -> bool:
    """with adapters(on=True): a manager that switches on as well."""
    given = [*node.args, *(keyword.value for keyword in node.keywords)] if isinstance(node, ast.Call) else []
    return any(isinstance(part, ast.Constant) and part.value is True for part in given)


def _own_manager(interpreter: Interpreter, node: ast.expr) -> Function | Class | None:
    """The function or class of the program that makes a context manager."""
    function = node.func if isinstance(node, ast.Call) else None
    if not isinstance(function, ast.Name | ast.Attribute):
        return None
    name = function.id if isinstance(function, ast.Name) else function.attr
    made = interpreter.lookup(name, function) if isinstance(function, ast.Name) else None
    if isinstance(function, ast.Attribute):
        base = interpreter.evaluate(function.value)
        made = base.thing.member(name) if isinstance(base.thing, Instance) else None
    return made.thing if made is not None and isinstance(made.thing, Function | Class) else None


def _may_stop_gradients(manager: Function | Class) -> bool:
    """A context manager of the program that somewhere says no_grad."""
    return any(
        getattr(part, "attr", getattr(part, "id", "")) in (*NO_GRAD, "set_grad_enabled")
        for part in ast.walk(manager.node)
    )


def _swallows(handler: ast.ExceptHandler) -> bool:
    """Whether the handler goes on as if nothing had been raised."""
    return not any(isinstance(node, ast.Raise) for statement in handler.body for node in ast.walk(statement))


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"


STATEMENTS: dict[type[ast.stmt], Callable[[Interpreter, Any], bool | None]] = {
    ast.AnnAssign: _annassign,
    ast.Assert: _assert,
    ast.Assign: _assign,
    ast.AsyncFor: _for,
    ast.AsyncWith: _with,
    ast.AugAssign: _augassign,
    ast.Break: _break,
    ast.Continue: _break,
    ast.Delete: _delete,
    ast.Expr: _expression,
    ast.For: _for,
    ast.If: _if,
    ast.Match: _match,
    ast.Raise: _raise,
    ast.Return: _return,
    ast.Try: _try,
    ast.TryStar: _try,
    ast.While: _while,
    ast.With: _with,
}
