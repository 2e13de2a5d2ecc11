"""Text to tokens and back: calls of tokenizers, chat templates, decoded texts."""

from __future__ import annotations

from collections.abc import Iterator

from assay.programs.facts.sampling.scoring import data_of
from assay.programs.graph import Value
from assay.programs.walk import follow, walk

_TOKENIZER_WORDS = frozenset("return_tensors padding truncation add_special_tokens return_attention_mask".split())
_MOVES = frozenset("index attribute cast method repeat_interleave repeat expand clone moved".split())
_ARITHMETIC = frozenset("sub mul div floordiv pow mean sum std exp log eq ne lt le gt ge".split())
_OF_TEXT = frozenset("str list tuple map sorted filter reversed set iter next dict copy deepcopy".split())
_ENCODES = frozenset({"encode", "encode_plus", "batch_encode_plus", "encode_batch", "apply_chat_template", "__call__"})


def is_tokenizer(value: Value | None) -> bool:
    """Whether a value was made by a class that makes tokenizers."""
    if value is None:
        return False
    if value.op == "phi":
        return any(is_tokenizer(part) for part in value.inputs if part is not value and part.op != "phi")
    return value.op == "call" and ("Tokenizer" in value.name or "Processor" in value.name)


def is_encoding(value: Value) -> bool:
    """A call that makes token ids of text."""
    if value.op in ("encode", "method") and value.name in _ENCODES - {"apply_chat_template"}:
        return True
    if value.op == "apply_chat_template":
        return value.setting("tokenize", True) is not False
    if value.op == "call" and "callee" in value.arguments:
        return is_tokenizer(value.arguments["callee"]) or len(_TOKENIZER_WORDS & set(value.arguments)) >= 2
    return value.op == "call" and len(_TOKENIZER_WORDS & set(value.arguments)) >= 2


def encoding_behind(value: Value | None) -> Value | None:
    """The call of a tokenizer whose output, or a field of it, the value is; through moves to a device and copies."""
    if value is None:
        return None
    found = follow(value, _before_a_move)
    return found if is_encoding(found) else None


def _before_a_move(value: Value) -> Value | None:
    if value.op == "table" and len(value.arguments) == 1:  # {name: part.to(device) for name, part in encoding.items()}
        return value.inputs[0]
    is_field = value.op == "element" and (bool(value.name) or getattr(value.input, "name", "") == "items")
    return value.input if (value.op in _MOVES or is_field) and not is_encoding(value) else None


def text_of(encoding: Value) -> Value | None:
    """What a tokenizer is given."""
    for name in ("text", "0" if encoding.op == "call" else "1", "conversation"):
        if name in encoding.arguments:
            return encoding.arguments[name]
    return None


def texts_behind(tokens: Value) -> Iterator[Value]:
    """The token ids' own way back: through what puts ids together, an encoding, and what puts text together.

    No sum or quotient is a token's id, and what a function makes of a text (a reward, a tool's answer) is not the text.
    """

    def parts(value: Value) -> list[Value]:
        if value.op in _ARITHMETIC or (value.op == "call" and not _may_encode(value)):
            return []
        return data_of(value)

    return walk(tokens, parts)


def _may_encode(value: Value) -> bool:
    """A call that may give the ids of its text, or its text again."""
    last = value.name.rpartition(".")[2]
    if is_encoding(value) or last in _OF_TEXT or not _TOKENIZER_WORDS.isdisjoint(value.arguments):
        return True
    callee = value.argument("callee")
    names = [value.name, *(callee.names if callee is not None else ()), callee.name if callee is not None else ""]
    return any("token" in name.lower() or "encode" in name.lower() or "processor" in name.lower() for name in names)


def is_text(value: Value) -> bool:
    """Text that was made of something: decoded tokens, joined parts, a formatted string, the text of an engine."""
    if value.op in ("decode", "batch_decode", "string"):
        return True
    if value.op == "method":
        return value.name in ("join", "decode_batch", "format")
    if value.op in ("add", "phi"):
        return any(isinstance(part.constant, str) for part in value.inputs)
    return value.op == "attribute" and value.name == "text"
