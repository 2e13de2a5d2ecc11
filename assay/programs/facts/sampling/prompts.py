"""What tokens were drawn after, and whether it stands before them where they are scored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from assay.programs.facts.positions import given_ids, is_piece
from assay.programs.facts.sampling.draws import draws, passes_of
from assay.programs.facts.sampling.scoring import Scoring, data_of, lists_of, made_of, scorings
from assay.programs.graph import UNKNOWN, Value
from assay.programs.once import once
from assay.programs.program import Program
from assay.programs.walk import walk

# puts values together or gives them another form
_HOLDS = frozenset(
    "listing list_repeat phi setitem tensor cat stack pad_sequence pad cast leave clone detach unsqueeze "
    "squeeze view reshape flatten expand repeat repeat_interleave element index where masked_fill add zip table".split()
)
# the same in each row, whatever the prompt is: special tokens, padding, sizes
_FIXED = frozenset("constant library config len range full arange neg".split())
_CALLS = ("full_like", "zeros", "zeros_like", "ones", "ones_like", "empty", "new_full", "new_zeros", "new_ones")
_GIVEN = frozenset(
    "attention_mask position_ids use_cache return_dict logits_to_keep num_logits_to_keep output_hidden_states mask "
    "attn_mask padding_mask".split()
)
_PROMPTS = ("input_ids", "**", "inputs", "1", "prompts")
_FIELDS = frozenset("input_ids attention_mask unpacked token_type_ids".split())  # of what a tokenizer gives
LONELY = 2  # tokens: as few as these do not stand for a prompt


def prompts_of(program: Program) -> Iterator[Value]:
    """What is drawn after: given to generate(), or to the network of the script's own loop."""
    for draw in draws(program):
        if draw.op == "generate":
            yield from (value for name, value in draw.arguments.items() if name in _PROMPTS)
        else:
            yield from _ids_before(program, draw)


def _ids_before(program: Program, draw: Value) -> Iterator[Value]:
    """The ids that the network is given whose output a draw in the script's own loop draws from."""
    for call in passes_of(program, draw):
        ids = given_ids(call)
        if ids is not None:
            yield ids


def is_prompted(program: Program, tokens: Value) -> bool:
    """Whether the tokens were drawn after something that was given, and not after a start token."""
    known = {id(draw) for draw in draws(program)}
    return any(
        first.op in ("index", "parameter", "setitem", "element", "tensor", "attribute")
        for draw in made_of(tokens)
        if id(draw) in known
        for first in _drawn_after(program, draw)
    )


def _drawn_after(program: Program, draw: Value) -> Iterator[Value]:
    """What the script's own loop begins with."""
    for ids in _ids_before(program, draw):
        first = ids.argument("0") if ids.op == "phi" else ids
        if first is not None:
            yield first


def fault_of_lonely(program: Program, call: Value, ids: Value) -> str:
    """Whether drawn tokens are scored with nothing of their prompt before them but special tokens."""
    names = {name.removeprefix("given_") for name in call.arguments if name not in ("model", "output", "callee")}
    if len(names - _GIVEN) > 1:
        return ""  # a state, a cache, an encoder's output may stand for the prompt
    known = {id(draw) for draw in draws(program)}
    drawn: list[Value] = []
    lonely = False
    for part in _parts(ids, known):
        if id(part) in known:
            drawn.append(part)
        elif _is_cut_short(part):
            lonely = True
        elif _is_content(part):
            return ""
    after = [first for draw in drawn if draw.op != "generate" for first in _drawn_after(program, draw)]
    if not after or not all(
        any(_is_content(value) for value in made_of(first) if id(value) not in known) for first in after
    ):
        return ""
    few = "the last tokens of the prompt" if lonely else "special tokens"
    return f"which is {few} and the completion: the prompt it was drawn after is not there"


@once
def answers_left_out(program: Program) -> list[tuple[Scoring, Value, str]]:
    """Log-probs in a loss whose pass is given the prompt and nothing of what was drawn after it.

    Nothing is reported where another pass is given what was drawn, or where the pass is given something that the
    prompts are not made of: it may be another loss, of texts with their answers.
    """
    drawn = set(draws(program))
    trained = [scoring for scoring in scorings(program) if scoring.is_trained]
    if not drawn or any(draw.op != "generate" or draw.setting("max_new_tokens") == 1 for draw in drawn) or not trained:
        return []
    behind_prompts = {id(value): value for prompt in prompts_of(program) for value in made_of(prompt)}
    asked = _columns(behind_prompts.values())
    found = []
    for scoring in trained:
        for call in program.origins.forwards(scoring.logits):
            given = [value for name, value in call.arguments.items() if name not in ("model", "callee", "output")]
            behind = {id(value): value for part in given for value in made_of(part)}
            if not drawn.isdisjoint(behind.values()):
                return []
            shared = [value for key, value in behind.items() if key in behind_prompts and _is_content(value)]
            if not shared or not _columns(behind.values()) <= asked or call.op != "forward":
                continue
            is_drawn = not drawn.isdisjoint(made_of(scoring.tokens))
            what = (
                "the tokens of the answers are picked from the logits of other positions"
                if is_drawn
                else ("what was drawn after it is never scored")
            )
            found.append((scoring, call, f"which is the prompt alone: {what}"))
    return found


def _columns(values: Iterable[Value]) -> set[str]:
    """The columns of data that values are made of: row["question"]."""
    return {value.name for value in values if value.op == "index" and value.name} - _FIELDS


def _parts(value: Value, known: set[int]) -> Iterator[Value]:
    """What a sequence is put together of, down to draws and to what was cut off."""

    def pieces(current: Value) -> list[Value]:
        drawn = [part for part in made_of(current) if id(part) in known] if _begins_later(current) else []
        is_end = id(current) in known or _is_cut_short(current) or current.op not in _HOLDS
        return drawn or ([] if is_end else _pieces(current))

    return walk(value, pieces)


def _pieces(value: Value) -> list[Value]:
    """Of a joined list the lists, and of its elements only those that are in none of them."""
    lists = lists_of(value)
    held = {id(element) for listing in lists for element in getattr(listing.thing, "elements", ())}
    return [*lists, *(part for part in data_of(value) if id(part) not in held)]


def _begins_later(value: Value) -> bool:
    """ids[:, len(prompt):]: what was drawn, without what it was drawn after."""
    keys = value.keys
    last = keys[-1] if value.op == "index" and keys else None
    start = last.argument("start") if last is not None and last.op == "slice" and not is_piece(last) else None
    return start is not None and (start.constant is UNKNOWN or start.op in ("len", "neg", "index", "method"))


def _is_cut_short(value: Value) -> bool:
    """prompt[-1:], prompt[:1]"""
    cut = value.argument("slice") if value.op == "listing" else None
    if cut is None:
        return False
    start, stop = cut.setting("start", None), cut.setting("stop", None)
    if stop is None and isinstance(start, int):
        return -LONELY <= start < 0
    return start is None and isinstance(stop, int) and 0 < stop <= LONELY


def _is_content(value: Value) -> bool:
    """Whether a prompt may be in it: anything that is not put together of constants."""
    if value.constant is not UNKNOWN or value.op in _FIXED or value.op in _HOLDS:
        return False
    if value.op == "attribute":
        return not value.name.endswith("_id")
    return not (value.op == "call" and value.name.rpartition(".")[2] in _CALLS)
