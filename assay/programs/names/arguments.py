"""Calls of the program's own functions and classes: do the arguments fit, and as many results as are unpacked?"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from assay.programs.names.definitions import Definition, File, Names, class_body, last_name
from assay.programs.names.scopes import Scope, own_nodes

_RECORDS = ("dataclass",)
_OF_NETWORKS = ("parameters", "generate", "state_dict", "train", "eval", "named_parameters")


@dataclass(frozen=True)
class Signature:
    positional: tuple[str, ...]
    by_position_only: int
    required: frozenset[str]
    keywords: frozenset[str]
    takes_more: bool  # *args
    takes_any: bool  # **kwargs


def signature_of(node: ast.FunctionDef | ast.AsyncFunctionDef, *, bound: bool) -> Signature:
    given = node.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    required = set(names[: len(names) - len(given.defaults)])
    for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True):
        if default is None:
            required.add(argument.arg)
    only = len(given.posonlyargs)
    if bound and names:
        required.discard(names[0])
        names, only = names[1:], max(only - 1, 0)
    keywords = {*names[only:], *(argument.arg for argument in given.kwonlyargs)}
    return Signature(
        tuple(names), only, frozenset(required), frozenset(keywords), given.vararg is not None, given.kwarg is not None
    )


def misfit(signature: Signature, call: ast.Call) -> str:
    """What is wrong with the arguments of a call, "" if nothing is."""
    starred = any(isinstance(argument, ast.Starred) for argument in call.args)
    spread = any(keyword.arg is None for keyword in call.keywords)
    named = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
    unknown = sorted(named - signature.keywords)
    if unknown and not signature.takes_any:
        known = ", ".join(sorted(signature.keywords)) or "none"
        return f"has no parameter {quoted(unknown)} (it has {known})"
    if starred:
        return ""
    count = len(call.args)
    if count > len(signature.positional) and not signature.takes_more:
        return f"takes at most {len(signature.positional)} positional arguments and is given {count}"
    filled = set(signature.positional[:count])
    twice = sorted(filled & named & signature.keywords)
    if twice:
        return f"is given {quoted(twice)} twice"
    missing = [name for name in (*signature.positional, *sorted(signature.required)) if name in signature.required]
    missing = [name for name in dict.fromkeys(missing) if name not in filled | named]
    if missing and not spread:
        return f"is not given {quoted(missing)}"
    return ""


def quoted(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def wrong_calls(names: Names, file: File, scope: Scope) -> Iterator[tuple[ast.AST, str, Definition]]:
    """Calls in a scope that raise a TypeError, and unpackings that raise a ValueError."""
    for node in scope.nodes:
        if isinstance(node, ast.Call):
            found = _callee(names, file, scope, node.func)
            if found is not None:
                signature, definition = found
                wrong = misfit(signature, node)
                if wrong:
                    yield node, f"`{_shown(node.func)}` {wrong}", definition
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            yield from _unpacked(names, file, scope, node)


def networks_for_names(names: Names, file: File, scope: Scope) -> Iterator[tuple[ast.AST, str]]:
    """vLLM's LLM(model=...) that is given what the file trains or samples from: it takes a name or a folder."""
    for node in scope.nodes:
        found = names.expression(file, scope, node.func) if isinstance(node, ast.Call) else None
        if not isinstance(node, ast.Call) or getattr(found, "path", "") != "vllm.LLM":
            continue
        given = [*node.args[:1], *(word.value for word in node.keywords if word.arg == "model")][:1]
        text = ast.unparse(given[0]) if given and isinstance(given[0], ast.Name | ast.Attribute) else ""
        if text and any(f"{text}.{method}(" in line for line in file.module.lines for method in _OF_NETWORKS):
            yield node, f"vLLM's `LLM` takes the name or the folder of a model and is given a network (`{text}`)"


def _unpacked(names: Names, file: File, scope: Scope, node: ast.Assign) -> Iterator[tuple[ast.AST, str, Definition]]:
    target = node.targets[0]
    if len(node.targets) != 1 or not isinstance(target, ast.Tuple | ast.List) or not isinstance(node.value, ast.Call):
        return
    if any(isinstance(part, ast.Starred) for part in target.elts):
        return
    definition = _function(names, file, scope, node.value.func)
    lengths = returned_lengths(definition) if definition is not None else set()
    if definition is not None and len(lengths) == 1 and lengths != {len(target.elts)}:
        (length,) = lengths
        yield (
            node,
            f"`{_shown(node.value.func)}` returns {length} values and {len(target.elts)} are unpacked",
            definition,
        )


def returned_lengths(definition: Definition) -> set[int]:
    """How many values a function returns, where each of its returns is a tuple; empty if one is not."""
    node = definition.node
    lengths: set[int] = set()
    if isinstance(node, ast.FunctionDef) and definition.is_transparent:
        for part in own_nodes(node.body):
            if isinstance(part, ast.Yield | ast.YieldFrom):
                return set()
            if isinstance(part, ast.Return):
                value = part.value
                if not isinstance(value, ast.Tuple) or any(isinstance(item, ast.Starred) for item in value.elts):
                    return set()
                lengths.add(len(value.elts))
    return lengths


def _function(names: Names, file: File, scope: Scope, node: ast.expr) -> Definition | None:
    """The function or method that a call runs, where it is one of the program's and the only one of its name."""
    found = names.expression(file, scope, node)
    if isinstance(found, Definition):
        return None if found.is_class else found
    if isinstance(node, ast.Attribute):
        cls = instance_of(names, file, scope, node.value)
        return names.method(cls, node.attr) if cls is not None else None
    return None


def _callee(names: Names, file: File, scope: Scope, node: ast.expr) -> tuple[Signature, Definition] | None:
    found = names.expression(file, scope, node)
    if isinstance(found, Definition) and found.is_class:
        return _constructor(names, found)
    if isinstance(found, Definition):
        if found.is_transparent and isinstance(found.node, ast.FunctionDef | ast.AsyncFunctionDef):
            return signature_of(found.node, bound=False), found
        return None
    if isinstance(node, ast.Attribute):
        cls = instance_of(names, file, scope, node.value)
        if cls is not None:
            return _bound(names.method(cls, node.attr))
        owner = names.expression(file, scope, node.value)
        if isinstance(owner, Definition) and owner.is_class:
            method = names.method(owner, node.attr)
            if method is not None and not {"staticmethod", "classmethod"}.isdisjoint(method.decorators):
                return _bound(method)
        return None
    return None


def _bound(method: Definition | None) -> tuple[Signature, Definition] | None:
    if method is None or not method.is_transparent or isinstance(method.node, ast.ClassDef):
        return None
    return signature_of(method.node, bound="staticmethod" not in method.decorators), method


def _constructor(names: Names, cls: Definition) -> tuple[Signature, Definition] | None:
    lineage, outside, known = names.lineage(cls)
    assert isinstance(cls.node, ast.ClassDef)
    if not known or any(
        name not in ("object", "ABC", "Module", "Dataset", "IterableDataset", "Generic") for name in outside
    ):
        own = _own_init(cls)
        # a class of a library may take its arguments in __new__
        if own is None or not outside or not _is_usual(outside):
            return None
    if any("__new__" in ancestor.members for ancestor in lineage):
        return None
    is_record = [name for name in cls.decorators if name in _RECORDS]
    if cls.decorators and not is_record:
        return None
    for ancestor in lineage:
        own = _own_init(ancestor)
        if own is None and "__init__" in ancestor.members:
            return None  # several, one for each kind of arguments
        if own is not None:
            return _bound(Definition(own, ancestor.file, ancestor))
        if is_record:
            return _record(names, lineage)
        if ancestor.decorators:
            return None
    return None


def _is_usual(outside: list[str]) -> bool:
    return all(name in ("object", "ABC", "Module", "Dataset", "IterableDataset") for name in outside)


def _own_init(cls: Definition) -> ast.FunctionDef | None:
    found = cls.members.get("__init__", [])
    return found[0] if len(found) == 1 and isinstance(found[0], ast.FunctionDef) else None


def _record(names: Names, lineage: list[Definition]) -> tuple[Signature, Definition] | None:
    """The constructor of a dataclass whose bases are dataclasses of the program."""
    fields: dict[str, bool] = {}  # whether it has a default
    only_keywords: set[str] = set()
    for ancestor in reversed(lineage):
        if "dataclass" not in ancestor.decorators:
            return None
        whole = any(
            isinstance(decorator, ast.Call)
            and any(keyword.arg in ("init", "kw_only", None) for keyword in decorator.keywords)
            for decorator in ancestor.node.decorator_list
        )
        if whole:
            return None
        for node in class_body(ancestor.node):
            if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
                continue
            text = ast.unparse(node.annotation)
            if "ClassVar" in text or "KW_ONLY" in text or "InitVar" in text:
                if "ClassVar" in text:
                    continue
                return None
            value = node.value
            if isinstance(value, ast.Call) and last_name(value) == "field":
                words = {keyword.arg: keyword.value for keyword in value.keywords}
                if None in words or "init" in words or "kw_only" in words:
                    return None
                fields[node.target.id] = "default" in words or "default_factory" in words
            elif isinstance(value, ast.Call):
                return None  # a field function of another library
            else:
                fields[node.target.id] = value is not None
    required = frozenset(name for name, has_default in fields.items() if not has_default)
    order = tuple(fields)
    return Signature(order, 0, required, frozenset(fields) | only_keywords, False, False), lineage[0]


def instance_of(names: Names, file: File, scope: Scope, node: ast.expr) -> Definition | None:
    """The class of the program whose object an expression is: self, a name bound to one constructor, an annotation."""
    if isinstance(node, ast.Name):
        cls = own_class(names, file, scope, node.id)
        if cls is not None:
            return cls
        holder = scope.holder(node.id)
        bound = holder.bound[node.id] if holder is not None else []
        if holder is None or len(bound) != 1:
            return None
        return _made_by(names, file, holder, bound[0])
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        owner = own_class(names, file, scope, node.value.id)
        if owner is not None:
            return _attribute(names, owner, node.attr)
    return None


def own_class(names: Names, file: File, scope: Scope, name: str) -> Definition | None:
    """The class of which a name is `self`: the first parameter of the method around it."""
    holder = scope.holder(name)
    if holder is None or not isinstance(holder.node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    outer = holder.outer
    arguments = [*holder.node.args.posonlyargs, *holder.node.args.args]
    if outer is None or not outer.is_class or not arguments or arguments[0].arg != name or len(holder.bound[name]) > 1:
        return None
    method = Definition(holder.node, file)
    is_plain = method.is_transparent and {"staticmethod", "classmethod"}.isdisjoint(method.decorators)
    if not is_plain and method.decorators not in (["property"], ["cached_property"]):
        return None
    return Definition(outer.node, file)  # type: ignore[arg-type]


def _made_by(names: Names, file: File, holder: Scope, bound: ast.AST) -> Definition | None:
    """The class that the one line which binds a name calls."""
    made = holder.given.get(id(bound))
    target = made.func if isinstance(made, ast.Call) else bound.annotation if isinstance(bound, ast.arg) else None
    found = names.expression(file, holder, target) if target is not None else None
    return found if isinstance(found, Definition) and found.is_class and _is_plain(names, found) else None


def _is_plain(names: Names, cls: Definition) -> bool:
    """Whether calling a class gives an object of it."""
    lineage, _, known = names.lineage(cls)
    decorated = [name for ancestor in lineage for name in ancestor.decorators if name not in _RECORDS]
    return known and not decorated and not any("__new__" in ancestor.members for ancestor in lineage)


def _attribute(names: Names, owner: Definition, name: str) -> Definition | None:
    """The class of `self.name`, where one line of the program sets an attribute of that name."""
    file = owner.file
    if sum(other.patched.get(name, 0) for other in names.known_files) != 1 or name not in file.patched:
        return None
    for scope in file.scopes:
        for node in scope.nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr == name:
                made = scope.given.get(id(node))
                target = names.expression(file, scope, made.func) if isinstance(made, ast.Call) else None
                if isinstance(target, Definition) and target.is_class and _is_plain(names, target):
                    return target
                return None
    return None


def _shown(node: ast.expr) -> str:
    return ast.unparse(node)[:60]
