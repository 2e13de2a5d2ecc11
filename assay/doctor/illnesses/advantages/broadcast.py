"""
## What it checks
The shapes of what is multiplied, added or subtracted between rewards and the loss, as far as the text proves them: one
number per row is [B], log-probs of tokens are [B, T], sums over tokens are [B] or [B, 1].

## Why it hurts
PyTorch stretches shapes that do not match. [B] times [B, 1] is [B, B]: every row is weighed by the advantage of every
other one, and as advantages sum to 0, next to nothing is learned. [B] times [B, T] stops the script, or runs silently
where B happens to be T, and then weighs tokens by the advantages of rows.

## How to fix it
    # before: [B, 1] * [B] is [B, B]
    loss = -(sequence_ratio * advantages.unsqueeze(1)).mean()
    # after
    loss = -(sequence_ratio * advantages).mean()

    # before: [B, T] * [B]
    token_loss = -ratio * advantages
    # after
    token_loss = -ratio * advantages[:, None]

## When it is wrong
Where the text leaves a shape open, nothing is reported. A table of all rows against all rows that is meant (a
contrastive loss) is not part of a policy's loss.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.examples.scripts import with_change
from assay.programs.edits import Spot
from assay.programs.facts.advantages.shapes import Shape, Shapes, enlarged, is_column
from assay.programs.facts.kinds import Kind
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.run.kinds import above
from assay.programs.run.roles import backwards_since_sampling
from assay.programs.run.sight import shape_of, sight
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import ancestors
from assay.verdict import Edit, Severity, Verdict, finding, healthy, likely

BACKWARDS = 8  # of a run that are looked at: later ones come from the same lines
ARITHMETIC = frozenset("add sub mul div pow minimum maximum min max where mse_loss".split())


def check_source(program: Program) -> Iterator[Verdict]:
    shapes = Shapes(program)
    seen: set[int] = set()
    if not any(term.is_policy for _, terms in program.losses for term in terms):
        return
    for loss, _ in program.losses:
        for value in ancestors(loss):
            sides = _sides(value)
            if len(sides) != 2 or id(value) in seen:
                continue
            seen.add(id(value))
            left, right = (shapes.of(value.arguments[name]) for name in sides)
            if value.op not in ("mul", "div") and (fault := _column(value, sides, left, right)):
                yield likely(f"`{value.place.text}` {fault}", places=(value.place,))
                continue
            if not left or not right or left.count("B") > 1 or right.count("B") > 1:  # reported where it began
                continue
            fault = enlarged(left, right)
            if fault and any(_is_measured(value.arguments[name]) for name in sides):
                continue  # the script asks how many dimensions it has
            if not fault:
                yield healthy("the shapes fit", places=(value.place,))
                continue
            yield likely(
                f"`{value.place.text}` puts {_shown(left)} against {_shown(right)}: {fault}",
                places=(value.place,),
                why=tuple(_why(value, name, shapes) for name in sides),
            )


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """[B, 1] with [B]: every row meets every other."""
    for backward in backwards_since_sampling(run)[:BACKWARDS]:
        values = list(above(backward.loss))
        chosen = [value for value in values if run.kinds.of(value) is Kind.LOGPROBS]
        seen = [shape for value in chosen if (shape := shape_of(value)) is not None]
        tables, lists = ({shape[0] for shape in seen if len(shape) == count} - {1} for count in (2, 1))
        if not tables and not lists:
            continue
        first = min(value.order for value in chosen)
        for value in values:
            # inside of a network that is given states, entities may meet each other
            shapes, count = _crossed(value, tables | lists if value.order > first else tables)
            if count:
                other = next(value.arguments[name] for name in _SIDES if name in value.arguments)
                yield finding(
                    f"`{value.place.text}` of shapes {list(shapes[0])} and {list(shapes[1])} is {list(shapes[2])}: "
                    f"each of the {count} rows is combined with every other",
                    places=(value.place, other.place),
                )
        yield healthy("no operation of the loss combines every row with every other")


def _sides(value: Value) -> list[str]:
    """The names of the two arguments that meet element by element."""
    if value.op in ("mul", "add", "sub", "div", "minimum", "maximum"):
        return [name for name in ("input", "other") if name in value.arguments]
    if value.op in ("mse_loss", "smooth_l1_loss"):
        return [name for name in ("input", "target") if name in value.arguments]
    if value.op == "forward" and value.name in ("MSELoss", "SmoothL1Loss", "HuberLoss", "L1Loss"):
        return [name for name in value.arguments if name.startswith("given_")]
    return []


def _column(value: Value, sides: list[str], left: Shape, right: Shape) -> str:
    """[B, 1] of a network's last layer against numbers without that dimension."""
    for name, other, shape in ((sides[0], sides[1], right), (sides[1], sides[0], left)):
        if not shape or shape[-1] == "1" or not is_column(value.arguments[name]):
            continue
        column, plain = value.arguments[name].shown, value.arguments[other].shown
        return (
            f"puts {column}, whose last dimension has size 1, against {plain}, {_shown(shape)}: each meets every other"
        )
    return ""


def _is_measured(side: Value) -> bool:
    return any(user.op in ("method", "attribute") and user.name in ("dim", "ndim") for user in side.users)


def _why(value: Value, name: str, shapes: Shapes) -> str:
    side = value.arguments[name]
    return f"line {side.place.line}: {side.shown} is {_shown(shapes.of(side))}"


def _shown(shape: Shape) -> str:
    return "[" + ", ".join(shape or ()) + "]"


def _crossed(value: Value, rows: set[int]) -> tuple[list[tuple[int, ...]], int]:
    """(the shapes of both sides and of the result, rows that both sides were enlarged to; 0: they were not)."""
    seen = sight(value)
    is_scored = value.op == "log_prob" and value.input is not None and value.input.op == "categorical"
    if not (value.op in ARITHMETIC or is_scored) or seen is None or not seen.requires_grad or len(seen.shape) < 2:
        return [], 0
    operands = [sight(value.arguments.get(name)) for name in ("input", *_SIDES)]
    shapes = [operand.shape for operand in operands if operand is not None]
    if is_scored and value.input is not None:  # actions as a column, beside one distribution for each
        given = sight(value.input.arguments.get("logits") or value.input.arguments.get("probs"))
        shapes = [given.shape[:-1], *shapes] if given is not None else []
    if len(shapes) != 2 or any(len(shape) == 0 for shape in shapes):
        return [], 0
    whole = np.array(seen.shape)
    sides = [np.array((1,) * (len(seen.shape) - len(shape)) + shape) for shape in shapes]
    grown = [set(whole[(side == 1) & (whole > 1)].tolist()) for side in sides]
    return [*shapes, seen.shape], max(grown[0] & grown[1] & rows, default=0)


_SIDES = ("other", "target", "value")
WELL = with_change("rewards_of(ids[:, start:])", "torch.tensor([rewards_of(answer) for answer in ids[:, start:]])")


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """One axis too many is taken away, where it was added or where it is used; one that is missing is added."""
    if not isinstance(spot.node, ast.BinOp):
        return
    sides = [spot.child(spot.node.left), spot.child(spot.node.right)]
    for side in sides:
        for part in side.parts(1):
            if part.name == "unsqueeze" and part.is_method:
                yield part.without_call()
            elif isinstance(part.node, ast.Subscript) and part.source.replace(" ", "").endswith("[:,None]"):
                value = part.child(part.node.value)
                yield part.text.edit((*value.span[2:], *part.span[2:]), "")
    if "puts [B, 1] against [B]" in verdict.message:
        yield sides[1].followed_by(".unsqueeze(1)")
    if "puts [B] against [B, 1]" in verdict.message:
        yield sides[1].followed_by(".squeeze(1)")


ILLNESS = illness(
    __name__,
    code="ADV08",
    severity=Severity.FATAL,
    summary="mismatched shapes are broadcast: rows are weighted by the advantages of other rows",
    fix="Bring both sides to one shape: [B, 1] against tokens (unsqueeze(1)), [B] against sums over tokens.",
    symptoms=(
        "loss has shape [B, B]",
        "broadcasting error without exception",
        "advantage shape mismatch",
    ),
    scripts=Scripts(WELL.replace("advantages.view(-1, 1)\n", "advantages.view(-1, 1).unsqueeze(-1)\n"), WELL),
    explains=frozenset({"ADV05", "LOSS03", "MASK04"}),
)
