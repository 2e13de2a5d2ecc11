"""
## What it checks
A mask that is changed in place (`mask[:, :n] = 0`, `mask.mul_(...)`, `mask[:, :n].zero_()`) while the same tensor under
another name is the attention mask of a later pass, or is read again by the next turn of a loop. A slice, a view and a
plain `b = a` are the same memory.

## Why it hurts
The loss mask hides the prompt; if it is the attention mask too, the prompt is hidden from the model, and log-probs are
those of the completion without its question. The first pass, before the change, was right: the ratio starts far from 1.

## How to fix it
    # before
    loss_mask = attention_mask
    loss_mask[:, :prompt_length] = 0
    # after
    loss_mask = attention_mask.clone()
    loss_mask[:, :prompt_length] = 0

## When it is wrong
Changing a mask in place under its own name is meant so and left alone. An index with a tensor, a cast to another type
and arithmetic make copies.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.examples.scripts import GENERATE
from assay.programs.edits import Spot
from assay.programs.facts.kinds import Kind
from assay.programs.graph import UNKNOWN, Value
from assay.programs.program import Program
from assay.programs.run.sight import is_mask, numbers_of, sight
from assay.programs.run.watched import WatchedRun
from assay.programs.walk import follow, main_input, peel, walk
from assay.record.batch import Array
from assay.verdict import Edit, Severity, Verdict, finding, healthy, likely

VIEWS = frozenset("view reshape squeeze unsqueeze transpose permute expand expand_as detach".split())
IN_PLACE = ("zero_", "fill_", "masked_fill_", "mul_", "copy_", "logical_and_", "logical_or_", "clamp_")


def check_source(program: Program) -> Iterator[Verdict]:
    for value in program.values:
        changed = _changed(value)
        if changed is None:
            continue
        expanded = _expanded(value)
        if expanded is not None:
            yield likely(
                f"{value.place.text} writes into a tensor that expand() made: its columns or rows are one and the same "
                "memory, and all of them change",
                places=(value.place, expanded.place),
            )
            continue
        mask = _memory(changed)
        if not _is_mask(program, mask):
            continue
        reader = next((user for user in mask.users if _reads(user, value, mask)), None)
        if reader is not None:
            yield likely(
                f"{value.place.text} changes a mask in place, and {reader.place.text} reads the same tensor after it",
                places=(value.place, reader.place),
                why=program.kinds.why(mask),
            )
        else:
            yield healthy("a mask is changed in place and read by that name only", places=(value.place,))
    for value in program.of("clone", "deepcopy"):
        if value.input is not None and _is_mask(program, _memory(value.input)):
            yield healthy("a mask is copied before it is changed", places=(value.place,))


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    for write in run.graph.of("setitem"):
        before = sight(write.input)
        if before is not None and before.overlaps and write.input is not None:
            yield finding(
                f"`{write.place.text}` writes into a tensor whose rows or columns are one place in memory (expand): "
                "more changes than what is named",
                places=(write.place, write.input.place),
            )
    yield from _hidden_prompts(run)
    yield from _changed_between_updates(run)


def _changed(value: Value) -> Value | None:
    """What an operation writes into."""
    writes = value.op == "setitem" or (value.name in IN_PLACE and value.op not in ("in_place", "library"))
    return value.input if writes else None


def _expanded(change: Value) -> Value | None:
    """The expand() into whose memory some of many equal columns or rows are written."""
    current = peel(change.input, ("setitem", "phi"), by=("input", "0")) if change.op == "setitem" else None
    if current is None or current.op not in ("expand", "expand_as"):
        return None
    keys = change.keys
    by_mask = len(keys) == 1 and keys[0].op != "slice" and keys[0].constant is UNKNOWN
    return current if by_mask or any(_is_some(keys, dim) for dim in _repeated(current)) else None


def _repeated(expand: Value) -> list[int]:
    """The dimensions along which an expanded tensor is one and the same memory, where the text shows it."""
    sizes = [size.constant for name, size in expand.arguments.items() if name.isdigit()]
    if expand.op == "expand" and -1 in sizes:
        return [dim for dim, size in enumerate(sizes) if size != -1]
    inner = expand.input
    if inner is not None and inner.op == "unsqueeze":
        dim = inner.setting("dim")
        return [{-1: 1, 0: 0, 1: 1}[dim]] if dim in (-1, 0, 1) else []
    if inner is not None and inner.op == "index":
        return [dim for dim, key in enumerate(inner.keys) if key.constant is None]
    return []


def _is_some(keys: list[Value], dim: int) -> bool:
    """Whether keys choose a part of that dimension: all of it, written at once, stays as equal as it was."""
    return dim < len(keys) and (keys[dim].op != "slice" or bool(keys[dim].arguments))


def _memory(value: Value) -> Value:
    """The tensor whose memory a view is."""

    def viewed(view: Value) -> Value | None:
        is_slice = all(key.op == "slice" or isinstance(key.constant, int) for key in view.keys)
        return view.input if view.op in VIEWS or (view.op == "index" and is_slice and not view.name) else None

    return follow(value, viewed)


def _is_mask(program: Program, value: Value) -> bool:
    if program.kinds.is_a(value, Kind.MASK):
        return True
    return any("mask" in name for user in value.users for name in _names_in(user, value))


def _reads(user: Value, change: Value, mask: Value) -> bool:
    """Whether a use of the tensor sees the change although it goes by another name."""
    if user is change or user.op in ("setitem", "phi", "in_place", "setattr", "assert", "attribute", "len"):
        return False
    if user.order < change.order or _leads_to(user, change):
        inside = change.context.loops[-1:]
        again = bool(inside) and inside[0] in user.context.loops and inside[0] not in mask.context.loops
        is_before = user.order <= change.order and not _leads_to(user, change)
        return again and is_before and not change.users and user.op in ("index", "mul")
    is_pass = user.op in ("forward", "generate", "call") and any("mask" in name for name in _names_in(user, mask))
    return is_pass and bool(change.users)


def _names_in(user: Value, value: Value) -> list[str]:
    """The arguments of an operation that are this value."""
    return [name for name, argument in user.arguments.items() if argument is value]


def _leads_to(user: Value, change: Value) -> bool:
    """Whether the use is the view through which the change is made."""
    return change.input is not None and user in islice(walk(change.input, main_input), 20)


def _hidden_prompts(run: WatchedRun) -> Iterator[Verdict]:
    """A write into a mask that is the attention mask of a later pass."""
    for forward in run.forwards:
        ids = numbers_of(forward.input_ids)
        for write in _writes(forward.attention_mask):
            was, now = _before_and_after(write)
            if was is None or now is None or ids is None or now.shape != ids.shape:
                continue
            hidden = (was != 0) & (now == 0)
            if hidden.any() and _were_attended(run, ids[hidden]):
                yield finding(
                    f"`{write.place.text}` writes into the tensor that is the attention mask of a later pass: "
                    f"{int(hidden.sum())} tokens of prompts are hidden there",
                    places=(write.place, forward.value.place),
                )


def _writes(value: Value | None) -> Iterator[Value]:
    """The writes into the tensor itself, the last first."""
    kept = ("setitem", "changed", "index", "cast")
    way = walk([value] if value is not None else [], main_input, until=lambda step: step.op not in kept)
    return (write for write in way if write.op == "setitem")


def _before_and_after(write: Value) -> tuple[Array | None, Array | None]:
    """The numbers of the tensor that is written into; None where they are not known."""
    was, now = numbers_of(write.input), numbers_of(write)
    return (was, now) if was is not None and now is not None and was.shape == now.shape else (None, None)


def _were_attended(run: WatchedRun, tokens: Array) -> bool:
    """Whether a sampler saw all of these tokens."""
    prompts = [numbers_of(call.input_ids) for call in run.generations]
    prompts += [numbers_of(draw.forward.input_ids) for draw in run.samplings if draw.forward is not None]
    return any(prompt is not None and bool(np.isin(tokens, prompt).all()) for prompt in prompts)


def _changed_between_updates(run: WatchedRun) -> Iterator[Verdict]:
    """A mask of rollouts that is changed in place while updates on them go on."""
    masks: dict[int, Value] = {}
    for piece in (piece for backward in run.backwards for piece in backward.pieces):
        root = peel(piece.mask, ("index", "cast"))
        if root is None or not is_mask(root):
            continue
        for write in _writes(root):
            first = masks.get(id(peel(write.input, ("setitem",))))
            if first is None or not any(first.order < update.order < write.order for update in run.updates):
                continue
            was, now = _before_and_after(write)
            if was is not None and now is not None and (was != now).any():
                yield finding(
                    f"`{write.place.text}` changes the mask of the rollouts in place while updates on them go on",
                    places=(write.place,),
                )
        masks.setdefault(id(root), root)


SICK = GENERATE.replace(
    "    rewards = torch",
    "    loss_mask = attention\n"
    "    loss_mask[:, :-completions.shape[1]] = 0\n"
    "    mask = loss_mask[:, -completions.shape[1]:].float()\n"
    "    rewards = torch",
)
WELL = SICK.replace("loss_mask = attention\n", "loss_mask = attention.clone()\n")


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """A copy where the second name is bound."""
    for name in spot.all(ast.Name):
        value = name.definition
        yield value.followed_by(".clone()") if value is not None else None
    for value in others:
        yield value.followed_by(".clone()") if value.name in ("expand", "expand_as") else None


ILLNESS = illness(
    __name__,
    code="ALGN06",
    severity=Severity.FATAL,
    summary="a mask is changed in place while it is in use under another name",
    fix="Copy the mask before changing it: mask.clone().",
    symptoms=(
        "mask changes after an in-place operation",
        "mask becomes empty by itself",
    ),
    scripts=Scripts(SICK, WELL),
    explains=frozenset({"ALGN05", "RAT01", "RAT07", "KL05", "SAMP06"}),
)
