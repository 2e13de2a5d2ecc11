"""Attributes that nothing has: of libraries, of the program's files, of objects of its classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from assay.programs.names.arguments import instance_of, own_class
from assay.programs.names.definitions import (
    Definition,
    File,
    LibraryName,
    Names,
    ProjectModule,
    class_body,
    is_left_to_subclasses,
    last_name,
)
from assay.programs.names.known import known_names, unknown
from assay.programs.names.scopes import Scope
from assay.programs.read.repository import LIBRARIES

_OF_EVERY_OBJECT = frozenset(dir(object)) | {"__dict__", "__name__", "__qualname__", "__annotations__", "__slots__"}
_OF_EXCEPTIONS = frozenset(dir(Exception()))
_OF_RECORDS = frozenset("__dataclass_fields__ __post_init__ __match_args__ __dataclass_params__".split())
_REGISTERS = ("register_buffer", "register_parameter", "add_module", "register_module")
# classes with these are open: attributes come from where the text does not show
_OPEN = frozenset("__getattr__ __getattribute__ __setattr__ __slots__ __dict__ __new__".split())


def missing_attributes(
    names: Names, file: File, scope: Scope, guarded: set[int]
) -> Iterator[tuple[ast.AST, str, bool]]:
    """Nodes, what is wrong with each, and whether that is sure."""
    for node in scope.nodes:
        if isinstance(node, ast.ImportFrom) and id(node) not in guarded:
            yield from _missing_import(names, file, node)
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Load) or id(node) in guarded:
            continue
        base = names.expression(file, scope, node.value)
        if isinstance(base, LibraryName):
            yield from _of_library(base.path, node.attr, node, names)
        elif isinstance(base, ProjectModule):
            is_set = names.is_stored(node.attr) or _may_be_elsewhere(file, base.file, node.attr)
            if not is_set and is_missing(names, base.file, node.attr):
                yield node, f"{_shown(base.file)} does not define `{node.attr}`", True
        elif base is None:
            cls = instance_of(names, file, scope, node.value)
            if cls is not None and not has_attribute(names, cls, node.attr):
                is_self = isinstance(node.value, ast.Name) and own_class(names, file, scope, node.value.id) is not None
                if not is_self or _is_whole(names, cls):
                    yield node, f"nothing sets `{ast.unparse(node)}`: {cls.name} has no such attribute", True


def _of_library(path: str, name: str, node: ast.AST, names: Names) -> Iterator[tuple[ast.AST, str, bool]]:
    meant = unknown(path, name)
    if meant is None or names.is_stored(name) or (not meant and not path.startswith("torch")):
        return
    hint = f" ({meant} does)" if meant else ""
    yield node, f"`{path}.{name}` does not exist{hint}", bool(meant)


def _missing_import(names: Names, file: File, node: ast.ImportFrom) -> Iterator[tuple[ast.AST, str, bool]]:
    path = "." * node.level + (node.module or "")
    for alias in node.names:
        if alias.name == "*":
            continue
        module = names.imported(file, path, alias.name)
        if module is None:
            if not node.level:
                yield from _of_library(path, alias.name, node, names)
        elif is_missing(names, module, alias.name):
            inner = f"{path}.{alias.name}" if node.module else f"{path}{alias.name}"
            if names.imported(file, inner) is None and not _may_be_elsewhere(file, module, alias.name):
                yield node, f"{_shown(module)} does not define `{alias.name}`, which is imported from it", True


def _may_be_elsewhere(file: File, module: File, name: str) -> bool:
    """Whether the import may bring something else: a folder, a compiled module, another file of that name."""
    found = Path(module.module.file)
    if found.name == "__init__.py" and any(found.parent.glob(f"{name}*")):
        return True
    own = found.parent.name if found.name == "__init__.py" else found.stem
    if own in LIBRARIES:  # a file of the program that has the name of a library, which may be meant
        return True
    folder = Path(file.module.file).parent
    around = folder.resolve()
    if found.resolve().parent not in (around, around.parent) and (around / "__init__.py").is_file():
        return True  # within a package a name without dots is a library's
    for _ in range(4):
        others = (folder / f"{own}.py", folder / own / "__init__.py", folder / "src" / f"{own}.py")
        if any(other.is_file() and other.resolve() != found.resolve() for other in others):
            return True
        folder = folder.parent
    return False


def is_missing(names: Names, file: File, name: str, seen: frozenset[str] = frozenset()) -> bool:
    """Whether a file of the program has no such name at its top level."""
    if name in file.scope.bound or "__getattr__" in file.scope.bound or file.is_open or name.startswith("__"):
        return False
    if file.module.notes or file.module.file in seen or not file.module.tree.body:
        return False
    stars = file.scope.bound.get("*", [])
    for star in stars:
        assert isinstance(star, ast.ImportFrom)
        module = names.imported(file, "." * star.level + (star.module or ""))
        if module is None or not is_missing(names, module, name, seen | {file.module.file}):
            return False
    return True


def has_attribute(names: Names, cls: Definition, name: str) -> bool:
    """Whether an object of a class of the program may have an attribute."""
    if name in _OF_EVERY_OBJECT or names.is_stored(name) or name.startswith("__"):
        return True
    lineage, outside, known = names.lineage(cls)
    if not known:
        return True
    if "Module" in outside and name in known_names()["torch.nn.Module"]:
        return True
    if any(base.endswith(("Exception", "Error")) for base in outside) and name in _OF_EXCEPTIONS:
        return True
    if cls.file.sets_by_computed_names:
        return True
    related = [other for other in names.classes if any(base.node is cls.node for base in names.lineage(other)[0])]
    if any(name in other.members and _has_computed_base(names, other) for other in names.classes):
        return True
    for member in (*lineage, *related):
        decorators = [decorator for decorator in member.decorators if decorator != "dataclass"]
        own = member.members
        if decorators or name in own or not _OPEN.isdisjoint(own) or _sets_by_name(member.node):
            return True
    return "dataclass" in cls.decorators and name in _OF_RECORDS


def _has_computed_base(names: Names, cls: Definition) -> bool:
    """`class Logged(base)`: which class it extends is only known when it runs."""
    scope = names.scope_of(cls)
    for base in cls.node.bases if isinstance(cls.node, ast.ClassDef) else ():
        holder = scope.holder(base.id) if scope is not None and isinstance(base, ast.Name) else None
        if isinstance(base, ast.Call) or (holder is not None and holder.is_function):
            return True
    return False


def _is_whole(names: Names, cls: Definition) -> bool:
    """Whether a class is meant to be used as it is: it has a constructor, and leaves nothing to a subclass."""
    lineage, _, known = names.lineage(cls)
    inside = [node for ancestor in lineage for node in class_body(ancestor.node)]
    methods = {node.name: node for node in inside if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    if "__init__" not in methods and "dataclass" not in cls.decorators:
        return False
    if any(word in ancestor.name for ancestor in lineage for word in ("Mixin", "Base", "Abstract", "Interface")):
        return False
    for method in methods.values():
        if any(last_name(decorator).startswith("abstract") for decorator in method.decorator_list):
            return False
        if any(isinstance(node, ast.Raise) and "NotImplemented" in ast.unparse(node) for node in ast.walk(method)):
            return False
        if is_left_to_subclasses(method):
            return False
    return known


def _sets_by_name(cls: ast.AST) -> bool:
    """Whether some method gives the object attributes under names that are computed."""
    for node in ast.walk(cls):
        if isinstance(node, ast.Attribute) and node.attr == "__dict__":
            return True
        if isinstance(node, ast.Call) and last_name(node) in ("setattr", "vars", "__setattr__", "exec", "locals"):
            return True
        is_register = isinstance(node, ast.Call) and last_name(node) in _REGISTERS
        if is_register and not (node.args and isinstance(node.args[0], ast.Constant)):  # type: ignore[attr-defined]
            return True
    return False


def _shown(file: File) -> str:
    return file.module.file.rpartition("/")[2]
