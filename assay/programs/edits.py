"""The text of a program as spots that can be changed, and an Edit applied to a text.

A check says where a fault is seen; the `edits` of an illness say how the text there has to change. They work on the
syntax tree and write only the part that changes: everything else keeps its bytes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from assay.verdict import Edit, Place

_NEWLINE = re.compile(r"\r\n|\r|\n")
_LONGEST = 90  # characters of a place's text
# a method may follow these without parentheses
_TIGHT = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.List, ast.ListComp, ast.Tuple, ast.Dict)
_STRONG: dict[type, int] = {  # how strongly an operator binds: what binds less needs parentheses below it
    ast.Add: 1, ast.Sub: 1, ast.Mult: 2, ast.Div: 2, ast.FloorDiv: 2, ast.Mod: 2, ast.MatMult: 2, ast.USub: 3,
    ast.UAdd: 3, ast.Invert: 3, ast.Pow: 4,
}  # fmt: skip
_WEAKEST, _TIGHTEST = 0, 9
# settings of generate() with which all of the distribution is drawn from
WHOLE = {"top_k": "0", "top_p": "1.0", "repetition_penalty": "1.0", "min_p": "0.0", "typical_p": "1.0"}


class Text:
    """One file: its lines as the reader has them, its syntax tree, and what stands around each node."""

    def __init__(self, file: str, lines: Sequence[str], tree: ast.Module) -> None:
        self.file, self.lines, self.tree = file, lines, tree
        self.around = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}

    def span(self, node: Any) -> tuple[int, int, int, int]:
        """Line, column, last line, column behind the end: lines from 1, columns in characters from 0."""
        first, last = self.lines[node.lineno - 1], self.lines[node.end_lineno - 1]
        column = len(first.encode()[: node.col_offset].decode(errors="replace"))
        return node.lineno, column, node.end_lineno, len(last.encode()[: node.end_col_offset].decode(errors="replace"))

    def at(self, place: Place) -> Spot | None:
        wanted = place.line, place.column, place.end_line, place.end_column
        found = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.expr | ast.stmt) and node.lineno == place.line and self.span(node) == wanted
        ]
        return Spot(self, found[-1]) if found else None  # of `f(x)` alone on its line the call, not the statement

    @cached_property
    def torch(self) -> str | None:
        """How the file calls torch."""
        for node in ast.walk(self.tree):
            for alias in node.names if isinstance(node, ast.Import) else ():
                if alias.name == "torch":
                    return alias.asname or "torch"
        return None

    def cut(self, span: tuple[int, int, int, int]) -> str:
        line, column, end_line, end_column = span
        rows = list(self.lines[line - 1 : end_line])
        rows[-1] = rows[-1][:end_column]
        rows[0] = rows[0][column:]
        return "\n".join(rows)

    def edit(self, span: tuple[int, int, int, int], replacement: str, *, safe: bool = True) -> Edit:
        text = " ".join(self.cut(span).split())
        text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]}.."
        return Edit(Place(self.file, *span, text), replacement, safe)


@dataclass(frozen=True, eq=False)
class Spot:
    """One expression or statement of a text."""

    text: Text
    node: Any

    @cached_property
    def span(self) -> tuple[int, int, int, int]:
        return self.text.span(self.node)

    @property
    def source(self) -> str:
        return self.text.cut(self.span)

    @property
    def parent(self) -> Spot:
        """What stands around it; of a statement of the file itself the whole file, whose node is a Module."""
        return Spot(self.text, self.text.around.get(self.node, self.text.tree))

    @property
    def statement(self) -> Spot:
        spot = self
        while not isinstance(spot.node, ast.stmt | ast.Module):
            spot = spot.parent
        return spot

    @property
    def outside(self) -> Iterator[Spot]:
        """What stands around it, from the inside on."""
        node = self.text.around.get(self.node)
        while node is not None:
            yield Spot(self.text, node)
            node = self.text.around.get(node)

    @property
    def function(self) -> Any:
        """The function around it, else the whole file."""
        around = (spot.node for spot in self.outside)
        return next((node for node in around if isinstance(node, ast.FunctionDef | ast.Lambda)), self.text.tree)

    def all(self, *types: type) -> list[Spot]:
        """Itself and all in it of these types, in the order of the text."""
        found = [Spot(self.text, node) for node in ast.walk(self.node) if isinstance(node, types)]
        return sorted(found, key=lambda spot: spot.span[:2])

    def child(self, node: ast.AST | None) -> Spot:
        return Spot(self.text, node)

    @property
    def name(self) -> str:
        """The last part of what is called, or of the name itself: `torch.std(x)` and `x.std()` are std."""
        node = self.node.func if isinstance(self.node, ast.Call) else self.node
        return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""

    @property
    def is_method(self) -> bool:
        """Whether a call is x.f() of a value, not f() of a module."""
        function = self.node.func if isinstance(self.node, ast.Call) else None
        root = function
        while isinstance(root, ast.Attribute):
            root = root.value
        is_of_module = isinstance(root, ast.Name) and root.id in self.modules
        return isinstance(function, ast.Attribute) and not is_of_module

    @property
    def modules(self) -> set[str]:
        return {
            (alias.asname or alias.name).partition(".")[0]
            for node in ast.walk(self.text.tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }

    @property
    def receiver(self) -> Spot | None:
        """What a call is about: x of `x.std(1)` and of `torch.std(x, 1)`."""
        if self.is_method:
            return self.child(self.node.func.value)
        return self.child(self.node.args[0]) if isinstance(self.node, ast.Call) and self.node.args else None

    def argument(self, name: str, index: int | None = None) -> Spot | None:
        """An argument of a call by its name, or by its number behind what the call is about."""
        if not isinstance(self.node, ast.Call):
            return None
        for keyword in self.node.keywords:
            if keyword.arg == name:
                return self.child(keyword.value)
        rest = self.node.args if self.is_method else self.node.args[1:]
        return self.child(rest[index]) if index is not None and index < len(rest) else None

    @property
    def axes(self) -> str:
        """The text of what is given to a call beside what it is about: `dim=1, keepdim=True`."""
        rest = self.node.args if self.is_method else self.node.args[1:]
        spans = [self.child(node).span for node in (*rest, *self.node.keywords)]
        return self.text.cut((*min(spans)[:2], *max(span[2:] for span in spans))) if spans else ""

    @property
    def binding(self) -> int:
        node = self.node
        if isinstance(node, ast.BinOp | ast.UnaryOp):
            return _STRONG.get(type(node.op), _WEAKEST)
        return _TIGHTEST if isinstance(node, (*_TIGHT, ast.Constant)) else _WEAKEST

    def within(self, binding: int) -> str:
        """Its text, in parentheses if it binds less strongly."""
        return f"({self.source})" if self.binding < binding else self.source

    @property
    def tight(self) -> str:
        """Its text as something that a method can be asked of."""
        return self.source if isinstance(self.node, _TIGHT) else f"({self.source})"

    @property
    def definition(self) -> Spot | None:
        """Of a name the value that was bound to it last above, by `name = value` in a block around it."""
        if not isinstance(self.node, ast.Name):
            return None
        above = [
            Spot(self.text, node)
            for node in ast.walk(self.function)
            if isinstance(node, ast.Name)
            and node.id == self.node.id
            and isinstance(node.ctx, ast.Store)
            and node.lineno < self.statement.node.lineno
        ]
        last = max(above, key=lambda spot: spot.span[:2], default=None)
        holder = None if last is None else last.parent
        if (
            holder is None
            or not isinstance(holder.node, ast.Assign)
            or holder.node.targets != [last.node if last else 0]
        ):
            return None
        around = {self.text.tree, *(spot.node for spot in self.outside)}
        block = self.text.around.get(holder.node)
        while isinstance(block, ast.With):  # which always runs
            block = self.text.around.get(block)
        return self.child(holder.node.value) if block in around else None

    def parts(self, depth: int = 3) -> Iterator[Spot]:
        """Itself and what its names were bound to, and their names, up to a depth."""
        yield self
        for name in self.all(ast.Name) if depth else ():
            value = name.definition
            if value is not None:
                yield from value.parts(depth - 1)

    def knows(self, names: Iterable[str]) -> bool:
        """Whether names are bound in its function or in the file."""
        scopes = [self.function, self.text.tree]
        bound = {
            node.id if isinstance(node, ast.Name) else node.arg
            for scope in scopes
            for node in ast.walk(scope)
            if (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and self._shares(node, scope))
            or (isinstance(node, ast.arg) and scope is self.function and self._shares(node, scope))
        }
        return set(names) <= bound | self.modules

    def _shares(self, node: ast.AST, scope: Any) -> bool:
        """Whether a name is bound in a scope itself, not in a function or a class within it."""
        around = self.text.around.get(node)
        while around is not None and around is not scope:
            if isinstance(around, ast.FunctionDef | ast.Lambda | ast.ClassDef | ast.comprehension):
                return False
            around = self.text.around.get(around)
        return around is scope

    # edits

    def becomes(self, replacement: str, *, safe: bool = True) -> Edit:
        return self.text.edit(self.span, replacement, safe=safe)

    def as_part(self, replacement: str, *, safe: bool = True) -> Edit:
        """As `becomes`, in parentheses where an operator or a method stands beside it."""
        is_beside = isinstance(self.parent.node, ast.BinOp | ast.UnaryOp | ast.Attribute | ast.Subscript)
        if is_beside and self._parentheses() is None:
            replacement = f"({replacement})"
        return self.becomes(replacement, safe=safe)

    def negated(self, *, safe: bool = True) -> Edit:
        """A minus before the product that it belongs to; a plus before it becomes the minus."""
        spot = self
        while isinstance(spot.parent.node, ast.BinOp) and isinstance(spot.parent.node.op, ast.Mult | ast.Div):
            if spot.parent.node.left is not spot.node:
                break
            spot = spot.parent
        around = spot.parent.node
        if isinstance(around, ast.BinOp) and around.right is spot.node and isinstance(around.op, ast.Add):
            flipped = spot.parent.with_operator("-", safe=safe)
            if flipped is not None:
                return flipped
        line, column = spot._parentheses_or_itself()[:2]
        return self.text.edit((line, column, line, column), "-", safe=safe)

    def exchanged(self, *, safe: bool = True) -> Edit | None:
        """a - b --> b - a, also of a quotient."""
        node = self.node
        if not isinstance(node, ast.BinOp):
            return None
        left, right, binding = self.child(node.left), self.child(node.right), _STRONG[type(node.op)]
        sign = {ast.Sub: "-", ast.Div: "/"}.get(type(node.op))
        return self.becomes(f"{right.within(binding)} {sign} {left.within(binding + 1)}", safe=safe) if sign else None

    def unwrapped(self, *, safe: bool = True) -> Edit | None:
        """The body of a `with` of one item in its place, moved to the left."""
        if not isinstance(self.node, ast.With) or self.indent.strip():
            return None
        first, last = self.child(self.node.body[0]), self.child(self.node.body[-1])
        if first.span[0] == self.span[0]:
            return None
        more = len(first.indent) - len(self.indent)
        rows = self.text.lines[first.span[0] - 1 : last.span[2]]
        moved = [row[more:] if row[:more].strip() == "" else row for row in rows]
        return self.text.edit((self.span[0], 0, *self.span[2:]), "\n".join(moved), safe=safe)

    def without_item(self, item: ast.withitem, *, safe: bool = True) -> Edit | None:
        """A `with` without one of its items."""
        items = self.node.items
        if len(items) == 1:
            return self.unwrapped(safe=safe)
        index = items.index(item)
        spans = [self.child(other.context_expr).span for other in items]
        if any(other.optional_vars is not None for other in items):
            return None
        start, end = (spans[index - 1][2:], spans[index][2:]) if index else (spans[0][:2], spans[1][:2])
        return self.text.edit((*start, *end), "", safe=safe)

    def followed_by(self, method: str, *, safe: bool = True) -> Edit:
        """x --> x.method, (a + b) --> (a + b).method."""
        if isinstance(self.node, _TIGHT) and not isinstance(self.node, ast.Tuple):
            line, column = self.span[2:]
            return self.text.edit((line, column, line, column), method, safe=safe)
        outer = self._parentheses()
        if outer is not None:
            line, column = outer[2:]
            return self.text.edit((line, column, line, column), method, safe=safe)
        return self.becomes(f"({self.source}){method}", safe=safe)

    def with_argument(self, argument: str, *, safe: bool = True) -> Edit | None:
        """f(x) --> f(x, argument); on a line of its own where the last one stands on one."""
        if not isinstance(self.node, ast.Call):
            return None
        spread = [keyword.value for keyword in self.node.keywords if keyword.arg is None]
        if any(self.child(node)._is_table() for node in spread):
            return None  # the name may be given twice
        given = [self.child(node).span for node in (*self.node.args, *self.node.keywords)]
        if not given:
            line, column = self.span[2], self.span[3] - 1
            return self.text.edit((line, column, line, column), argument, safe=safe)
        last = max(given, key=lambda span: span[2:])
        line, column = last[2:]
        alone = self.text.lines[last[0] - 1][: last[1]]
        separator = f",\n{alone}" if alone.strip() == "" and len(given) > 1 else ", "
        return self.text.edit((line, column, line, column), f"{separator}{argument}", safe=safe)

    def _is_table(self) -> bool:
        """Whether `**x` spreads a dictionary of the program's own, or what it was given; not what a call returned."""
        if not isinstance(self.node, ast.Name):
            return True
        bound = [
            self.text.around.get(node)
            for node in ast.walk(self.text.tree)
            if isinstance(node, ast.Name) and node.id == self.node.id and isinstance(node.ctx, ast.Store)
        ]
        values = [self.child(holder.value) for holder in bound if isinstance(holder, ast.Assign)]
        is_call = [isinstance(value.node, ast.Call) and value.name != "dict" for value in values]
        return not values or len(values) < len(bound) or not all(is_call)

    def set_argument(self, name: str, index: int | None, value: str, *, safe: bool = True) -> Edit | None:
        given = self.argument(name, index)
        if given is not None:
            return given.becomes(value, safe=safe)
        return self.with_argument(f"{name}={value}", safe=safe)

    def renamed(self, name: str, *, safe: bool = True) -> Edit | None:
        """torch.max(a, b) --> torch.name(a, b): only the last part of what is called is written."""
        function = self.node.func if isinstance(self.node, ast.Call) else None
        if not isinstance(function, ast.Attribute):
            return None
        line, column = self.child(function).span[2:]
        return self.text.edit((line, column - len(function.attr), line, column), name, safe=safe)

    def operator(self) -> tuple[int, int, int, int] | None:
        """The span of the sign between the two sides of a binary operation."""
        node = self.node
        if not isinstance(node, ast.BinOp | ast.Compare):
            return None
        sides = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.left, node.comparators[0])
        line, column = self.child(sides[0]).span[2:]
        stop_line, stop_column = self.child(sides[1]).span[:2]
        between = self.text.cut((line, column, stop_line, stop_column))
        match = re.fullmatch(r"([\s)]*)([-+*/<>=!]+)[\s(]*", between)
        if match is None or "\n" in match[1]:
            return None
        start = column + len(match[1])
        return line, start, line, start + len(match[2])

    def with_operator(self, sign: str, *, safe: bool = True) -> Edit | None:
        span = self.operator()
        return None if span is None else self.text.edit(span, sign, safe=safe)

    def cast_to_float(self, *, safe: bool = True) -> Edit | None:
        """x.bfloat16(), x.to(torch.float16) --> x.float(); None of another call, or one that also moves x."""
        is_cast = self.name in ("bfloat16", "half") or (self.name in ("to", "type") and self.axes.endswith("float16"))
        if not self.is_method or not is_cast or "," in self.axes:
            return None
        line, column = self.child(self.node.func).span[2:]
        return self.text.edit((line, column - len(self.name), *self.span[2:]), "float()", safe=safe)

    def without_call(self, *, safe: bool = True) -> Edit | None:
        """x.f() --> x."""
        receiver = self.receiver if self.is_method else None
        if receiver is None:
            return None
        line, column = receiver._parentheses_or_itself()[2:]
        return self.text.edit((line, column, *self.span[2:]), "", safe=safe)

    def without_line(self, *, safe: bool = True) -> Edit | None:
        """Takes a statement away that stands alone on its lines, and is not all that its block holds."""
        spot = self.statement
        line, column, end_line, end_column = spot.span
        before, behind = self.text.lines[line - 1][:column], self.text.lines[end_line - 1][end_column:]
        if before.strip() or behind.partition("#")[0].strip() or end_line >= len(self.text.lines) or not spot.has_mates:
            return None
        return self.text.edit((line, 0, end_line + 1, 0), "", safe=safe)

    @property
    def has_mates(self) -> bool:
        """Whether other statements stand in the block."""
        around = self.text.around.get(self.node)
        blocks = (getattr(around, name, None) for name in ("body", "orelse", "finalbody"))
        return any(isinstance(block, list) and self.node in block and len(block) > 1 for block in blocks)

    @property
    def indent(self) -> str:
        line, column = self.statement.span[:2]
        return self.text.lines[line - 1][:column]

    def with_line_before(self, statement: str, *, safe: bool = True) -> Edit | None:
        spot = self.statement
        line = spot.span[0]
        if spot.indent.strip():
            return None
        return self.text.edit((line, 0, line, 0), f"{spot.indent}{statement}\n", safe=safe)

    def with_line_after(self, statement: str, *, safe: bool = True) -> Edit | None:
        spot = self.statement
        end_line = spot.span[2]
        if spot.indent.strip() or end_line >= len(self.text.lines):
            return None
        return self.text.edit((end_line + 1, 0, end_line + 1, 0), f"{spot.indent}{statement}\n", safe=safe)

    def _parentheses(self) -> tuple[int, int, int, int] | None:
        """The span with the parentheses that stand right around it, where they are its own."""
        line, column, end_line, end_column = self.span
        first, last = self.text.lines[line - 1], self.text.lines[end_line - 1]
        if first[column - 1 : column] != "(" or last[end_column : end_column + 1] != ")":
            return None
        around = self.text.around.get(self.node)
        if isinstance(around, ast.Call) and self.node in around.args:
            function = self.child(around.func).span
            if function[2:] == (line, column - 1):
                return None  # the parentheses of the call
        return line, column - 1, end_line, end_column + 1

    def _parentheses_or_itself(self) -> tuple[int, int, int, int]:
        return self._parentheses() or self.span


def moved(statement: Spot, before: Spot) -> Edit | None:
    """A line taken away and written before another one of the same block that stands above it: one edit."""
    first, last = before.statement, statement.statement
    if first.indent.strip() or last.indent != first.indent or last.span[0] <= first.span[0]:
        return None
    line, end_line = first.span[0], last.span[2]
    if end_line >= len(first.text.lines) or not _is_alone(last) or not _is_alone(first):
        return None
    taken = last.text.cut((last.span[0], 0, end_line + 1, 0))
    kept = first.text.cut((line, 0, last.span[0], 0))
    return first.text.edit((line, 0, end_line + 1, 0), taken + kept)


def _is_alone(spot: Spot) -> bool:
    """Whether nothing else but a comment stands on the lines of a statement."""
    line, column, end_line, end_column = spot.span
    before, behind = spot.text.lines[line - 1][:column], spot.text.lines[end_line - 1][end_column:]
    return not before.strip() and not behind.partition("#")[0].strip()


def together(edits: Iterable[Edit | None], text: Text) -> Edit | None:
    """Several edits of one text as one, with what stands between them; None if one is missing or two overlap."""
    found: list[Edit] = []
    for edit in edits:
        if edit is None or any(overlap(edit, other) for other in found):
            return None
        found.append(edit)
    if not found:
        return None
    found.sort(key=lambda edit: (edit.place.line, edit.place.column))
    first, last = found[0].place, found[-1].place
    parts, end = [], (first.line, first.column)
    for edit in found:
        start = edit.place.line, edit.place.column
        parts += [text.cut((*end, *start)) if end < start else "", edit.replacement]
        end = edit.place.end_line, edit.place.end_column
    span = first.line, first.column, last.end_line, last.end_column
    return text.edit(span, "".join(parts), safe=all(edit.safe for edit in found))


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def applied(text: str, edits: Sequence[Edit]) -> str:
    """The text after edits that do not overlap. Lines end as they did; a new one ends like the first.

    >>> applied("a = b - c\\r\\n", [Edit(Place("a.py", 1, 4, 1, 9), "c - b")])
    'a = c - b\\r\\n'
    """
    ends = [match.end() for match in _NEWLINE.finditer(text)]
    starts = [0, *ends]
    newline = _NEWLINE.search(text)
    spans = sorted(
        (
            starts[edit.place.line - 1] + edit.place.column,
            starts[edit.place.end_line - 1] + edit.place.end_column,
            edit.replacement,
        )
        for edit in edits
    )
    parts, end = [], 0
    for start, stop, replacement in spans:
        if start < end:
            raise ValueError("two edits overlap")
        parts += [text[end:start], replacement.replace("\n", newline[0] if newline else "\n")]
        end = stop
    return "".join([*parts, text[end:]])


def over_mask(total: Spot, product: Spot) -> Iterator[Edit]:
    """`total` is a mean or sum of `product`, something times a mask: the sum divided by the mask's own."""
    if not isinstance(product.node, ast.BinOp) or not isinstance(product.node.op, ast.Mult):
        return
    axes = total.axes
    for side in (product.node.right, product.node.left):
        mask = product.child(side)
        if "mask" in mask.source.lower() or isinstance(side, ast.Name):
            yield total.as_part(f"({product.source}).sum({axes}) / {mask.tight}.sum({axes}).clamp(min=1)")


def interleaved(spot: Spot) -> Iterator[Edit | None]:
    """Items that are repeated as a whole (p q p q) --> each one by itself (p p q q)."""
    node = spot.node
    if isinstance(node, ast.Call) and spot.name in ("repeat", "tile") and node.args:
        counts = node.args if spot.is_method else node.args[1:]
        if spot.is_method and len(counts) == 1:
            yield spot.renamed("repeat_interleave")
        elif spot.is_method and all(isinstance(count, ast.Constant) and count.value == 1 for count in counts[1:]):
            function = spot.child(node.func).span
            start = (*function[2:], *spot.span[2:])
            edit = spot.text.edit(start, f"({spot.child(counts[0]).source}, dim=0)")
            yield together([spot.renamed("repeat_interleave"), edit], spot.text)
        elif spot.name == "tile" and len(counts) == 1 and not spot.is_method:
            yield spot.renamed("repeat")  # numpy's repeat is torch's repeat_interleave
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        items, count = spot.child(node.left), spot.child(node.right)
        if "item" not in names_in(node):
            yield spot.becomes(f"[item for item in {items.source} for _ in range({count.source})]")
    if isinstance(node, ast.ListComp) and len(node.generators) == 2:
        outer, inner = (spot.child(generator) for generator in node.generators)
        first, second = (
            spot.text.cut((*spot.child(part.target).span[:2], *spot.child(part.iter).span[2:]))
            for part in (outer.node, inner.node)
        )
        if not any(part.node.ifs for part in (outer, inner)):
            yield spot.becomes(f"[{spot.child(node.elt).source} for {second} for {first}]")


def by_the_policy(draw: Spot, copied: Spot) -> Iterator[Edit]:
    """`copied` is copy.deepcopy(policy), bound to a name, and `draw` samples with it: the policy in its place."""
    target = copied.statement.node.targets[0] if isinstance(copied.statement.node, ast.Assign) else None
    if not isinstance(target, ast.Name) or copied.receiver is None or copied.name != "deepcopy":
        return
    called = getattr(draw.function, "name", None)
    is_safe = not {"prepare", "DistributedDataParallel", "DDP"} & {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in ast.walk(draw.text.tree)
        if isinstance(node, ast.Attribute | ast.Name)
    }  # a wrapper has no generate()
    calls = [draw, *(call for call in Spot(draw.text, draw.text.tree).all(ast.Call) if call.name == called)]
    for call in calls:
        about = call.receiver if call.is_method else None
        for node in (*([about.node] if about is not None else ()), *call.node.args):
            if isinstance(node, ast.Name) and node.id == target.id:
                yield call.child(node).becomes(copied.receiver.source, safe=is_safe)


def overlap(one: Edit, other: Edit) -> bool:
    """Whether two edits write the same characters, or insert at the same place."""
    first, last = sorted((one.place, other.place), key=lambda place: (place.line, place.column))
    starts, ends = (last.line, last.column), (first.end_line, first.end_column)
    is_same = (first.line, first.column) == starts
    return one.place.file == other.place.file and (starts < ends or is_same)
