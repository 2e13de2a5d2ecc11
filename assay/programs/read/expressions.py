"""Expressions --> Values."""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable
from typing import Any

from assay.programs.graph import UNKNOWN, Branch, Value
from assay.programs.read.collections import Collections, numbered
from assay.programs.read.things import Bound, Class, Function, Instance, Library, Listing, Table

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Pow: "pow", ast.MatMult: "matmul", ast.BitAnd: "logical_and", ast.BitOr: "logical_or", ast.BitXor: "xor",
    ast.LShift: "shift", ast.RShift: "shift",
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Is: "is",
    ast.IsNot: "is_not", ast.In: "in", ast.NotIn: "not_in",
}  # fmt: skip
_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "pow": operator.pow, "eq": operator.eq, "ne": operator.ne,
    "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
_BUILT_IN = frozenset(dir(builtins))
_LARGEST = 1e9  # of a number that is computed here: the text may hold 9 ** 9 ** 9


class Expressions(Collections):
    def call(self, node: ast.Call) -> Value:
        raise NotImplementedError

    def invoke(
        self, callee: Value, positional: list[Value], keywords: dict[str, Value], node: ast.AST, name: str = ""
    ) -> Value:
        raise NotImplementedError

    def evaluate(self, node: ast.expr | None) -> Value:
        if node is None:
            return self.new("constant", ast.Constant(None), constant=None)
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.expr):
                    self.evaluate(child)
            return self.new("unknown", node)
        value: Value = method(node)
        return value

    def _constant(self, node: ast.Constant) -> Value:
        return self.constant(node, node.value)

    def _name(self, node: ast.Name) -> Value:
        return self.lookup(node.id, node)

    def _call(self, node: ast.Call) -> Value:
        return self.call(node)

    def _await(self, node: ast.Await) -> Value:
        return self.evaluate(node.value)

    def _starred(self, node: ast.Starred) -> Value:
        return self.evaluate(node.value)

    def _yield(self, node: ast.Yield) -> Value:
        self.frame.yielded.append(self.evaluate(node.value))
        return self.new("unknown", node)

    def _yieldfrom(self, node: ast.YieldFrom) -> Value:
        self.frame.yielded.append(self.element(self.evaluate(node.value), node))
        return self.new("unknown", node)

    def _namedexpr(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self.store(node.target.id, value)
        return value

    def _lambda(self, node: ast.Lambda) -> Value:
        function = Function(node, self.frame, defaults=self.defaults_of(node.args))
        return self.new("function", node, name="lambda", thing=function)

    def defaults_of(self, arguments: ast.arguments) -> dict[str, Value]:
        named = [*arguments.posonlyargs, *arguments.args]
        last = named[len(named) - len(arguments.defaults) :]
        found = {one.arg: self.evaluate(default) for one, default in zip(last, arguments.defaults, strict=True)}
        for one, keyword in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if keyword is not None:
                found[one.arg] = self.evaluate(keyword)
        return found

    def _joinedstr(self, node: ast.JoinedStr) -> Value:
        parts = [self.evaluate(part.value) for part in node.values if isinstance(part, ast.FormattedValue)]
        texts = [
            "{}" if isinstance(part, ast.FormattedValue) else str(getattr(part, "value", "")) for part in node.values
        ]
        return self.new("string", node, {str(number): part for number, part in enumerate(parts)}, name="".join(texts))

    # operators

    def _binop(self, node: ast.BinOp) -> Value:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        value = self.binary(_BINARY[type(node.op)], left, right, node)
        value.given = {"input": self.place(node.left), "other": self.place(node.right)}
        return value

    def binary(self, op: str, left: Value, right: Value, node: ast.AST) -> Value:
        if op == "add" and isinstance(left.thing, Listing) and isinstance(right.thing, Listing):
            exact = left.thing.exact and right.thing.exact
            joined = self.listing(node, [*left.thing.elements, *right.thing.elements], exact)
            joined.thing.parts = (left, right)
            return joined
        if op == "mul" and isinstance(left.thing, Listing):
            return self.new(
                "list_repeat", node, {"input": left, "other": right}, thing=Listing(left.thing.elements, False)
            )
        names = ("input", "exponent") if op == "pow" else ("input", "other")
        return self.new(op, node, dict(zip(names, (left, right), strict=True)), constant=folded(op, left, right))

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.evaluate(node.operand)
        constant: Any = UNKNOWN
        if isinstance(node.op, ast.USub):
            if isinstance(value.constant, int | float):
                constant = -value.constant
            return self.new("neg", node, {"input": value}, constant=constant)
        if isinstance(node.op, ast.Not):
            known = self.decided(value)
            return self.new("not", node, {"input": value}, constant=UNKNOWN if known is None else not known)
        if isinstance(node.op, ast.Invert):
            return self.new("logical_not", node, {"input": value})
        return value

    def _boolop(self, node: ast.BoolOp) -> Value:
        is_and = isinstance(node.op, ast.And)
        values: list[Value] = []
        for part in node.values:
            value = self.evaluate(part)
            known = self.decided(value)
            if known is not None and known != is_and:  # the rest is not looked at
                return value if not values else self.new("bool", node, dict(numbered([*values, value])))
            if known is None or part is node.values[-1]:
                values.append(value)
        if len(values) == 1:
            return values[0]
        return self.new("and" if is_and else "phi", node, dict(numbered(values)))

    def _compare(self, node: ast.Compare) -> Value:
        left = self.evaluate(node.left)
        results: list[Value] = []
        for kind, part in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(part)
            op = _COMPARE[type(kind)]
            constant = folded(op, left, right)
            if op in ("is", "is_not") and right.constant is None:
                known = self.is_none(left)
                constant = UNKNOWN if known is None else known == (op == "is")
            results.append(self.new(op, node, {"input": left, "other": right}, constant=constant))
            left = right
        return results[0] if len(results) == 1 else self.new("and", node, dict(numbered(results)))

    def is_none(self, value: Value) -> bool | None:
        if value.constant is not UNKNOWN:
            return value.constant is None
        if isinstance(value.thing, Library) and not is_certain(value.thing):
            return None
        if value.thing is not None and value.op != "phi":
            return False
        if value.op in ("parameter", "phi", "attribute", "method", "call", "element", "config", "index", "unknown"):
            return None
        return False

    def _ifexp(self, node: ast.IfExp) -> Value:
        condition = self.evaluate(node.test)
        known = self.decided(condition)
        if known is not None:
            return self.evaluate(node.body if known else node.orelse)
        place = self.place(node.test)
        with self.under(branches=(*self.context.branches, Branch(place, condition, True))):
            first = self.evaluate(node.body)
        with self.under(branches=(*self.context.branches, Branch(place, condition, False))):
            second = self.evaluate(node.orelse)
        value = self.phi(node, [first, second])
        if value.op == "phi" and "condition" not in value.arguments:
            value.name = value.name or "if"
        return value

    def decided(self, value: Value) -> bool | None:
        """Whether a condition holds, where the text decides it. What a user may configure is open."""
        if value.constant is not UNKNOWN:
            return None if configured(value) else bool(value.constant)
        if isinstance(value.thing, Function | Class | Instance | Library) and value.op != "phi":
            return None if isinstance(value.thing, Library) and not is_certain(value.thing) else True
        return None

    # attributes and subscripts

    def _attribute(self, node: ast.Attribute) -> Value:
        return self.attribute(self.evaluate(node.value), node.attr, node)

    def attribute(self, base: Value, name: str, node: ast.AST) -> Value:
        thing = base.thing
        if isinstance(thing, Library):
            return self.library(node, f"{thing.path}.{name}")
        if isinstance(thing, Instance):
            key = (id(thing), name)
            if key in self.heap:
                return self.heap[key]
            member = thing.of.member(name)
            if member is not None:
                if isinstance(member.thing, Function):
                    if member.thing.kind == "property":
                        return self.invoke(self.new("bound", node, thing=Bound(member.thing, base)), [], {}, node, name)
                    if member.thing.kind != "static":
                        return self.new("bound", node, {"input": base}, name=name, thing=Bound(member.thing, base))
                return member
        elif isinstance(thing, Class):
            member = thing.member(name)
            if member is not None:
                if isinstance(member.thing, Function) and member.thing.kind == "class":
                    return self.new("bound", node, thing=Bound(member.thing, base), name=name)
                return member
        elif isinstance(thing, Table) and name in thing.entries and thing.is_namespace:
            return self.arrived(thing.entries[name], node)
        owner = thing if isinstance(thing, Instance) else base
        key = (id(owner), name)
        if key not in self.heap:
            self.keep(owner)
            inside = name == "module" and base.op == "wrapped"  # the network within its wrapper
            self.heap[key] = self.new("attribute", node, {"input": base}, name=name, thing=thing if inside else None)
        return self.heap[key]

    def _slice(self, node: ast.Slice) -> Value:
        arguments = {
            name: self.evaluate(part)
            for name, part in (("start", node.lower), ("stop", node.upper), ("step", node.step))
            if part is not None
        }
        return self.new("slice", node, arguments)

    def _subscript(self, node: ast.Subscript) -> Value:
        base = self.evaluate(node.value)
        if isinstance(node.slice, ast.Tuple):
            keys = [self.evaluate(part) for part in node.slice.elts]
        else:
            keys = [self.evaluate(node.slice)]
        return self.subscript(base, keys, node)

    def subscript(self, base: Value, keys: list[Value], node: ast.AST) -> Value:
        thing = base.thing
        if thing is None and holds_modules(base):
            return self._part_of_network(base, str(keys[0].constant), node)
        if len(keys) == 1:
            key = keys[0].constant
            if isinstance(thing, Table):
                if key is not UNKNOWN and not isinstance(key, float) and key in thing.entries:
                    return thing.entries[key]
                if thing.factory is not None and key is not UNKNOWN:
                    thing.entries[key] = self.invoke(thing.factory, [], {}, node)
                    return thing.entries[key]
                known = [*thing.rest, *(thing.entries.values() if key is UNKNOWN else ())]
                if known:
                    return self._unplaced(base, keys[0], known, node)
                if thing.factory is not None:
                    made = self.invoke(thing.factory, [], {}, node)
                    thing.rest.append(made)
                    return made
            if isinstance(thing, Listing) and base.op != "phi":
                if thing.exact and isinstance(key, int) and -len(thing.elements) <= key < len(thing.elements):
                    return thing.elements[key]
                if keys[0].op == "slice" and thing.elements:
                    cut = self.listing(node, thing.elements, exact=False)
                    cut.arguments["slice"] = keys[0]
                    cut.thing.cut_from = base
                    return cut
                is_table = key is UNKNOWN and all(_is_written(one) for one in thing.elements)
                if thing.elements and keys[0].op != "slice" and is_table:  # which one, the key says
                    return self._unplaced(base, keys[0], thing.elements[:16], node)
                if thing.elements and keys[0].op != "slice":
                    return self.first(base, node) if key in (0, -1) else self.element(base, node)
            if isinstance(key, str):
                memo = (id(base), f"[{key}]")
                if memo not in self.heap:
                    self.keep(base)
                    self.heap[memo] = self.new("index", node, {"input": base, "0": keys[0]}, name=key)
                return self.heap[memo]
        return self.new("index", node, {"input": base, **dict(numbered(keys))})

    def _part_of_network(self, base: Value, name: str, node: ast.AST) -> Value:
        memo = (id(base), f"part {name}")
        if memo not in self.heap:
            self.keep(base)
            layer = layer_of(base, name)
            known = {"layer": layer} if layer is not None else {}
            self.heap[memo] = self.new("submodule", node, {"input": base, **known}, name=name)
        return self.heap[memo]

    def _unplaced(self, base: Value, under: Value, known: list[Value], node: ast.AST) -> Value:
        """What a dictionary holds under a key, where keys were computed: two keys are two values."""
        key = under.constant
        memo = (id(base.thing), f"[{key!r}]")
        if key is UNKNOWN or memo not in self.heap:
            inner = self.phi(node, known)
            self.keep(base.thing)
            self.heap[memo] = self.new(
                "element", node, {"input": inner, "key": under}, name=str(key), thing=inner.thing
            )
        return self.heap[memo]

    def assign(self, target: ast.expr, value: Value, node: ast.AST) -> None:
        raise NotImplementedError


def _is_written(value: Value) -> bool:
    """A constant, a letter of one or of a library's, or a counted number as text."""
    if value.op == "call" and value.name in ("builtins.str", "builtins.chr"):
        return all(_is_written(one) for one in value.inputs)
    source = value.input if value.op == "element" else None
    if source is not None and (source.op in ("range", "library") or isinstance(source.constant, str)):
        return True
    return value.constant is not UNKNOWN


def holds_modules(value: Value) -> bool:
    """A network made of others by name or number: nn.ModuleDict, nn.ModuleList, nn.Sequential, or a copy of one."""
    if value.op in ("deepcopy", "wrapped", "submodule") and value.input is not None:
        return holds_modules(value.input)
    return value.op == "module" and value.name in ("ModuleDict", "ModuleList", "Sequential")


def layer_of(value: Value, name: str) -> Value | None:
    """The layer of such a network under a name or a number, where the text shows it."""
    while value.op in ("deepcopy", "wrapped") and value.input is not None:
        value = value.input
    given = value.arguments.get("0")
    found: Value | None = None
    if value.op == "module" and value.name == "Sequential":
        found = value.arguments.get(name)
    elif given is not None and isinstance(given.thing, Table):
        found = given.thing.entries.get(name)
    elif given is not None and isinstance(given.thing, Listing) and given.thing.exact and name.isdigit():
        found = given.thing.elements[int(name)] if int(name) < len(given.thing.elements) else None
    return found if found is not None and found.op == "module" else None


def folded(op: str, left: Value, right: Value) -> Any:
    """The constant of an operation on constants; only of numbers of a common size, and of comparisons."""
    one, two = left.constant, right.constant
    if one is UNKNOWN or two is UNKNOWN or op not in _FOLD:
        return UNKNOWN
    numbers = all(isinstance(value, int | float) and abs(value) < _LARGEST for value in (one, two))
    if op in ("eq", "ne"):
        return _FOLD[op](one, two)
    if not numbers or (op in ("div", "floordiv", "mod") and two == 0) or (op == "pow" and (one < 0 or abs(two) > 64)):
        return UNKNOWN
    if op == "pow" and one == 0 and two < 0:
        return UNKNOWN
    return _FOLD[op](one, two)


def is_certain(library: Library) -> bool:
    """Whether a name is a module or one of Python's own; any other may be a setting that is imported, or unbound."""
    return library.last in _BUILT_IN if library.root == "builtins" else library.path == library.root


def configured(value: Value, depth: int = 6) -> bool:
    """Whether a constant is only the default of something that the user can set."""
    seen: set[int] = set()
    layer = [value]
    for _ in range(depth + 1):
        if any(one.op == "config" for one in layer):
            return True
        seen |= {id(one) for one in layer}
        behind = {id(one): one for value in layer for one in value.arguments.values() if id(one) not in seen}
        layer = list(behind.values())
    return False
