"""
## What it checks
Rows that are compared with each other must answer the same prompt. The check looks at the prompts of the rows of each
group: by prompt_id where there is one, else by the prompt's tokens.

## Why it hurts
The advantage says how much better an answer is than others to the same question. Across questions it says which
question was easier: answers to easy prompts are reinforced whatever they say, answers to hard ones are punished, and
the mean of each group is still 0, so that no metric looks wrong.

## How to fix it
Repeat each prompt in place before rows are cut into groups, or group by an id that travels with the row.

    # before: p0 p1 p2 p0 p1 p2, cut into groups of two
    prompts = prompts.repeat(group_size, 1)
    groups = rewards.view(-1, group_size)
    # after: p0 p0 p1 p1 p2 p2
    prompts = prompts.repeat_interleave(group_size, dim=0)
    groups = rewards.view(-1, group_size)

## When it is wrong
Where one row is one turn of a longer conversation, rows of a group have different contexts by design; give their common
prompt as prompt_id. The finding is only likely where prompts are known by their tokens and none stands in two groups.
"""

from __future__ import annotations

import ast
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace as replaced

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import GROUPS, SIZE, B, edit_batch, healthy_batch, of_batch, scored_behind
from assay.doctor.examples.scripts import GRPO, with_change
from assay.doctor.facts.repeats import values_by_key
from assay.programs.edits import Spot, interleaved, together
from assay.programs.facts.advantages.advantages import weighs_policy
from assay.programs.facts.advantages.groups import (
    Expansion,
    Grouping,
    expansions,
    groupings,
    is_of_several,
    is_shaped,
    same_size,
    shape_of,
)
from assay.programs.program import Program
from assay.programs.walk import peel
from assay.verdict import Confidence, Edit, Fact, Missing, Severity, Verdict, finding, healthy, likely, not_enough_data


def check_batch(batch: Batch) -> Verdict:
    (groups_B,) = batch.need("group_ids")
    prompts, by_name = _prompts(batch)
    groups = groups_B.tolist()
    members = values_by_key(groups, range(len(groups)))
    if not any(len(rows) > 1 for rows in members.values()):
        return not_enough_data("a group of two rows")
    mixed = [rows for rows in members.values() if len({prompts[row] for row in rows}) > 1]
    fact = Fact("groups with rows of several prompts", len(mixed), 0, batch.step)
    if not mixed:
        return healthy("the rows of each group answer one prompt", fact)
    torn = sum(len(set(homes)) > 1 for homes in values_by_key(prompts, groups).values())
    first = mixed[0]
    stranger = next(row for row in first if prompts[row] != prompts[first[0]])
    return finding(
        f"{len(mixed)} of {len(members)} groups hold answers to different prompts{_order(prompts, len(members))}: "
        f"rows {first[0]} and {stranger} are compared with each other",
        replaced(fact, row=stranger),
        Fact("prompts whose rows stand in several groups", torn, 0, batch.step),
        confidence=Confidence.PROVEN if by_name or torn else Confidence.LIKELY,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    made = list(expansions(program))
    single = {
        expansion.place for expansion in made if not is_of_several(expansion)
    }  # of a function seen with one prompt
    made = [expansion for expansion in made if expansion.place not in single or not is_of_several(expansion)]
    for grouping in groupings(program):
        if not weighs_policy(program, grouping.value):
            continue
        # a mean over the prompts of rows in groups of that size is group_scope's
        is_across = grouping.across and all(_keeps_together(repeat) for repeat in made)
        by_count = [repeat for repeat in made if same_size(repeat.size, grouping.count) and not is_across]
        if by_count and grouping.size.constant == -1:
            place, text = by_count[0].place, by_count[0].value.place.text
            yield likely(
                f"{grouping.value.place.text} makes as many groups as a prompt has answers, not groups of that size",
                places=(grouping.value.place, place),
                why=(f"line {place.line}: {text} answers each prompt several times",),
            )
            continue
        fitting = [repeat for repeat in made if same_size(repeat.size, grouping.size) and _is_ordered(repeat, grouping)]
        contrary = [repeat for repeat in fitting if _keeps_together(repeat) != grouping.consecutive]
        if contrary and len(contrary) == len(fitting):
            how = "in place (p p q q)" if _keeps_together(contrary[0]) else "as a whole (p q p q)"
            cut = "every n-th row" if not grouping.consecutive else "neighbouring rows"
            yield likely(
                f"{contrary[0].value.place.text} repeats prompts {how}, but {grouping.value.place.text} groups "
                f"{cut}: a group holds answers to different prompts",
                places=(contrary[0].place, grouping.value.place),
                why=(f"line {grouping.value.place.line}: its mean is what the rewards are compared with",),
            )
        elif fitting:
            yield healthy("rows of one prompt stand together where they are grouped", places=(grouping.value.place,))
    yield from _numbered(program, made)
    yield from _spread(program)


def _prompts(batch: Batch) -> tuple[Sequence[Hashable], bool]:
    """What identifies the prompt of each row, and whether that is a name."""
    names = batch.texts.get("prompt_id")
    if names is not None:
        return names, True
    tokens_BP, mask_BP = batch.get("prompt_tokens"), batch.get("prompt_mask")
    if tokens_BP is not None:
        kept_BP = np.ones(tokens_BP.shape, dtype=bool) if mask_BP is None else mask_BP
        return [tuple(row[kept].tolist()) for row, kept in zip(tokens_BP, kept_BP, strict=True)], False
    texts = batch.texts.get("prompt")
    if texts is None:
        raise Missing("prompt_tokens")
    return texts, False


def _order(prompts: Sequence[Hashable], groups: int) -> str:
    """Names the usual cause where it fits: whole groups would come out if row i belonged to group i modulo P."""
    fits = len(prompts) > groups and all(len(set(prompts[first::groups])) == 1 for first in range(groups))
    return " (prompts come by turns, groups are cut in a row: repeat for repeat_interleave)" if fits else ""


def _numbered(program: Program, made: list[Expansion]) -> Iterator[Verdict]:
    """Rows that are numbered by torch.arange(n) // size, where prompts were repeated as a whole, or by % in place."""
    for value in program.of("floordiv", "mod"):
        counted = peel(value.input, ("cast", "moved", "clone"))
        if counted is None or counted.op != "arange" or not weighs_policy(program, value):
            continue
        size = value.argument("other")
        fitting = [repeat for repeat in made if same_size(repeat.size, size) and is_of_several(repeat)]
        if fitting and all(repeat.interleaved == (value.op == "mod") for repeat in fitting):
            how = "in place (p p q q)" if value.op == "mod" else "as a whole (p q p q)"
            cut = "every n-th row" if value.op == "mod" else "neighbouring rows"
            yield likely(
                f"{fitting[0].value.place.text} repeats prompts {how}, but {value.place.text} numbers {cut} as one "
                "group: a group holds answers to different prompts",
                places=(fitting[0].place, value.place),
                why=(f"line {value.place.line}: rewards are compared by this number",),
            )


def _keeps_together(expansion: Expansion) -> bool:
    return expansion.interleaved or not is_of_several(expansion)


def _is_ordered(expansion: Expansion, grouping: Grouping) -> bool:
    """One prompt at a time has an order only where a loop goes over prompts."""
    loops = expansion.value.context.loops
    return is_of_several(expansion) or len(loops) > len(grouping.value.context.loops)


def _spread(program: Program) -> Iterator[Verdict]:
    """Statistics of groups of neighbours that are laid over the rows in another order: mean.repeat(n)."""
    for value in program.of("repeat", "tile"):
        inner = value.input
        if inner is None or not weighs_policy(program, value):
            continue
        sizes = [size for name, size in value.arguments.items() if name.isdigit()]
        shaped = inner.input if inner.op in ("mean", "std") else None
        if shaped is None or not is_shaped(shaped) or len(sizes) != 1 or inner.setting("keepdim", False) is True:
            continue
        group = shape_of(shaped)
        if len(group) == 2 and group[0].constant == -1 and same_size(group[1], sizes[0]):
            yield likely(
                f"{value.place.text} repeats the statistics of groups as a whole (p q p q), but the rows of a group "
                f"stand together (p p q q)",
                places=(value.place, shaped.place),
                why=(f"line {shaped.place.line}: {shaped.place.text} makes groups of neighbouring rows",),
                fix="Use repeat_interleave, which repeats each number in place.",
            )


def _prompts_by_turns() -> Evidence:
    """The same rows and groups, with the prompts in the order p0 p1 p2 p3 p0 p1 .."""
    batch = healthy_batch()
    source_B = np.arange(B) % GROUPS * SIZE
    prompts_BP, mask_BP = (batch.arrays[name][source_B] for name in ("prompt_tokens", "prompt_mask"))
    moved = edit_batch(
        batch, prompt_tokens=prompts_BP, prompt_mask=mask_BP, **scored_behind(batch, prompts_BP, mask_BP)
    )
    texts = {
        name: [column[source] for source in source_B.tolist()] if name.startswith("prompt") else column
        for name, column in batch.texts.items()
    }
    return of_batch(replaced(moved, texts=texts))


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """Each prompt repeated by itself; groups that are as long as a prompt has answers."""
    yield from interleaved(spot)
    for view in (spot, *others):
        shape = view.node.args[-1] if isinstance(view.node, ast.Call) and view.node.args else None
        sizes = shape.elts if isinstance(shape, ast.Tuple) else view.node.args if shape is not None else []
        if view.name in ("unflatten", "reshape", "view") and len(sizes) == 2:
            first, second = view.child(sizes[0]), view.child(sizes[1])
            turned = together([first.becomes(second.source), second.becomes(first.source)], view.text)
            is_transposed = isinstance(view.parent.node, ast.Attribute) and view.parent.node.attr == "T"
            if is_transposed:
                behind = view.text.edit((*view.span[2:], *view.parent.span[2:]), "")
                turned = together([first.becomes(second.source), second.becomes(first.source), behind], view.text)
            yield turned


ILLNESS = illness(
    __name__,
    code="ADV02",
    severity=Severity.FATAL,
    summary="rows of one group answer different prompts",
    fix="Repeat each prompt in place (repeat_interleave, not repeat), or group rows by the id of their prompt.",
    symptoms=(
        "groups are mixed, different prompts in one group",
        "group order is wrong",
        "repeat instead of repeat_interleave",
        "same prompt does not have the same id",
    ),
    sick=_prompts_by_turns,
    well=lambda: of_batch(healthy_batch()),
    scripts=Scripts(with_change("prompts_of(step).repeat_interleave(8, dim=0)", "prompts_of(step).repeat(8, 1)"), GRPO),
    explains=frozenset({"ADV01", "ADV05"}),
)
