"""Train and eval mode of a network at the time of a call, and the dropout that the mode switches."""

from __future__ import annotations

from collections.abc import Iterator

from assay.programs.facts.optimizer.ownership import contains
from assay.programs.facts.origin import network, same_network
from assay.programs.facts.sampling.samplers import original
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import ancestors

# the place of the probability and its default, by layer of torch.nn
_LAYERS = {
    "Dropout": ("p", "0", 0.5),
    "Dropout1d": ("p", "0", 0.5),
    "Dropout2d": ("p", "0", 0.5),
    "AlphaDropout": ("p", "0", 0.5),
    "TransformerEncoderLayer": ("dropout", "3", 0.1),
    "TransformerDecoderLayer": ("dropout", "3", 0.1),
    "Transformer": ("dropout", "5", 0.1),
    "MultiheadAttention": ("dropout", "2", 0.0),
    "LSTM": ("dropout", "5", 0.0),
    "GRU": ("dropout", "5", 0.0),
    "RNN": ("dropout", "6", 0.0),
}
_BETWEEN = ("LSTM", "GRU", "RNN")  # layers: a lone one has none
# models of transformers that drop out by default
_CONFIGS = {
    "GPT2Config": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
    "OPTConfig": ("dropout",),
    "GPTBigCodeConfig": ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
}
_NAMED = ("gpt2", "facebook/opt-", "dialogpt")
_USUAL = 0.1


def mode_at(program: Program, model: Value, call: Value) -> tuple[bool | None, Value | None]:
    """(in train mode?, what put it there) when a call runs; None where branches decide."""
    last: Value | None = None
    for value in program.of("train", "eval"):
        if value.order < call.order and value.input is not None and _is_set(program, value.input, model):
            last = value if last is None or value.order > last.order else last
    if last is None:
        return _default(program, model)
    if not all(call.context.is_under(branch) for branch in last.context.branches):
        return None, last
    given = last.setting("1", last.setting("mode", True)) if last.op == "train" else False
    return (given if isinstance(given, bool) else None), last


def _is_set(program: Program, changed: Value, model: Value) -> bool:
    if changed.op == "phi" and len(changed.inputs) > 1:
        return any(same_network(part, model) for part in changed.inputs)
    return same_network(changed, model) or contains(program, changed, model)


def _default(program: Program, model: Value) -> tuple[bool | None, Value | None]:
    base = network(model)
    if base.op in ("instance", "module"):
        return True, None
    if base.op == "pretrained":
        return "from_pretrained" not in base.place.text, None
    first = original(base)
    if first is not base and first.op != "deepcopy":
        return mode_at(program, first, base)
    return None, None


def dropout_of(program: Program, model: Value, call: Value) -> Iterator[tuple[Value, float]]:
    """Where a network drops out when it is in train mode, and with which probability."""
    if _is_switched_off(program):
        return
    base = original(model)
    if base.op in ("instance", "module"):
        yield from _of_layers(program, base)
        for value in ancestors(call):
            chance = _number(value.setting("p", 0.5)) if value.op == "dropout" else 0.0
            if chance > 0 and call.place in value.context.calls and value.setting("training", True) is not False:
                yield value, chance
    elif base.op == "pretrained":
        yield from _of_pretrained(base)
    for value in program.of("wrapped"):
        if value.name == "get_peft_model" and same_network(value, model):
            config = value.argument("1") or value.argument("peft_config")
            if config is not None and (chance := _number(config.setting("lora_dropout", 0.0))) > 0:
                yield config, chance


def _of_layers(program: Program, base: Value) -> Iterator[tuple[Value, float]]:
    for value in program.of("module"):
        if value.name not in _LAYERS:
            continue
        if base.place not in value.context.calls and not contains(program, base, value):
            continue
        keyword, position, usual = _LAYERS[value.name]
        chance = _number(value.setting(keyword, value.setting(position, usual)))
        if value.name in _BETWEEN and _number(value.setting("num_layers", value.setting("2", 1))) < 2:
            continue
        if chance > 0:
            yield value, chance


def _of_pretrained(base: Value) -> Iterator[tuple[Value, float]]:
    yield from _in(base)
    if any("drop" in name for name in base.arguments):
        return
    config = base.argument("config") or base.argument("0")
    name = str(config.constant) if config is not None and isinstance(config.constant, str) else ""
    if any(known in name.lower() for known in _NAMED):
        yield base, _USUAL
    if config is not None and config.op == "call":
        given = list(_in(config))
        yield from given
        kind = config.name.rpartition(".")[2]
        if not given and any(value not in config.arguments for value in _CONFIGS.get(kind, ())):
            yield config, _USUAL


def _in(value: Value) -> Iterator[tuple[Value, float]]:
    for name, given in value.arguments.items():
        if "drop" in name and (chance := _number(given.constant)) > 0:
            yield value, chance


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0


def _is_switched_off(program: Program) -> bool:
    """disable_dropout(model), or a loop that sets the probability of each layer."""
    if any("disable_dropout" in value.name for value in program.of("call", "method")):
        return True
    return any(value.name == "p" for value in program.of("setattr"))
