"""Statements --> what they change: names, the heap, and the circumstances under which values are made."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from assay.programs.graph import Branch, Value, canonical
from assay.programs.read.definitions import NO_GRAD, Definitions
from assay.programs.read.expressions import _BINARY, holds_modules
from assay.programs.read.things import Class, Function, Instance, Library, Listing, Module, Table


class Interpreter(Definitions):
    """Walks through modules. A statement gives True when nothing after it runs."""

    def run_module(self, module: Module) -> None:
        before, context = self.frame, self.context
        self.frame = module.frame
        self.run_body(module.tree.body)
        self.frame, self.context = before, context

    def run_body(self, body: Sequence[ast.stmt]) -> bool:
        before = self.context
        try:
            # not any(): where elif follows elif, each generator would take room on the C stack
            for statement in body:  # noqa: SIM110
                if self.run_statement(statement):
                    return True
            return False
        finally:
            self.context = before  # an `if` that left early held for the rest of the body

    def run_statement(self, node: ast.stmt) -> bool:
        method = getattr(self, f"_run_{type(node).__name__.lower()}", None)
        return bool(method(node)) if method is not None else False

    def _run_expr(self, node: ast.Expr) -> None:
        value = self.evaluate(node.value)
        function = node.value.func if isinstance(node.value, ast.Call) else None
        if isinstance(function, ast.Attribute) and function.attr.endswith("_") and not function.attr.endswith("__"):
            if function.attr == "copy_" and isinstance(node.value, ast.Call) and node.value.args:
                value = self.evaluate(node.value.args[0])  # its numbers are those of the other from here on
            in_place = function.attr == "copy_" or canonical(function.attr) not in (None, "cast", "clip_grad_norm")
            if in_place and isinstance(function.value, ast.Name):
                self.new("in_place", node, {"input": value}, name=function.attr)
                self.store(function.value.id, value)

    def _run_assign(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            self.assign(target, value, node)

    def _run_annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value), node)

    def _run_augassign(self, node: ast.AugAssign) -> None:
        loaded = self.evaluate(_as_load(node.target))
        right = self.evaluate(node.value)
        if isinstance(loaded.thing, Listing) and isinstance(node.op, ast.Add):
            added = right.thing.elements if isinstance(right.thing, Listing) else [self.element(right, node)]
            self.extend(loaded, loaded.thing, right, added)
            return
        value = self.binary(_BINARY[type(node.op)], loaded, right, node)
        self.new("in_place", node, {"input": value, "target": loaded}, name="augmented")
        self.assign(node.target, value, node)

    def _run_delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.frame.variables.forget(target.id)

    def assign(self, target: ast.expr, value: Value, node: ast.AST) -> None:
        if isinstance(target, ast.Name):
            self.store(target.id, value)
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value, node)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, value, node)
        elif isinstance(target, ast.Attribute):
            base = self.evaluate(target.value)
            owner: Any = base.thing if isinstance(base.thing, Instance) else base
            if isinstance(base.thing, Table) and base.thing.is_namespace:
                base.thing.entries[target.attr] = value
            if isinstance(base.thing, Class):
                base.thing.members[target.attr] = value
            self.keep(owner)
            self.heap[id(owner), target.attr] = value
            if target.attr not in value.names and len(value.names) < 6:
                value.names.append(target.attr)
            self.new("setattr", node, {"input": base, "value": value}, name=target.attr)
        elif isinstance(target, ast.Subscript):
            self._assign_item(target, value, node)

    def _assign_item(self, target: ast.Subscript, value: Value, node: ast.AST) -> None:
        base = self.evaluate(target.value)
        parts = target.slice.elts if isinstance(target.slice, ast.Tuple) else [target.slice]
        keys = [self.evaluate(part) for part in parts]
        if isinstance(base.thing, Table):
            self.put(base.thing, keys[0], value)
            base.arguments[f"+{len(base.arguments)}"] = value
            value.users.append(base)
        elif isinstance(base.thing, Listing):
            base.thing.elements.append(value)
            base.thing.exact = False
        elif len(keys) == 1 and isinstance(keys[0].constant, str):
            self.keep(base)
            self.heap[id(base), f"[{keys[0].constant}]"] = value
        else:
            changed = self.new(
                "setitem",
                node,
                {"input": base, "value": value, **{str(number): key for number, key in enumerate(keys)}},
                thing=base.thing,
            )
            stored = _as_store(target.value)
            if isinstance(stored, ast.Name | ast.Attribute):
                self.assign(stored, changed, node)

    def _unpack(self, targets: list[ast.expr], value: Value, node: ast.AST) -> None:
        thing = value.thing
        starred = [number for number, target in enumerate(targets) if isinstance(target, ast.Starred)]
        if thing is None and holds_modules(value) and not starred:
            for number, target in enumerate(targets):
                self.assign(target, self._part_of_network(value, str(number), node), node)
            return
        if isinstance(thing, Listing) and thing.exact and len(thing.elements) == len(targets) and not starred:
            for target, part in zip(targets, thing.elements, strict=True):
                self.assign(target, part, node)
            return
        if isinstance(thing, Listing) and thing.exact and starred and len(thing.elements) >= len(targets) - 1:
            first, after = starred[0], len(targets) - starred[0] - 1
            middle = thing.elements[first : len(thing.elements) - after]
            for target, part in zip(targets[:first], thing.elements[:first], strict=True):
                self.assign(target, part, node)
            self.assign(targets[first], self.listing(node, middle), node)
            for target, part in zip(targets[first + 1 :], thing.elements[len(thing.elements) - after :], strict=True):
                self.assign(target, part, node)
            return
        for number, target in enumerate(targets):
            part = self.new("index", target, {"input": value, "0": self.constant(target, number)}, name="unpacked")
            self.assign(target, part, node)

    # flow

    def _run_return(self, node: ast.Return) -> bool:
        self.frame.returned.append(self.evaluate(node.value))
        return True

    def _run_raise(self, node: ast.Raise) -> bool:
        if node.exc is not None:
            self.evaluate(node.exc)
        return True

    def _run_break(self, node: ast.Break | ast.Continue) -> bool:
        self.leave_loop()
        return True

    _run_continue = _run_break

    def _run_assert(self, node: ast.Assert) -> None:
        self.new("assert", node, {"input": self.evaluate(node.test)})

    def _run_if(self, node: ast.If) -> bool:
        if _is_main(node.test):
            return self.run_body(node.body if self.frame.module.name == "__main__" else node.orelse)
        condition = self.evaluate(node.test)
        known = self.decided(condition)
        if known is not None:
            return self.run_body(node.body if known else node.orelse)
        place = self.place(node.test)
        left: list[bool] = []

        def side(holds: bool) -> bool:
            stopped = self.run_body(node.body if holds else node.orelse)
            if stopped:
                left.append(holds)
            return stopped

        sides = [(Branch(place, condition, holds), partial(side, holds)) for holds in (True, False)]
        stopped = self.alternatives(node, sides)
        if len(left) == 1:  # what follows runs on the other side alone
            rest = Branch(place, condition, not left[0])
            self.context = replace(self.context, branches=(*self.context.branches, rest))
        return stopped

    def _run_for(self, node: ast.For | ast.AsyncFor) -> None:
        source = self.evaluate(node.iter)
        entries = self.each(source, node) if source.op == "items" else None

        def turn() -> bool:
            if entries is None:
                self.assign(node.target, self.element(source, node.iter), node)
                return self.run_body(node.body)
            stopped = False
            for entry in entries:  # of a dictionary, one by one: for name, tensor in batch.items()
                self.assign(node.target, entry, node)
                stopped = self.run_body(node.body)
            return stopped

        self.repeated(node, source, node.body, turn)
        self.run_body(node.orelse)

    _run_asyncfor = _run_for

    def _run_while(self, node: ast.While) -> None:
        def turn() -> bool:
            self.evaluate(node.test)
            return self.run_body(node.body)

        self.repeated(node, None, node.body, turn)
        self.run_body(node.orelse)

    def _run_try(self, node: ast.Try) -> bool:
        handled = any(swallows(handler) for handler in node.handlers)

        def body() -> bool:
            with self.under(handled=self.context.handled or handled):
                return self.run_body(node.body) or self.run_body(node.orelse)

        runs: list[Any] = [(None, body)]
        for handler in node.handlers:
            runs.append((None, lambda handler=handler: self._run_handler(handler)))
        stopped = self.alternatives(node, runs)
        return self.run_body(node.finalbody) or stopped

    _run_trystar = _run_try

    def _run_handler(self, handler: ast.ExceptHandler) -> bool:
        if handler.name:
            self.store(handler.name, self.new("exception", handler))
        with self.under(in_handler=True):
            return self.run_body(handler.body)

    def _run_match(self, node: ast.Match) -> bool:
        subject = self.evaluate(node.subject)
        place = self.place(node)
        runs: list[Any] = [
            (Branch(place, subject, True), lambda case=case: self.run_body(case.body)) for case in node.cases
        ]
        runs.append((Branch(place, subject, False), lambda: False))
        return self.alternatives(node, runs)

    def _run_with(self, node: ast.With | ast.AsyncWith) -> bool:
        changes: dict[str, Any] = {}
        for item in node.items:
            value = self.evaluate(item.context_expr)
            changes |= self._circumstances(item.context_expr, value)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, node)
        with self.under(**changes):
            return self.run_body(node.body)

    _run_asyncwith = _run_with

    def _circumstances(self, node: ast.expr, value: Value) -> dict[str, Any]:
        last = value.name.rpartition(".")[2]
        if isinstance(value.thing, Library):
            last = value.thing.last
        if last in NO_GRAD:
            return {"no_grad": True}
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
            for one in value.arguments.values():
                inner = self._circumstances(node, one)
                found |= {"grad_unknown": True} if "no_grad" in inner else {}
                found |= {"adapter_off": True} if "adapter_off" in inner else {}
                found |= {"autocast": True} if inner.get("autocast") else {}
            return found
        return {"grad_unknown": True} if self._may_stop_gradients(node) else {}

    def _may_stop_gradients(self, node: ast.expr) -> bool:
        """A context manager of the program that somewhere says no_grad."""
        function = node.func if isinstance(node, ast.Call) else None
        if not isinstance(function, ast.Name | ast.Attribute):
            return False
        name = function.id if isinstance(function, ast.Name) else function.attr
        made = self.lookup(name, function) if isinstance(function, ast.Name) else None
        if isinstance(function, ast.Attribute):
            base = self.evaluate(function.value)
            made = base.thing.of.member(name) if isinstance(base.thing, Instance) else None
        if made is None or not isinstance(made.thing, Function | Class):
            return False
        return any(
            getattr(one, "attr", getattr(one, "id", "")) in (*NO_GRAD, "set_grad_enabled")
            for one in ast.walk(made.thing.node)
        )


def swallows(handler: ast.ExceptHandler) -> bool:
    """Whether the handler goes on as if nothing had been raised."""
    return not any(isinstance(node, ast.Raise) for statement in handler.body for node in ast.walk(statement))


def _as_load(target: ast.expr) -> ast.expr:
    return _with_context(target, ast.Load())


def _as_store(target: ast.expr) -> ast.expr:
    return _with_context(target, ast.Store())


def _with_context(target: ast.expr, context: ast.expr_context) -> ast.expr:
    fields = {name: getattr(target, name) for name in target._fields}
    if "ctx" in fields:
        fields["ctx"] = context
    return ast.copy_location(type(target)(**fields), target)


def _is_main(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and isinstance(test.left, ast.Name) and test.left.id == "__name__"
