"""In which precision a script keeps its weights and computes its log-probs."""

from __future__ import annotations

from assay.programs.facts.kinds import PASSES, Kind
from assay.programs.facts.origin import network, same_network
from assay.programs.facts.sampling.samplers import original
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.programs.walk import walk

LOW = {"bfloat16": "bfloat16", "bf16": "bfloat16", "half": "float16", "float16": "float16", "fp16": "float16"}
FULL = frozenset({"float32", "float", "float64", "double", "fp32"})
_THROUGH = ("div", "index", "gather", "take_along_dim", "mul", "sub", "add", "neg", "masked_fill", "where", "clamp")
_NORMALISED = ("log_softmax", "softmax", "cross_entropy", "log", "logsumexp", "nll_loss")


def dtype_of(value: Value | None, depth: int = 6) -> str:
    """The name of a dtype: bfloat16, float16, float32; "" where it is not known, or one of several."""
    if value is None or depth == 0:
        return ""
    if value.op == "phi":
        names = {dtype_of(part, depth - 1) for part in value.inputs}
        if names == {"bfloat16", "float32"} and "cuda" in value.place.text:
            return "bfloat16"  # float32 is for machines without the GPU that training needs
        return names.pop() if len(names) == 1 else ""
    last = value.constant if isinstance(value.constant, str) else value.name
    last = last.rpartition(".")[2]
    if value.op not in ("library", "constant", "config"):
        return ""
    return LOW.get(last, "float32" if last in FULL else "")


def cast_to(value: Value) -> str:
    """What a cast or a move of a network turns numbers into; "" where it is only another device."""
    if value.op not in ("cast", "moved"):
        return ""
    if value.name in ("bfloat16", "half"):
        return LOW[value.name]
    if value.name in ("float", "double"):
        return "float32"
    for name, given in value.arguments.items():
        if name != "input" and dtype_of(given):
            return dtype_of(given)
    return ""


def precision_of_weights(program: Program, model: Value) -> tuple[str, Value] | None:
    """The precision in which a network's weights are kept, and what says so; None where the text does not say."""
    said: tuple[str, Value] | None = None
    base = network(model)
    current = original(model)
    if current.op == "pretrained":
        for name in ("torch_dtype", "dtype"):
            if (found := dtype_of(current.argument(name))) != "":
                said = (found, current)
        if any(name in current.arguments for name in ("load_in_4bit", "load_in_8bit", "quantization_config", "**")):
            return None
    for value in program.of("moved"):
        if value.input is not None and (same_network(value.input, base) or same_network(value.input, current)):
            found = cast_to(value)
            if found:
                said = (found, value)
    return said


def rounding_cast(program: Program, value: Value | None) -> Value | None:
    """The cast to 16 bits behind scores or log-probs that nothing undid; None if there is none."""
    seen: set[int] = set()
    while value is not None and id(value) not in seen:
        seen.add(id(value))
        found = cast_to(value)
        if found:
            return value if found in ("bfloat16", "float16") else None
        if value.op in ("forward", "call", "phi", "attribute"):
            return None
        if value.op in ("log_softmax", "softmax") and dtype_of(value.argument("dtype")) == "float32":
            return None
        if value.op in ("mul", "add", "sub") and value.input is not None:
            other = value.argument("other")
            ours = program.kinds.of(value.input) is not None and not program.kinds.is_a(value.input, Kind.MASK)
            value = value.input if ours or other is None else other
        elif value.op in (*PASSES, *_THROUGH, *_NORMALISED):
            value = value.input or next(iter(value.inputs), None)
        elif value.op == "log_prob" and value.input is not None:
            value = value.input.argument("logits") or value.input.argument("probs")
        else:
            return None
    return None


def is_upcast(program: Program, value: Value | None) -> bool:
    """Whether a cast to float32 stands between a network and these scores."""

    def scores(one: Value) -> list[Value]:
        is_kept = one.op in (*PASSES, *_THROUGH) and one.op != "phi"
        return ([one.input] if one.input is not None else one.inputs[:1]) if is_kept else []

    return value is not None and any(cast_to(part) == "float32" for part in walk(value, scores))


def is_mixed(program: Program, of_weights: bool = True) -> bool:
    """Whether something else than the script chooses the precision of each operation, or keeps float32 weights.

    deepspeed does the latter alone: it computes in the precision of the weights.
    """
    for value in program.of("call", "wrapped", "method"):
        name = value.name.rpartition(".")[2]
        if name == "Accelerator" and value.setting("mixed_precision", "no") not in ("no", None):
            return True
        if "deepspeed" in value.name and of_weights:
            return True
        if name in ("FSDP", "FullyShardedDataParallel", "fully_shard", "Fabric"):
            return True
    return False
