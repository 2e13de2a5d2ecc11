"""Text to tokens and back: calls of tokenizers, chat templates, decoded texts."""

from __future__ import annotations

from assay.programs.graph import Value
from assay.programs.walk import follow

_TOKENIZER_WORDS = frozenset("return_tensors padding truncation add_special_tokens return_attention_mask".split())
_MOVES = frozenset("index attribute cast method repeat_interleave repeat expand clone moved".split())
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
    found = follow(value, lambda current: current.input if current.op in _MOVES and not is_encoding(current) else None)
    return found if is_encoding(found) else None


def text_of(encoding: Value) -> Value | None:
    """What a tokenizer is given."""
    for name in ("text", "0" if encoding.op == "call" else "1", "conversation"):
        if name in encoding.arguments:
            return encoding.arguments[name]
    return None


def is_text(value: Value) -> bool:
    """Text that was made of something: decoded tokens, joined parts, a formatted string, the text of an engine."""
    if value.op in ("decode", "batch_decode", "string"):
        return True
    if value.op == "method":
        return value.name in ("join", "decode_batch", "format")
    if value.op in ("add", "phi"):
        return any(isinstance(part.constant, str) for part in value.inputs)
    return value.op == "attribute" and value.name == "text"
