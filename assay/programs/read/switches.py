"""Context managers of the program that switch a network: its adapters off, its first weights in."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from assay.programs.read.things import Class, Function

_SAME_FUNCTION = frozenset(
    "training requires_grad grad p".split()
)  # who sets them trains or draws with the same weights
_DEEPEST = 3  # calls within the manager


def switches_network(manager: Function | Class) -> bool:
    """Whether it sets what the code of a network reads, a flag or a scale, or puts other weights in."""
    tree = manager.frame.module.tree
    if isinstance(manager, Class):
        entered = [method.node for name in ("__enter__", "__exit__") if (method := manager.method(name)) is not None]
        own = {node.args.args[0].arg for node in entered if node.args.args} if not manager.is_module else set()
    else:
        entered, own = [manager.node], set()
    run = list(_with_called(tree, entered))
    attributes: set[str] = set()
    variables: set[str] = set()
    for node in run:
        shared = {name for part in ast.walk(node) if isinstance(part, ast.Global | ast.Nonlocal) for name in part.names}
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and _last(part.func) in ("load_state_dict", "copy_", "swap_tensors"):
                return True
            if isinstance(part, ast.Call) and _last(part.func) == "setattr" and len(part.args) == 3:
                named = part.args[1]
                attributes |= (
                    {named.value} if isinstance(named, ast.Constant) and isinstance(named.value, str) else set()
                )
            if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
                if part.attr == "data":
                    return True
                if not (isinstance(part.value, ast.Name) and part.value.id in own):
                    attributes.add(part.attr)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) and part.id in shared:
                variables.add(part.id)
    read = {
        _last(part)
        for node in _network_code(tree)
        if node not in run
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute | ast.Name) and isinstance(part.ctx, ast.Load)
    }
    return bool((attributes | variables) & read - _SAME_FUNCTION)


def _with_called(tree: ast.Module, entered: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Functions, and those of the file that they call by name."""
    defined: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            defined.setdefault(node.name, []).append(node)
    seen: set[int] = set()
    waiting: list[ast.AST] = list(entered)
    for _ in range(_DEEPEST):
        following: list[ast.AST] = []
        for node in waiting:
            if id(node) not in seen:
                seen.add(id(node))
                yield node
                called = {_last(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)}
                following += [function for name in called for function in defined.get(name, ())]
        waiting = following


def _network_code(tree: ast.Module) -> Iterator[ast.AST]:
    """Methods of classes that have a forward pass, and functions of that name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
            yield from methods if any(method.name == "forward" for method in methods) else ()
        elif isinstance(node, ast.FunctionDef) and node.name == "forward":
            yield node


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
