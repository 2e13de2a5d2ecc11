"""A syntax tree --> its scopes: which names each binds, which it uses, and where a name is looked up."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# what Python, a notebook or Python 2 gives without an import
GIVEN = frozenset(dir(builtins)) | frozenset(
    "__file__ __path__ __annotations__ __builtins__ __class__ __module__ __qualname__ __dict__ get_ipython "
    "WindowsError display In Out _ __ ___ exit quit copyright credits license reveal_type ExceptionGroup "
    "BaseExceptionGroup aiter anext PythonFinalizationError unicode long xrange raw_input basestring unichr "
    "reduce execfile cmp file reload buffer intern apply coerce _IncompleteInputError __conditional_annotations__ "
    "profile dbutils spark sc".split()
)
# names in the test of an `if` below which a name need not exist in this Python
_VERSIONS = (
    "version",
    "PY2",
    "PY3",
    "TYPE_CHECKING",
    "platform",
    "hasattr",
    "globals",
    "locals",
    "__debug__",
    "available",
)


@dataclass(eq=False)
class Use:
    """A name that is read. `guarded`: where it does not exist, the program goes on."""

    node: ast.Name
    guarded: bool


@dataclass(eq=False)
class Scope:
    """A module, a class, a function, a lambda or a comprehension."""

    node: ast.AST
    outer: Scope | None = None
    bound: dict[str, list[ast.AST]] = field(default_factory=dict)
    uses: list[Use] = field(default_factory=list)
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    inner: list[Scope] = field(default_factory=list)
    given: dict[int, ast.expr] = field(default_factory=dict)  # what `target = value` assigns, by the id of the target

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """The nodes whose names are looked up in this scope."""
        return list(_nodes_of(self))

    @property
    def is_function(self) -> bool:
        return isinstance(self.node, FUNCTIONS)

    @property
    def is_class(self) -> bool:
        return isinstance(self.node, ast.ClassDef)

    @property
    def is_comprehension(self) -> bool:
        return isinstance(self.node, _COMPREHENSIONS)

    @property
    def module(self) -> Scope:
        return self if self.outer is None else self.outer.module

    @property
    def function(self) -> Scope | None:
        """The function around it, or itself."""
        scope: Scope | None = self
        while scope is not None and not scope.is_function:
            scope = scope.outer
        return scope

    def all(self) -> Iterator[Scope]:
        yield self
        for scope in self.inner:
            yield from scope.all()

    def holder(self, name: str) -> Scope | None:
        """The scope in which a name that is read here was bound; a class shows its names to its own statements only."""
        if name in self.globals:
            return self.module if name in self.module.bound else None
        scope: Scope | None = self
        while scope is not None:
            if name in scope.bound and name not in scope.nonlocals and (scope is self or not scope.is_class):
                return scope
            scope = scope.outer
        # a comprehension in a class sees the class only in its first iterable, which is walked in the class
        return None


class _Walk:
    """Fills the scopes; `guarded` is true below a `try` or an `if` that allows for a missing name."""

    def __init__(self, tree: ast.Module, annotations: bool) -> None:
        self.scope = Scope(tree)
        self.guarded = False
        self.annotations = annotations

    def bind(self, name: str, node: ast.AST, scope: Scope | None = None) -> None:
        scope = scope or self.scope
        if name in scope.globals:
            scope = scope.module
        elif name in scope.nonlocals:
            outer = scope.outer
            while outer is not None and (name not in outer.bound or not outer.is_function):
                outer = outer.outer
            scope = outer or scope
        scope.bound.setdefault(name, []).append(node)

    def body(self, statements: Sequence[ast.AST]) -> None:
        for statement in statements:
            self.visit(statement)

    def visit(self, node: ast.AST | None) -> None:
        if node is None:
            return
        visit = getattr(self, f"visit_{type(node).__name__.lower()}", None)
        if visit is not None:
            visit(node)
        else:
            self.body(list(ast.iter_child_nodes(node)))

    def within(self, node: ast.AST) -> Scope:
        scope = Scope(node, self.scope)
        self.scope.inner.append(scope)
        return scope

    def visit_name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.scope.uses.append(Use(node, self.guarded))
        elif isinstance(node.ctx, ast.Store):
            self.bind(node.id, node)

    def visit_namedexpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        scope = self.scope
        while scope.is_comprehension and scope.outer is not None:
            scope = scope.outer
        self.bind(node.target.id, node, scope)

    def visit_augassign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            read = ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target)
            self.scope.uses.append(Use(read, self.guarded))
        self.visit(node.target)
        self.visit(node.value)

    def visit_assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self.scope.given[id(target)] = node.value
        self.body([*node.targets, node.value])

    def visit_annassign(self, node: ast.AnnAssign) -> None:
        self.annotation(node.annotation, evaluated=not self.scope.is_function)
        if node.value is not None:
            self.scope.given[id(node.target)] = node.value
        if node.value is not None or not self.scope.is_function:
            self.visit(node.target)
        self.visit(node.value)

    def annotation(self, node: ast.AST | None, evaluated: bool = True) -> None:
        if evaluated and self.annotations:
            self.visit(node)

    def visit_import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.bind(alias.asname or alias.name.partition(".")[0], node)

    def visit_importfrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            self.bind(alias.asname or alias.name, node)

    def visit_global(self, node: ast.Global) -> None:
        self.scope.globals.update(node.names)

    def visit_nonlocal(self, node: ast.Nonlocal) -> None:
        self.scope.nonlocals.update(node.names)

    def visit_excepthandler(self, node: ast.ExceptHandler) -> None:
        self.visit(node.type)
        if node.name:
            self.bind(node.name, node)
        self.body(node.body)

    def visit_matchas(self, node: ast.MatchAs) -> None:
        self.visit(node.pattern)
        if node.name:
            self.bind(node.name, node)

    def visit_matchstar(self, node: ast.MatchStar) -> None:
        if node.name:
            self.bind(node.name, node)

    def visit_matchmapping(self, node: ast.MatchMapping) -> None:
        self.body([*node.keys, *node.patterns])
        if node.rest:
            self.bind(node.rest, node)

    def visit_functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.bind(node.name, node)
        self.body(node.decorator_list)
        self.function(node)

    visit_asyncfunctiondef = visit_functiondef

    def visit_lambda(self, node: ast.Lambda) -> None:
        self.function(node)

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        given = node.args
        self.body([*given.defaults, *(default for default in given.kw_defaults if default is not None)])
        before = self.scope
        parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs]
        parameters += [extra for extra in (given.vararg, given.kwarg) if extra is not None]
        generic = getattr(node, "type_params", [])
        if not isinstance(node, ast.Lambda) and not generic:
            for parameter in parameters:
                self.annotation(parameter.annotation)
            self.annotation(node.returns)
        self.scope = self.within(node)
        for parameter in [*generic, *parameters]:
            self.bind(getattr(parameter, "arg", "") or parameter.name, parameter)
        # global and nonlocal hold for the whole function, wherever they stand
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        for statement in own_nodes(body):
            if isinstance(statement, ast.Global):
                self.scope.globals.update(statement.names)
            elif isinstance(statement, ast.Nonlocal):
                self.scope.nonlocals.update(statement.names)
        guarded, self.guarded = self.guarded, False
        self.body(body)
        self.scope, self.guarded = before, guarded

    def visit_classdef(self, node: ast.ClassDef) -> None:
        self.bind(node.name, node)
        self.body(node.decorator_list)
        before = self.scope
        generic = getattr(node, "type_params", [])
        self.scope = self.within(node)
        for parameter in generic:
            self.bind(parameter.name, parameter)
        if generic:
            self.body([*node.bases, *node.keywords])
        else:
            inner, self.scope = self.scope, before
            self.body([*node.bases, *node.keywords])
            self.scope = inner
        self.body(node.body)
        self.scope = before

    def comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self.visit(node.generators[0].iter)
        before = self.scope
        self.scope = self.within(node)
        for number, generator in enumerate(node.generators):
            if number:
                self.visit(generator.iter)
            self.visit(generator.target)
            self.body(generator.ifs)
        self.body([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
        self.scope = before

    visit_listcomp = visit_setcomp = visit_dictcomp = visit_generatorexp = comprehension

    def visit_typealias(self, node: ast.AST) -> None:
        self.visit(node.name)  # type: ignore[attr-defined]  # its value is not evaluated here

    def visit_try(self, node: ast.Try | ast.TryStar) -> None:
        before = self.guarded
        self.guarded = before or catches_missing(node)
        self.body(node.body)
        self.guarded = before
        self.body([*node.handlers, *node.orelse, *node.finalbody])

    visit_trystar = visit_try

    def visit_if(self, node: ast.If) -> None:
        self.conditional(node.test, [node.body, node.orelse])

    def visit_ifexp(self, node: ast.IfExp) -> None:
        self.conditional(node.test, [[node.body], [node.orelse]])

    def visit_boolop(self, node: ast.BoolOp) -> None:
        self.conditional(node.values[0], [node.values[1:]])

    def conditional(self, test: ast.expr, bodies: Sequence[Sequence[ast.AST]]) -> None:
        self.visit(test)
        before = self.guarded
        self.guarded = before or asks_for_version(test)
        for body in bodies:
            self.body(body)
        self.guarded = before


def scopes_of(tree: ast.Module) -> Scope:
    """The scope of a module; the others are within it."""
    later = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and any(a.name == "annotations" for a in node.names)
        for node in tree.body
    )
    walk = _Walk(tree, annotations=not later)
    walk.body(tree.body)
    return walk.scope


def asks_for_version(test: ast.expr) -> bool:
    text = ast.unparse(test)
    return any(word in text for word in _VERSIONS) or (isinstance(test, ast.Constant) and not test.value)


def catches_missing(node: ast.Try | ast.TryStar) -> bool:
    """Whether a missing name, attribute or module is expected there: it is named, or all there is to fail."""
    for handler in node.handlers:
        if handler.type is None or "Exception" in ast.unparse(handler.type):
            if len(node.body) == 1 and not isinstance(node.body[0], ast.For | ast.While | ast.With | ast.If):
                return True
        elif any(
            word in ast.unparse(handler.type) for word in ("NameError", "ImportError", "ModuleNotFound", "Attribute")
        ):
            return True
    return False


def own_nodes(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """The nodes of these statements, without those of functions and classes within."""
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)


def _nodes_of(scope: Scope) -> Iterator[ast.AST]:
    node = scope.node
    if scope.is_comprehension:
        waiting = list(ast.iter_child_nodes(node))
    else:
        body = getattr(node, "body", [])
        waiting = list(body) if isinstance(body, list) else [body]
    while waiting:
        part = waiting.pop()
        yield part
        if isinstance(part, _COMPREHENSIONS):
            waiting.append(part.generators[0].iter)
        elif not isinstance(part, (*FUNCTIONS, ast.ClassDef)):
            waiting += ast.iter_child_nodes(part)
