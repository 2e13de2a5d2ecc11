"""Names that are read before anything can have bound them: the order of statements in a function or a module."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from assay.programs.names.scopes import FUNCTIONS, Scope, own_nodes

_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)
_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)


def read_too_early(scope: Scope) -> Iterator[ast.Name]:
    """Names of the scope that no path to them binds. A name that some path binds is not one of them."""
    node = scope.node
    own = {name for name in scope.bound if name not in scope.globals and name not in scope.nonlocals}
    if isinstance(node, ast.Lambda | ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp):
        return
    given: set[str] = set()
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        arguments = node.args
        parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        given = {parameter.arg for parameter in parameters if parameter is not None}
        given |= {parameter.name for parameter in getattr(node, "type_params", [])}
        # what a function within, or the module, may bind in its place
        given |= {name for inner in scope.all() if inner is not scope for name in inner.nonlocals | inner.globals}
    walk = _Order(own)
    walk.run(node.body, given)  # type: ignore[attr-defined]
    yield from walk.early


class _Order:
    def __init__(self, own: set[str]) -> None:
        self.own = own
        self.early: list[ast.Name] = []

    def run(self, body: Sequence[ast.stmt], may: set[str]) -> set[str] | None:
        """What may be bound after the statements; None if nothing runs after them."""
        here: set[str] | None = set(may)
        for statement in body:
            assert here is not None
            here = self.statement(statement, here)
            if here is None:
                return None
        return here

    def statement(self, node: ast.stmt, may: set[str]) -> set[str] | None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return self._definition(node, may)
        if isinstance(node, ast.If):
            self.read(node.test, may)
            may = may | bound_by(node.test)
            return _either(self.run(node.body, may), self.run(node.orelse, may))
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            return self._loop(node, may)
        if isinstance(node, ast.Try | ast.TryStar):
            return self._try(node, may)
        if isinstance(node, ast.With | ast.AsyncWith):
            for item in node.items:
                self.read(item.context_expr, may)
                may = may | bound_by(item)
            after = self.run(node.body, may)
            # a context manager may swallow what the body raises
            return may | _all_bound(node.body) if after is None and _may_raise(node.body) else after
        if isinstance(node, ast.Match):
            self.read(node.subject, may)
            ends = [self.run(case.body, may | bound_by(case.pattern)) for case in node.cases]
            return _either(may, *ends)
        if isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name):
                read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
                self.read(read, may)
            else:
                self.read(node.target, may)
            self.read(node.value, may)
            return may | bound_by(node)
        self.read(node, may)
        return None if isinstance(node, _ENDS) else may | bound_by(node)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, may: set[str]) -> set[str]:
        for decorator in node.decorator_list:
            self.read(decorator, may)
        if isinstance(node, ast.ClassDef):
            for base in (*node.bases, *node.keywords):
                self.read(base, may)
        else:
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if default is not None:
                    self.read(default, may)
        return may | {node.name}

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, may: set[str]) -> set[str] | None:
        bound = _all_bound(node.body)
        if isinstance(node, ast.While):
            bound |= bound_by(node.test)
            self.read(node.test, may | bound)
        else:
            self.read(node.iter, may)
            may = may | bound_by(node.iter)
            bound |= bound_by(node.target)
        self.run(node.body, may | bound)
        after = may | bound
        ends = self.run(node.orelse, after)
        return after if ends is None or _has_break(node.body) else ends

    def _try(self, node: ast.Try | ast.TryStar, may: set[str]) -> set[str] | None:
        end = self.run(node.body, may)
        within = may | _all_bound(node.body)
        if end is not None:
            end = self.run(node.orelse, end)
        ends = [self.run(handler.body, within | {handler.name or ""}) for handler in node.handlers]
        after = _either(end, *ends)
        all_bound = within | _all_bound(node.orelse) | {name for h in node.handlers for name in _all_bound(h.body)}
        final = self.run(node.finalbody, all_bound)
        if final is None or after is None:
            return None
        return after | _all_bound(node.finalbody)

    def read(self, node: ast.AST, may: set[str]) -> None:
        """Reports names in an expression, those of comprehensions too: they run at once."""
        hidden: set[str] = set()
        for part in _now(node):
            if isinstance(part, ast.comprehension):
                hidden |= bound_by(part.target)
        may = may | hidden | bound_by(node)
        for part in _now(node):
            if not isinstance(part, ast.Name) or isinstance(part.ctx, ast.Store):
                continue
            if part.id in self.own and part.id not in may:
                self.early.append(part)


def _now(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of an expression that are evaluated where it stands; annotations are not."""
    waiting = [node]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, ast.AnnAssign):
            waiting += [child for child in (part.target, part.value) if child is not None]
        elif not isinstance(part, (*FUNCTIONS, ast.ClassDef, ast.GeneratorExp)):
            waiting += ast.iter_child_nodes(part)


def bound_by(node: ast.AST) -> set[str]:
    """Names that a statement or an expression binds."""
    found: set[str] = set()
    for part in own_nodes([node]):
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            found.add(part.id)
        elif isinstance(part, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.partition(".")[0] for alias in part.names}
        elif isinstance(part, _NAMED) and part.name:
            found.add(part.name)
        elif isinstance(part, ast.MatchMapping) and part.rest:
            found.add(part.rest)
        elif isinstance(part, ast.Global | ast.Nonlocal):
            found |= set(part.names)
    return found


def _all_bound(body: Sequence[ast.stmt]) -> set[str]:
    return {name for statement in body for name in bound_by(statement)}


def _either(*ends: set[str] | None) -> set[str] | None:
    known = [end for end in ends if end is not None]
    return set().union(*known) if known else None


def _may_raise(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Raise) for node in own_nodes(body))


def _has_break(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(node, ast.Break) for node in own_nodes(body))
