"""Rows that are padded, and the passes of a network over them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from assay.programs.facts.advantages.groups import is_one_row
from assay.programs.facts.kinds import Kind
from assay.programs.facts.positions import given_ids
from assay.programs.facts.sampling.draws import draws, passes_of
from assay.programs.facts.sampling.scoring import lists_of, made_of, scorings
from assay.programs.facts.sampling.tokens import encoding_behind, text_of
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import follow, walk

_ONES = ("ones", "ones_like", "new_ones")
_NO_NUMBERS = frozenset({"len", "forward"})
_OF_SHAPE = frozenset("shape size ones_like zeros_like full_like new_ones new_zeros new_full numel".split())


@dataclass(frozen=True, eq=False)
class Pass:
    """A pass over padded rows; `fault` says what is wrong with its mask, "" if nothing is."""

    call: Value
    padded: Value
    fault: str


def padded_passes(program: Program) -> Iterator[Pass]:
    """Each pass over rows that the text shows to be padded on the way to being drawn after."""
    drawn = draws(program)
    for draw in drawn:
        if draw.op == "generate":
            padded = padded_by(prompts_of_draw(draw))
            if padded is not None:
                yield Pass(draw, padded, _fault_of_generate(program, draw))
    masked = _masked_draws(program, drawn)
    seen: set[int] = set()
    for scoring in scorings(program):
        for call in program.origins.forwards(scoring.logits):
            ids = given_ids(call)
            if ids is None or id(call) in seen or any(name == "**" or name == "given_**" for name in call.arguments):
                continue
            seen.add(id(call))
            if not program.kinds.is_a(ids, Kind.SAMPLED):
                continue  # hidden states, or text that was not drawn
            if any(id(call) == id(value) for calls in masked.values() for value in calls):
                continue
            held = {id(value) for value in made_of(ids)}
            for draw in drawn:
                if id(draw) not in held:
                    continue
                padded = padded_by(prompts_of_draw(draw)) if draw.op == "generate" else None
                if padded is None and id(draw) in masked:
                    padded = mask_of(masked[id(draw)][0])
                if padded is not None and not _is_packed(call):
                    yield Pass(call, padded, fault_of(call))
                    break
    yield from _unmasked_draws(program, drawn)


def mask_of(call: Value) -> Value | None:
    """The attention mask that a pass is given."""
    for name, value in call.arguments.items():
        if name.removeprefix("given_") in ("attention_mask", "attn_mask", "mask", "padding_mask", "key_padding_mask"):
            return value if value.constant is not None or value.op == "phi" else None
    return call.arguments.get("given_1")


def fault_of(call: Value) -> str:
    mask = mask_of(call)
    if mask is None:
        return "without an attention mask"
    return "with a mask of ones" if _is_ones(mask) else ""


def _is_ones(mask: Value) -> bool:
    return mask.op == "call" and mask.name.rpartition(".")[2] in _ONES


def _is_packed(call: Value) -> bool:
    return any(name.removeprefix("given_") in ("cu_seqlens", "packed_seq_params") for name in call.arguments)


def prompts_of_draw(draw: Value) -> Value | None:
    """What a call of generate() is to go on from."""
    return draw.argument("input_ids") or draw.argument("**") or draw.argument("inputs") or draw.argument("1")


def padded_by(prompts: Value | None) -> Value | None:
    """The call of a tokenizer that pads several texts to one length."""
    encoding = encoding_behind(prompts)
    if encoding is None or encoding.setting("padding", False) not in (True, "longest", "max_length"):
        return None
    text = text_of(encoding)
    if text is None or isinstance(text.constant, str) or text.op in ("string", "list_repeat"):
        return None
    if text.op == "element" and not _is_of_batches(text):
        return None
    if text.op == "apply_chat_template" or (text.op == "listing" and _is_one(text)):
        return None
    return encoding


def _is_of_batches(element: Value) -> bool:
    """Whether a loop takes batches of several from a loader, and not one text after the other."""
    loader = follow(
        element,
        lambda value: value.input or value.argument("0") if value.op in ("element", "call", "progress") else None,
    )
    return loader.op == "dataloader" and loader.setting("batch_size", 1) not in (1, None)


def _is_one(texts: Value) -> bool:
    thing = texts.thing
    return bool(getattr(thing, "exact", False)) and len(getattr(thing, "elements", ())) == 1


def _fault_of_generate(program: Program, draw: Value) -> str:
    mask = draw.argument("attention_mask")
    if mask is not None:
        return "with a mask of ones" if _is_ones(mask) else ""
    if "**" in draw.arguments:
        return ""
    ends = any(
        value.name in ("pad_token", "pad_token_id")
        and value.arguments["value"].op == "attribute"
        and value.arguments["value"].name in ("eos_token", "eos_token_id")
        for value in program.of("setattr")
    )  # generate() finds padding by itself, but not where it is the end of text
    return "without an attention mask, and padding is the end-of-text token" if ends else ""


def _masked_draws(program: Program, drawn: list[Value]) -> dict[int, list[Value]]:
    """Draws of the script's own loop -> the passes behind them, where these were given a mask that hides something."""
    found: dict[int, list[Value]] = {}
    for draw in drawn:
        calls = [draw] if draw.op == "generate" else passes_of(program, draw)
        if any(hides_prompt(program, mask) for call in calls if (mask := mask_of(call)) is not None):
            found[id(draw)] = calls
    return found


def hides_prompt(program: Program, mask: Value) -> bool:
    """Whether a mask is 0 at padding of a prompt: compared, filled by hand, or made by a tokenizer that pads."""
    drawn = {id(draw) for draw in draws(program)}

    def numbers(current: Value) -> list[Value]:
        """What was drawn after, and what only gives its shape, says nothing of the mask."""
        if id(current) in drawn or current.op in _NO_NUMBERS or current.name.rpartition(".")[2] in _OF_SHAPE:
            return []
        return [*current.arguments.values(), *lists_of(current)]

    for value in walk(mask, numbers):
        if padded_by(value) is not None or (value.op == "list_repeat" and _is_zero(value)):
            return True
        if value.op in ("ne", "setitem") and not any(id(part) in drawn for part in made_of(value)):
            return True
    return False


def _is_zero(repeated: Value) -> bool:
    elements = list(getattr(repeated.thing, "elements", ()))
    return len(elements) == 1 and elements[0].constant == 0 and elements[0].op == "constant"


def _unmasked_draws(program: Program, drawn: list[Value]) -> Iterator[Pass]:
    """Passes that draw without a mask, where the scoring of what they drew is given one."""
    for draw in drawn:
        calls = passes_of(program, draw)
        if draw.op == "generate":
            mask = draw.argument("attention_mask")
            bare = mask is not None and _is_ones(mask) and padded_by(prompts := prompts_of_draw(draw)) is None
            calls = [draw] if bare and not is_one_row(prompts) else []
        elif any(mask_of(call) is not None for call in calls):
            continue
        if not calls:
            continue
        for scoring in scorings(program):
            if not any(value is draw for value in made_of(scoring.tokens)):
                continue
            scored = [mask for call in program.origins.forwards(scoring.logits) if (mask := mask_of(call)) is not None]
            hiding = [mask for mask in scored if not _is_ones(mask) and hides_prompt(program, mask)]
            if hiding:
                yield Pass(calls[0], hiding[0], "without the mask that their scoring has")
                break
