"""
## What it checks
Prompts end with the words after which the policy is to speak: the generation prefix of a chat template, or whatever the
prompts of this run have in common at their end. Prompts that lack it, all of the greatest length of the batch, while
every shorter one has it, were cut on the right by a length limit.

## Why it hurts
What is cut off is the question's last words and the sign that it is the policy's turn. The policy then continues the
question, is scored as if it had answered, and learns from noise.

## How to fix it
Leave long prompts out; or cut them on the left, where the end survives.

    # before: the end is lost
    prompt_ids = prompt_ids[:, :max_prompt_length]
    # after
    kept = [ids for ids in prompts if len(ids) <= max_prompt_length]

## When it is wrong
Prompts of free text have no common ending, and nothing can be said. If the longest prompts of a data set are of another
kind and end otherwise by nature, the finding is wrong: look at the texts of the rows it names. A single such
prompt, or few others that share no more than their last token (a question mark), make it merely possible.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Curves, Evidence
from assay.doctor.examples import GROUPS, PAD, SIZE, edit_batch, healthy_batch, healthy_curves
from assay.doctor.examples.scripts import GENERATE
from assay.programs.edits import Spot
from assay.programs.facts.kinds import Kind
from assay.programs.facts.sampling.prompts import prompts_of
from assay.programs.facts.sampling.scoring import lists_of, made_of
from assay.programs.facts.sampling.tokens import is_encoding, is_tokenizer, text_of
from assay.programs.graph import UNKNOWN, Value
from assay.programs.program import Program
from assay.programs.walk import walk
from assay.verdict import (
    Confidence,
    Edit,
    Fact,
    Severity,
    Verdict,
    finding,
    healthy,
    likely,
    not_applicable,
    not_enough_data,
)

_ELSEWHERE = frozenset({"parameter", "unknown", "instance"})
_DRAWN = re.compile(r"(^|\.)(rand|choice|sample|shuffle|builtins\.)")  # numbers and literals in a question are short
LOOKS_UP = frozenset("index find get token_to_id convert_tokens_to_ids piece_to_id PieceToId".split())
LEAST_WHOLE = 3  # different prompts that end alike: two may do so by chance
OFTEN = 0.1  # of the prompts of a step: more are not that long by chance
LEAST_ALL = 4  # different prompts, all of one length
LONG_PROMPT = 16  # tokens: prompts shorter than that are of one length by nature, not by a limit
TIGHT, TIGHT_FOR_CHATS = 256, 512  # tokens: questions of common data sets are longer, with a chat's frame more so


def check_batch(batch: Batch) -> Verdict:
    prompts_BP, real_BP = batch.need("prompt_tokens", "prompt_mask")
    rows: dict[tuple[int, ...], int] = {}  # each prompt once, with its first row
    for row, (prompt, real) in enumerate(zip(prompts_BP, real_BP, strict=True)):
        if real.any():
            rows.setdefault(tuple(prompt[real].tolist()), row)
    if not rows:
        return not_enough_data("prompt_tokens of any row")
    longest = max(map(len, rows))
    shorter = [prompt for prompt in rows if len(prompt) < longest]
    if not shorter:
        return _all_of_one_length(batch, rows, longest)
    last = shorter[0][-1]
    if any(prompt[-1] != last for prompt in shorter):
        return not_applicable("the prompts have no common ending")
    whole = [prompt for prompt in rows if prompt[-1] == last]
    if len(whole) < LEAST_WHOLE:
        return not_enough_data(f"{LEAST_WHOLE} different prompts that end alike")
    ending = _length_of_common_ending(whole)
    cut = [prompt for prompt in rows if prompt[-1] != last]
    fact = Fact("tokens that the other prompts have in common at their end", ending)
    if not cut:
        return healthy("the longest prompts end as the others do", fact, Fact("longest prompt in tokens", longest))
    is_plain = len(cut) >= 2 and len(whole) > LEAST_WHOLE  # three may share one last token by chance
    return finding(
        f"{len(cut)} of {len(rows)} prompts have exactly {longest} tokens, the most of all, and lack the ending that "
        "every shorter one has: they were cut on the right",
        Fact("prompts without the common ending", len(cut), 0, batch.step, rows[cut[0]]),
        fact,
        Fact("their length in tokens", longest),
        confidence=Confidence.LIKELY if ending >= 2 or is_plain else Confidence.POSSIBLE,
    )


def check_curves(curves: Curves) -> Verdict:
    (share_N,) = curves.need("prompt_truncated_share")
    share = float(np.nanmedian(share_N))
    fact = Fact("share of the prompts that are as long as the limit, median of the steps", share, OFTEN)
    if share <= OFTEN:
        return healthy("few prompts are as long as the limit", fact)
    low_N, high_N = curves.column("prompt_length_min"), curves.column("prompt_length_max")
    if np.array_equal(low_N, high_N):
        return not_applicable("all prompts have the same length")
    return finding(
        f"{share:.0%} of the prompts are exactly as long as the limit: they were cut",
        fact,
        confidence=Confidence.POSSIBLE,
    )


def check_source(program: Program) -> Iterator[Verdict]:
    sides = _sides(program)
    for value in dict.fromkeys(value for prompts in prompts_of(program) for value in made_of(prompts)):
        if is_encoding(value) and value.setting("truncation", False) in (True, "longest_first", "only_first"):
            yield from _of_encoding(value, sides)
        if _is_cut(program, value):
            yield likely(
                f"{value.place.text} keeps the beginning of a prompt: the words after which the policy is to speak "
                "are cut off",
                places=(value.place,),
            )


def _all_of_one_length(batch: Batch, rows: dict[tuple[int, ...], int], length: int) -> Verdict:
    endings = len({prompt[-1] for prompt in rows})
    if len(rows) < LEAST_ALL:
        return not_enough_data(f"{LEAST_ALL} different prompts")
    fact = Fact("different last tokens", endings, step=batch.step)
    if endings == 1:
        return healthy("all prompts end alike", fact)
    if length < LONG_PROMPT:
        return not_applicable("the prompts are short, of one length, and have no common ending")
    return finding(
        f"all {len(rows)} prompts have exactly {length} tokens and end in {endings} different ones: a length limit may "
        "have cut them on the right",
        fact,
        Fact("their length in tokens", length),
        confidence=Confidence.POSSIBLE,
    )


def _length_of_common_ending(prompts: list[tuple[int, ...]]) -> int:
    columns = zip(*(reversed(prompt) for prompt in prompts), strict=False)
    return sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, columns))


def _of_encoding(value: Value, sides: set[object]) -> Iterator[Verdict]:
    side = value.setting("truncation_side", None)
    lost = "a prompt that is too long loses its end, with the words after which the policy is to speak: the truncation"
    places = (value.place,)
    if side == "left" or (side is None and "left" in sides):
        yield healthy("prompts that are too long lose their beginning", places=places)
    elif side == "right" or "right" in sides:
        yield likely(f"{lost} side is right", places=places)
    elif "max_length" in value.arguments and not sides and is_tokenizer(value.argument("callee") or value.input):
        what = f"{lost} side is not set, and most tokenizers cut on the right"
        confidence = Confidence.LIKELY if _is_tight(value) else Confidence.POSSIBLE
        yield finding(what, confidence=confidence, places=places)


def _is_tight(encoding: Value) -> bool:
    """Whether prompts from elsewhere may well be longer than the limit: the script spells out none of them."""
    limit, text = encoding.setting("max_length"), text_of(encoding)
    if text is None or not isinstance(limit, int) or isinstance(limit, bool):
        return False
    parts = list(walk(text, _told))
    is_chat = any(part.op == "apply_chat_template" for part in parts)
    if limit > (TIGHT_FOR_CHATS if is_chat else TIGHT):
        return False
    return any(part.op in _ELSEWHERE or (part.op == "call" and _DRAWN.search(part.name) is None) for part in parts)


def _told(part: Value) -> list[Value]:
    """What a text is made of, without the tokenizer that renders it."""
    given = [value for name, value in part.arguments.items() if name not in ("input", "callee")]
    return given if part.op == "apply_chat_template" else [*part.arguments.values(), *lists_of(part)]


def _sides(program: Program) -> set[object]:
    """What the script says of truncation sides; UNKNOWN where it says it by a variable."""
    given = [call.setting("truncation_side") for call in program.of("call") if "truncation_side" in call.arguments]
    given += [change.setting("value") for change in program.of("setattr") if change.name == "truncation_side"]
    return {side if isinstance(side, str) else UNKNOWN for side in given}


def _is_cut(program: Program, value: Value) -> bool:
    """x[:n] of the tokens or of the text of one prompt, with a number that is a setting, not a length of its own."""
    source, keys = value.input, value.keys
    if value.op == "listing":
        cut = value.argument("slice")
        return cut is not None and _is_head(cut) and _is_tokens(value)
    if value.op != "index" or source is None or not _is_head(keys[-1]) or program.kinds.is_a(source, Kind.SAMPLED):
        return False
    if len(keys) == 1:
        return source.op in ("apply_chat_template", "encode")
    return source.op in ("index", "attribute") and source.name == "input_ids" and not keys[0].arguments


def _is_head(cut: Value) -> bool:
    stop = cut.argument("stop") if cut.op == "slice" else None
    if stop is None or "start" in cut.arguments or "step" in cut.arguments:
        return False
    return isinstance(stop.constant, int) and stop.constant > 1


def _is_tokens(listing: Value) -> bool:
    """Whether a list holds numbers that were looked up in a vocabulary: the tokens of one text, and no padding."""
    if any(part.op == "list_repeat" for part in walk(listing, lists_of)):
        return False  # (ids + [PAD] * n)[:n] is a row of fixed width
    parts = [part for name, part in listing.arguments.items() if name != "slice"]
    return any(map(_is_token, parts)) and all(_is_token(part) or _is_fixed(part) for part in parts)


def _is_token(value: Value) -> bool:
    """The number of a piece of text: vocabulary[piece], letters.index(piece), ord(letter) - 97."""
    if value.op in ("add", "sub"):
        return any(map(_is_token, value.inputs)) and all(_is_token(part) or _is_fixed(part) for part in value.inputs)
    if value.op in ("method", "call"):
        return value.name in LOOKS_UP if value.op == "method" else value.name == "builtins.ord"
    if value.op != "element" or "key" not in value.arguments or value.thing is not None:
        return False
    holders = [value.arguments["input"], *value.arguments["input"].inputs]
    return not any(isinstance(holder.constant, str) for holder in holders if holder.op != "enumerate")


def _is_fixed(value: Value) -> bool:
    """The id of a special token."""
    return isinstance(value.constant, int) or (value.op == "len" and value.input is not None)


def _example(limit: int) -> Evidence:
    """Four questions of 3 to 6 tokens and a prefix of two, cut to `limit` tokens."""
    random = np.random.default_rng(3)
    prompts = [[*random.integers(10, 50, size=3 + number), 4, 5][:limit] for number in range(GROUPS)]
    width = max(map(len, prompts))
    prompts_GP = np.array([[PAD] * (width - len(prompt)) + prompt for prompt in prompts])
    prompts_BP = np.repeat(prompts_GP, SIZE, axis=0)
    # what the model was given holds other prompts: not part of this example
    changes = dict.fromkeys(("input_ids", "attention_mask", "position_ids"))
    batch = edit_batch(healthy_batch(), prompt_tokens=prompts_BP, prompt_mask=prompts_BP != PAD, **changes)
    return Evidence((batch,), healthy_curves(prompt_truncated_share=0.5 if limit < 8 else 0.01))


def edits(verdict: Verdict, spot: Spot, others: Sequence[Spot]) -> Iterator[Edit | None]:
    """x[:n] --> x[-n:]; truncation_side="right" --> "left"."""
    index = spot.node.slice if isinstance(spot.node, ast.Subscript) else None
    if isinstance(index, ast.Slice) and index.lower is None and index.upper is not None:
        upper = spot.child(index.upper)
        yield spot.child(index).becomes(f"-{upper.within(3)}:")
    whole = spot.child(spot.text.tree)
    given = [part.child(part.node.value) for part in whole.all(ast.keyword) if part.node.arg == "truncation_side"]
    given += [
        part.child(part.node.value)
        for part in whole.all(ast.Assign)
        if isinstance(part.node.targets[0], ast.Attribute) and part.node.targets[0].attr == "truncation_side"
    ]
    for value in given:
        yield value.becomes('"left"') if isinstance(value.node, ast.Constant) and value.node.value == "right" else None
    if not given and spot.name and "truncation side is right" in verdict.message:
        yield spot.with_argument('truncation_side="left"') if spot.argument("truncation") is not None else None


ILLNESS = illness(
    __name__,
    code="ALGN07",
    severity=Severity.HARMFUL,
    summary="prompts were cut on the right and lack their last words, after which the policy answers",
    fix="Leave prompts that are too long out, or cut them on the left.",
    symptoms=(
        "prompt is truncated",
        "prompt too long and cut off",
        "max_prompt_length cuts the question",
    ),
    sick=lambda: _example(limit=7),
    well=lambda: _example(limit=8),
    scripts=Scripts(GENERATE.replace('truncation_side="left"', 'truncation_side="right"'), GENERATE),
    explains=frozenset({"ADV09", "MET03"}),
)
