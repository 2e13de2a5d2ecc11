"""Functions, classes and imports; and the functions that nothing in a program calls."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import partial

from assay.programs.graph import Value
from assay.programs.read.calls import Calls
from assay.programs.read.machine import OUTSIDE
from assay.programs.read.things import Class, Function, Instance, Listing, Module, Pending, Table

NO_GRAD = ("no_grad", "inference_mode")
_RECORDS = ("dataclass", "NamedTuple", "BaseModel", "Struct", "define", "TypedDict")


# methods of a subclass that return the loss, and what such a class is derived from
_LOSSES = ("compute_loss", "_compute_loss", "training_step")
_FRAMEWORKS = ("Trainer", "LightningModule")


class Definitions(Calls):
    def run_module(self, module: Module) -> None:
        raise NotImplementedError

    def _run_functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.store(node.name, self.define(node, None))

    _run_asyncfunctiondef = _run_functiondef

    def define(self, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: Class | None) -> Value:
        function = Function(node, self.frame, owner)
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
        function.defaults = self.defaults_of(node.args)
        return self.new("function", node, name=node.name, thing=function)

    def _run_classdef(self, node: ast.ClassDef) -> None:
        bases = [self.evaluate(base) for base in node.bases]
        made = Class(node.name, node, self.frame, bases)
        names = [ast.unparse(decorator) for decorator in node.decorator_list] + made.library_bases()
        made.is_record = any(word in name for name in names for word in _RECORDS) or any(
            isinstance(base.thing, Class) and base.thing.is_record for base in bases
        )
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                made.members[statement.name] = self.define(statement, made)
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                made.fields.append(statement.target.id)
                if statement.value is not None:
                    made.members[statement.target.id] = self.evaluate(statement.value)
            elif isinstance(statement, ast.Assign):
                value = self.evaluate(statement.value)
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        made.members[target.id] = value
        self.store(node.name, self.new("class", node, name=node.name, thing=made))

    def _run_global(self, node: ast.Global) -> None:
        self.frame.globals |= set(node.names)

    def _run_nonlocal(self, node: ast.Nonlocal) -> None:
        self.frame.nonlocals |= set(node.names)

    # imports

    def _run_import(self, node: ast.Import) -> None:
        for alias in node.names:
            name = alias.asname or alias.name.partition(".")[0]
            self.store(name, self._brought(node, partial(self._module_as, node, alias)))

    def _brought(self, node: ast.stmt, bring: Callable[[], Value]) -> Value:
        """The script's own imports are read at once, those of other files when their names are used."""
        if self.frame.module.name == "__main__":
            return bring()
        return self.new("library", node, thing=Pending(bring, self.frame))

    def _module_as(self, node: ast.Import, alias: ast.alias) -> Value:
        module = self._imported(alias.name)
        if module is not None and (alias.asname or "." not in alias.name):
            return self.new("library", node, name=alias.name, thing=_as_table(module))
        return self.library(node, alias.name if alias.asname else alias.name.partition(".")[0])

    def _run_importfrom(self, node: ast.ImportFrom) -> None:
        path = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                module = self._imported(path)
                for name, value in list(module.frame.variables.items()) if module is not None else ():
                    self.frame.variables[name] = value
            else:
                name = alias.asname or alias.name
                self.frame.variables[name] = self._brought(node, partial(self._part_of, node, path, alias.name))

    def _part_of(self, node: ast.ImportFrom, path: str, name: str) -> Value:
        module = self._imported(path)
        if module is not None and name in module.frame.variables:
            return self.arrived(module.frame.variables[name], node)
        inner = self._imported(f"{path.rstrip('.')}.{name}" if node.module else f"{path}{name}")
        if inner is not None:
            return self.new("library", node, thing=_as_table(inner))
        return self.library(node, f"{path.lstrip('.')}.{name}".lstrip("."))

    def _imported(self, path: str) -> Module | None:
        """A file of the program next to this one, walked through once; None for a library."""
        module = self.find_module(path, self.frame.module)
        if module is None:
            return None
        if module.file not in self.modules:
            self.modules[module.file] = module
            with self.under(**OUTSIDE):
                self.run_module(module)
        return self.modules[module.file]

    # what nothing calls

    def run_uncalled(self, modules: Sequence[Module]) -> None:
        """Walks through functions that nothing in the program calls, with arguments of which nothing is known."""
        for module in modules:
            self.frame = module.frame
            for value in list(module.frame.variables.values()):
                if isinstance(value.thing, Class) and value.thing.frame.module is module and value.op == "class":
                    self._run_class(value, value.thing)
            for value in list(module.frame.variables.values()):
                function = value.thing
                if (
                    isinstance(function, Function)
                    and function.frame.module is module
                    and not self.was_entered(function)
                ):
                    self.enter(function, [], {}, function.node)

    def _run_class(self, value: Value, of: Class) -> None:
        methods = [
            member.thing
            for one in of.ancestry()
            for member in one.members.values()
            if isinstance(member.thing, Function) and not self.was_entered(member.thing)
        ]
        if not methods:
            return
        made = next(
            (one for one in self.graph.of("instance") if isinstance(one.thing, Instance) and one.thing.of is of), None
        )
        if made is None:
            made = self.instantiate(value, of, [], {}, of.node)
        for function in methods:
            if not self.was_entered(function):
                owner = (
                    [made] if function.kind in ("function", "property") else [value] if function.kind == "class" else []
                )
                returned = self.enter(function, list(owner), {}, function.node, owner=made)
                if function.name in _LOSSES and any(path.endswith(_FRAMEWORKS) for path in of.library_bases()):
                    self._differentiated(returned, function.node)

    def _differentiated(self, returned: Value, node: ast.AST) -> None:
        """What a trainer of a library asks for as its loss: the library calls backward() on it."""
        parts = returned.thing.elements if isinstance(returned.thing, Listing) else []
        loss = parts[0] if parts else returned
        if loss.constant is not None:
            self.new("backward", node, {"input": loss}, name="framework")


def _as_table(module: Module) -> Table:
    return Table(dict(module.frame.variables), is_namespace=True)
