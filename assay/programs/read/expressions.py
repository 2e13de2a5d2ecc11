"""Expressions --> Values."""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable
from typing import Any

from assay.programs.graph import UNKNOWN, Branch, Value
from assay.programs.read.access import assign, attribute, keys_of, subscript
from assay.programs.read.collections import each, element, merge, put
from assay.programs.read.interpreter import Interpreter, numbered
from assay.programs.read.things import Class, Function, Instance, Library, Listing, Table

BINARY: dict[type[ast.operator], str] = {
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
_LARGEST_NUMBER = 1e9  # of a number that is computed here: the text may hold 9 ** 9 ** 9


def _yield(interpreter: Interpreter, node: ast.Yield) -> Value:
    interpreter.frame.yielded.append(interpreter.evaluate(node.value))
    return interpreter.new("unknown", node)


def _yieldfrom(interpreter: Interpreter, node: ast.YieldFrom) -> Value:
    interpreter.frame.yielded.append(element(interpreter, interpreter.evaluate(node.value), node))
    return interpreter.new("unknown", node)


def _namedexpr(interpreter: Interpreter, node: ast.NamedExpr) -> Value:
    value = interpreter.evaluate(node.value)
    interpreter.store(node.target.id, value)
    return value


def _lambda(interpreter: Interpreter, node: ast.Lambda) -> Value:
    function = Function(node, interpreter.frame, defaults=defaults_of(interpreter, node.args))
    return interpreter.new("function", node, name="lambda", thing=function)


def defaults_of(interpreter: Interpreter, arguments: ast.arguments) -> dict[str, Value]:
    named = [*arguments.posonlyargs, *arguments.args]
    last = named[len(named) - len(arguments.defaults) :]
    pairs = [
        *zip(last, arguments.defaults, strict=True),
        *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
    ]
    return {argument.arg: interpreter.evaluate(default) for argument, default in pairs if default is not None}


def _joinedstr(interpreter: Interpreter, node: ast.JoinedStr) -> Value:
    parts = [interpreter.evaluate(part.value) for part in node.values if isinstance(part, ast.FormattedValue)]
    texts = ["{}" if isinstance(part, ast.FormattedValue) else str(getattr(part, "value", "")) for part in node.values]
    return interpreter.new("string", node, numbered(parts), name="".join(texts))


def _binop(interpreter: Interpreter, node: ast.BinOp) -> Value:
    left, right = interpreter.evaluate(node.left), interpreter.evaluate(node.right)
    value = binary(interpreter, BINARY[type(node.op)], left, right, node)
    value.given = {"input": interpreter.place(node.left), "other": interpreter.place(node.right)}
    return value


def binary(interpreter: Interpreter, op: str, left: Value, right: Value, node: ast.AST) -> Value:
    if op == "add" and isinstance(left.thing, Listing) and isinstance(right.thing, Listing):
        exact = left.thing.exact and right.thing.exact
        joined = interpreter.listing(node, [*left.thing.elements, *right.thing.elements], exact)
        joined.thing.parts = (left, right)
        return joined
    if op == "mul" and isinstance(left.thing, Listing):
        return interpreter.new(
            "list_repeat", node, {"input": left, "other": right}, thing=Listing(list(left.thing.elements), False)
        )
    names = ("input", "exponent") if op == "pow" else ("input", "other")
    return interpreter.new(op, node, dict(zip(names, (left, right), strict=True)), constant=fold(op, left, right))


def _unaryop(interpreter: Interpreter, node: ast.UnaryOp) -> Value:
    value = interpreter.evaluate(node.operand)
    constant: Any = UNKNOWN
    if isinstance(node.op, ast.USub):
        if isinstance(value.constant, int | float):
            constant = -value.constant
        return interpreter.new("neg", node, {"input": value}, constant=constant)
    if isinstance(node.op, ast.Not):
        known = truth(value)
        return interpreter.new("not", node, {"input": value}, constant=UNKNOWN if known is None else not known)
    if isinstance(node.op, ast.Invert):
        return interpreter.new("logical_not", node, {"input": value})
    return value


def _boolop(interpreter: Interpreter, node: ast.BoolOp) -> Value:
    is_and = isinstance(node.op, ast.And)
    values: list[Value] = []
    for part in node.values:
        value = interpreter.evaluate(part)
        known = truth(value)
        if known is not None and known != is_and:  # the rest is not looked at
            return value if not values else interpreter.new("bool", node, numbered([*values, value]))
        if known is None or part is node.values[-1]:
            values.append(value)
    if len(values) == 1:
        return values[0]
    return interpreter.new("and" if is_and else "phi", node, numbered(values))


def _compare(interpreter: Interpreter, node: ast.Compare) -> Value:
    left = interpreter.evaluate(node.left)
    results: list[Value] = []
    for kind, part in zip(node.ops, node.comparators, strict=True):
        right = interpreter.evaluate(part)
        op = _COMPARE[type(kind)]
        constant = fold(op, left, right)
        if op in ("is", "is_not") and right.constant is None:
            known = _is_none(left)
            constant = UNKNOWN if known is None else known == (op == "is")
        results.append(interpreter.new(op, node, {"input": left, "other": right}, constant=constant))
        left = right
    return results[0] if len(results) == 1 else interpreter.new("and", node, numbered(results))


def _is_none(value: Value) -> bool | None:
    if value.constant is not UNKNOWN:
        return value.constant is None
    if isinstance(value.thing, Library) and not is_certain(value.thing):
        return None
    if value.thing is not None and value.op != "phi":
        return False
    if value.op in ("parameter", "phi", "attribute", "method", "call", "element", "config", "index", "unknown"):
        return None
    return False


def _ifexp(interpreter: Interpreter, node: ast.IfExp) -> Value:
    condition = interpreter.evaluate(node.test)
    known = truth(condition)
    if known is not None:
        return interpreter.evaluate(node.body if known else node.orelse)
    place = interpreter.place(node.test)
    with interpreter.under(branches=(*interpreter.context.branches, Branch(place, condition, True))):
        first = interpreter.evaluate(node.body)
    with interpreter.under(branches=(*interpreter.context.branches, Branch(place, condition, False))):
        second = interpreter.evaluate(node.orelse)
    value = interpreter.phi(node, [first, second])
    if value.op == "phi" and "condition" not in value.arguments:
        value.name = value.name or "if"
    return value


def truth(value: Value) -> bool | None:
    """Whether a condition holds, where the text decides it. What a user may configure is open."""
    if value.constant is not UNKNOWN:
        return None if is_configured(value) else bool(value.constant)
    if isinstance(value.thing, Function | Class | Instance | Library) and value.op != "phi":
        return None if isinstance(value.thing, Library) and not is_certain(value.thing) else True
    return None


def _slice(interpreter: Interpreter, node: ast.Slice) -> Value:
    arguments = {
        name: interpreter.evaluate(part)
        for name, part in (("start", node.lower), ("stop", node.upper), ("step", node.step))
        if part is not None
    }
    return interpreter.new("slice", node, arguments)


def _subscript(interpreter: Interpreter, node: ast.Subscript) -> Value:
    base = interpreter.evaluate(node.value)
    return subscript(interpreter, base, keys_of(interpreter, node), node)


def _listing(interpreter: Interpreter, node: ast.Tuple | ast.List | ast.Set) -> Value:
    elements: list[Value] = []
    exact = True
    for part in node.elts:
        if isinstance(part, ast.Starred) and _is_cut_short(part.value):
            exact = False
            continue
        value = interpreter.evaluate(part)
        if isinstance(part, ast.Starred):
            if isinstance(value.thing, Listing) and value.thing.exact:
                elements += value.thing.elements
            else:
                elements.append(element(interpreter, value, part))
                exact = False
        else:
            elements.append(value)
    return interpreter.listing(node, elements, exact)


def _dict(interpreter: Interpreter, node: ast.Dict) -> Value:
    table = Table()
    for key, part in zip(node.keys, node.values, strict=True):
        if key is None and _is_cut_short(part):
            continue
        value = interpreter.evaluate(part)
        if key is None:
            merge(table, value)
        else:
            put(table, interpreter.evaluate(key), value)
    return interpreter.new("table", node, numbered([*table.entries.values(), *table.rest]), thing=table)


def _listcomp(interpreter: Interpreter, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> Value:
    return _comprehension(interpreter, node, node.generators, lambda: interpreter.evaluate(node.elt))


def _dictcomp(interpreter: Interpreter, node: ast.DictComp) -> Value:
    table = Table()

    def entry() -> Value:
        value = interpreter.evaluate(node.value)
        put(table, interpreter.evaluate(node.key), value)
        return value

    generator = node.generators[0]
    listed = each(interpreter, interpreter.evaluate(generator.iter), node) if len(node.generators) == 1 else None
    if listed is None or generator.ifs:
        made = _comprehension(interpreter, node, node.generators, entry).arguments
    else:
        interpreter.frame.variables.mark()
        for element_value in listed:
            assign(interpreter, generator.target, element_value, generator.iter)
            entry()
        interpreter.frame.variables.take_back()  # its names are its own
        made = numbered([*table.entries.values(), *table.rest])
    return interpreter.new("table", node, made, thing=table)


def _comprehension(
    interpreter: Interpreter, node: ast.expr, generators: list[ast.comprehension], make: Callable[[], Value]
) -> Value:
    interpreter.frame.variables.mark()
    made: list[Value] = []
    sources: list[Value] = []

    def turn(number: int) -> bool:
        if number == len(generators):
            made.append(make())
            return False
        generator = generators[number]
        source = interpreter.evaluate(generator.iter)
        sources.append(source)

        def inner() -> bool:
            assign(interpreter, generator.target, element(interpreter, source, generator.iter), generator.iter)
            for condition in generator.ifs:
                interpreter.evaluate(condition)
            return turn(number + 1)

        interpreter.repeat(generator.iter, source, [], inner)
        return False

    turn(0)
    interpreter.frame.variables.take_back()  # its names are its own
    listed = interpreter.listing(node, made, exact=False)
    counted = [source.op == "range" for source in sources]
    if len(counted) == 2 and counted[0] != counted[1]:
        # [x for x in xs for _ in range(n)] repeats each in place; the other way round repeats the whole
        listed.name = "interleaved" if counted[1] else "tiled"
        stop = sources[counted.index(True)].arguments.get("stop")
        if stop is not None:
            listed.arguments["repeats"] = stop
    return listed


def _is_cut_short(node: ast.expr) -> bool:
    """The mark of literals.py: here stood more elements than are followed."""
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def fold(op: str, left: Value, right: Value) -> Any:
    """The constant of an operation on constants; only of numbers of a common size, and of comparisons."""
    one, two = left.constant, right.constant
    if one is UNKNOWN or two is UNKNOWN or op not in _FOLD:
        return UNKNOWN
    numbers = all(isinstance(value, int | float) and abs(value) < _LARGEST_NUMBER for value in (one, two))
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


def is_configured(value: Value, depth: int = 6) -> bool:
    """Whether a constant is only the default of something that the user can set."""
    layer = [value]
    for _ in range(depth + 1):
        if any(part.op == "config" for part in layer):
            return True
        layer = list({id(part): part for above in layer for part in above.inputs}.values())
    return False


EXPRESSIONS: dict[type[ast.expr], Callable[[Interpreter, Any], Value]] = {
    ast.Attribute: lambda interpreter, node: attribute(interpreter, interpreter.evaluate(node.value), node.attr, node),
    ast.Await: lambda interpreter, node: interpreter.evaluate(node.value),
    ast.BinOp: _binop,
    ast.BoolOp: _boolop,
    ast.Compare: _compare,
    ast.Constant: lambda interpreter, node: interpreter.constant(node, node.value),
    ast.Dict: _dict,
    ast.DictComp: _dictcomp,
    ast.GeneratorExp: _listcomp,
    ast.IfExp: _ifexp,
    ast.JoinedStr: _joinedstr,
    ast.Lambda: _lambda,
    ast.List: _listing,
    ast.ListComp: _listcomp,
    ast.Name: lambda interpreter, node: interpreter.lookup(node.id, node),
    ast.NamedExpr: _namedexpr,
    ast.Set: _listing,
    ast.SetComp: _listcomp,
    ast.Slice: _slice,
    ast.Starred: lambda interpreter, node: interpreter.evaluate(node.value),
    ast.Subscript: _subscript,
    ast.Tuple: _listing,
    ast.UnaryOp: _unaryop,
    ast.Yield: _yield,
    ast.YieldFrom: _yieldfrom,
}
