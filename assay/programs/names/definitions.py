"""What a name of a program's text stands for: a function or class of the program, a file of it, a library's name."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from assay.programs.names.scopes import Scope, own_nodes, scopes_of
from assay.programs.read.things import Module

FindModule = Callable[..., Module | None]  # (name, importer, the part that is asked for)
# decorators that leave the arguments and the result as they are
_TRANSPARENT = frozenset(
    "no_grad inference_mode enable_grad set_grad_enabled autocast staticmethod classmethod abstractmethod override "
    "final lru_cache cache compile script jit typechecked beartype disable custom_fwd custom_bwd".split()
)
_PLAIN_BASES = frozenset("object ABC Module Dataset IterableDataset Exception ValueError RuntimeError".split())


@dataclass(eq=False)
class File:
    """A module of the program with its scopes."""

    module: Module
    scope: Scope
    is_main: bool

    @cached_property
    def scopes(self) -> list[Scope]:
        return list(self.scope.all())

    @cached_property
    def stored(self) -> frozenset[str]:
        """Attributes that some line sets, on whatever object, and texts that may name one."""
        found: set[str] = set()
        for node in ast.walk(self.module.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
                found.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                found.add(node.value)
        return frozenset(found)

    @cached_property
    def patched(self) -> dict[str, int]:
        """How often a line sets an attribute of that name."""
        found: dict[str, int] = {}
        for node in ast.walk(self.module.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found[node.attr] = found.get(node.attr, 0) + 1
        return found

    @cached_property
    def classes(self) -> list[Definition]:
        return [Definition(scope.node, self) for scope in self.scopes if isinstance(scope.node, ast.ClassDef)]

    @cached_property
    def members(self) -> dict[int, dict[str, list[ast.stmt]]]:
        """What binds each name of a class, by the id of the class."""
        found: dict[int, dict[str, list[ast.stmt]]] = {}
        for cls in self.classes:
            own = found.setdefault(id(cls.node), {})
            for node in class_body(cls.node):
                for name in bound_in_class(node):
                    own.setdefault(name, []).append(node)
        return found

    @cached_property
    def outer_scopes(self) -> dict[int, Scope | None]:
        """The scope around each, by the id of its node."""
        return {id(scope.node): scope.outer for scope in self.scopes}

    @cached_property
    def sets_by_computed_names(self) -> bool:
        """Whether some line gives an object other than `self` an attribute whose name is computed."""
        for node in ast.walk(self.module.tree):
            if isinstance(node, ast.Call) and last_name(node) == "setattr" and len(node.args) == 3:
                owner, name, _ = node.args
                if not isinstance(name, ast.Constant) and getattr(owner, "id", "") != "self":
                    return True
        return False

    @cached_property
    def is_open(self) -> bool:
        """Whether names may come from where the text does not show: exec, globals(), a star of a library."""
        for node in ast.walk(self.module.tree):
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if called in ("exec", "globals", "execfile", "vars", "locals"):
                return True
            if isinstance(node, ast.Attribute) and node.attr in ("modules", "__builtins__", "builtins"):
                return True
            if isinstance(node, ast.Import) and any(alias.name in ("builtins", "__builtin__") for alias in node.names):
                return True
        return False


@dataclass(eq=False)
class Definition:
    """A function or a class of the program, and the file that it stands in."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    file: File
    owner: Definition | None = None  # the class of a method

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def is_class(self) -> bool:
        return isinstance(self.node, ast.ClassDef)

    @property
    def decorators(self) -> list[str]:
        return [last_name(node) for node in self.node.decorator_list]

    @property
    def members(self) -> dict[str, list[ast.stmt]]:
        """What binds each name of a class."""
        return self.file.members.get(id(self.node), {})

    @property
    def is_transparent(self) -> bool:
        return all(name in _TRANSPARENT for name in self.decorators)


@dataclass(frozen=True)
class LibraryName:
    """A dotted path of a library: torch.nn.functional."""

    path: str


@dataclass(eq=False)
class ProjectModule:
    file: File


Known = Definition | LibraryName | ProjectModule | None


@dataclass(eq=False)
class Names:
    """All files of a program. `find` gives the file behind an import, None for a library."""

    modules: Sequence[Module]
    find: FindModule
    _files: dict[str, File] = field(default_factory=dict)
    _lineages: dict[int, tuple[list[Definition], list[str], bool]] = field(default_factory=dict)

    def file(self, module: Module) -> File:
        if module.file not in self._files:
            self._files[module.file] = File(module, scopes_of(module.tree), module.name == "__main__")
        return self._files[module.file]

    @cached_property
    def files(self) -> list[File]:
        return [self.file(module) for module in self.modules]

    @property
    def known_files(self) -> list[File]:
        """Those of the program, and those behind an import that was followed."""
        return list(self._files.values())

    def is_stored(self, name: str) -> bool:
        """Whether some line of a file that was looked at sets an attribute of that name, or a text may name it."""
        return any(name in file.stored for file in self._files.values())

    @property
    def classes(self) -> list[Definition]:
        return [cls for file in list(self._files.values()) for cls in file.classes]

    def imported(self, file: File, path: str, part: str = "") -> File | None:
        """The file of the program that an import brings; Python's own modules and the file itself are not meant."""
        if path.partition(".")[0] in sys.stdlib_module_names:
            return None
        module = self.find(path, file.module, part)
        return None if module is None or module.file == file.module.file else self.file(module)

    def name(self, file: File, scope: Scope, name: str) -> Known:
        """What a name is, where exactly one line of its scope binds it."""
        holder = scope.holder(name)
        bound = holder.bound[name] if holder is not None else []
        if holder is None or len(bound) != 1:
            return None
        node = bound[0]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return None if holder.is_class else Definition(node, file)
        if isinstance(node, ast.Import):
            alias = next(a for a in node.names if (a.asname or a.name.partition(".")[0]) == name)
            path = alias.name if alias.asname else name
            found = self.imported(file, path)
            if found is not None:
                return ProjectModule(found)
            return LibraryName(path)
        if isinstance(node, ast.ImportFrom):
            alias = next(a for a in node.names if (a.asname or a.name) == name)
            return self.member(file, node, alias.name)
        return None

    def member(self, file: File, node: ast.ImportFrom, name: str) -> Known:
        """What `from x import name` brings."""
        path = "." * node.level + (node.module or "")
        module = self.imported(file, path, name)
        if module is not None and name in module.scope.bound and module is not file:
            return self.name(module, module.scope, name)
        inner = self.imported(file, f"{path}.{name}" if node.module else f"{path}{name}")
        if inner is not None:
            return ProjectModule(inner)
        if module is not None or node.level:
            return None
        return LibraryName(f"{path}.{name}")

    def expression(self, file: File, scope: Scope, node: ast.expr) -> Known:
        if isinstance(node, ast.Name):
            return self.name(file, scope, node.id)
        if isinstance(node, ast.Attribute):
            base = self.expression(file, scope, node.value)
            if isinstance(base, LibraryName):
                return LibraryName(f"{base.path}.{node.attr}")
            if isinstance(base, ProjectModule):
                return self.name(base.file, base.file.scope, node.attr)
        return None

    # classes

    def lineage(self, cls: Definition) -> tuple[list[Definition], list[str], bool]:
        """The class and its ancestors of the program, last names of its library bases, and whether all are known."""
        if id(cls.node) not in self._lineages:
            self._lineages[id(cls.node)] = [cls], [], False  # a class that is derived from itself
            self._lineages[id(cls.node)] = self._lineage(cls)
        return self._lineages[id(cls.node)]

    def _lineage(self, cls: Definition) -> tuple[list[Definition], list[str], bool]:
        found, outside, known = [cls], [], True
        assert isinstance(cls.node, ast.ClassDef)
        if cls.node.keywords:
            known = all(
                keyword.arg == "metaclass" and last_name(keyword.value) == "ABCMeta" for keyword in cls.node.keywords
            )
        scope = self.scope_of(cls)
        for base in cls.node.bases:
            if isinstance(base, ast.Subscript) and last_name(base.value) == "Generic":
                continue
            target = self.expression(cls.file, scope, base) if scope is not None else None
            if isinstance(target, Definition) and target.is_class and target.node is not cls.node and len(found) < 20:
                lineage, others, all_known = self.lineage(target)
                found += [
                    ancestor
                    for ancestor in lineage
                    if all(ancestor.node is not known_base.node for known_base in found)
                ]
                outside += others
                known = known and all_known
            else:
                outside.append(last_name(base))
                is_plain = last_name(base) in _PLAIN_BASES and (
                    isinstance(target, LibraryName) or last_name(base) in ("object", "Exception", "ValueError")
                )
                known = known and is_plain
        return found, outside, known

    def scope_of(self, cls: Definition) -> Scope | None:
        """The scope in which a class is defined."""
        return cls.file.outer_scopes.get(id(cls.node))

    def method(self, cls: Definition, name: str) -> Definition | None:
        """A method that one line binds, in the class or the nearest ancestor; None if a subclass has its own."""
        lineage, _, known = self.lineage(cls)
        for ancestor in lineage:
            members = ancestor.members.get(name)
            if members:
                node = members[0]
                is_one = len(members) == 1 and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                if not is_one or self._is_overridden(ancestor, name) or self._is_patched(name):
                    return None
                if (ancestor is not cls and not known) or is_left_to_subclasses(node):
                    return None
                return Definition(node, ancestor.file, ancestor)  # type: ignore[arg-type]
            if not known:
                return None
        return None

    def _is_derived(self, cls: Definition, ancestor: Definition) -> bool:
        return any(base.node is ancestor.node for base in self.lineage(cls)[0])

    def _is_patched(self, name: str) -> bool:
        return any(name in file.patched for file in self._files.values())

    def _is_overridden(self, cls: Definition, name: str) -> bool:
        for other in self.classes:
            if other.node is not cls.node and name in other.members and self._is_derived(other, cls):
                return True
        return False


def is_left_to_subclasses(node: ast.AST) -> bool:
    """A method without a body of its own."""
    body = getattr(node, "body", [])
    return all(
        isinstance(part, ast.Pass | ast.Raise) or (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
        for part in body
    )


def class_body(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements of a class, those below its `if` and `try` too."""
    assert isinstance(node, ast.ClassDef)
    waiting: list[ast.stmt] = list(node.body)
    while waiting:
        statement = waiting.pop(0)
        yield statement
        for name in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With | ast.For):
                waiting += getattr(statement, name, [])
        for handler in getattr(statement, "handlers", []):
            waiting += handler.body


def bound_in_class(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.If | ast.Try | ast.With | ast.For):
        return set()
    found = {part.id for part in own_nodes([node]) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    for part in own_nodes([node]):
        if isinstance(part, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in part.names}
    return found


def last_name(node: ast.AST) -> str:
    """`torch.no_grad()` --> no_grad."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
