"""Names of operations: however it is written, one operation has one name and its arguments have theirs.

`F.softmax(x, -1)`, `x.softmax(dim=-1)` and `torch.nn.functional.softmax(input=x, dim=-1)` are all
softmax(input=x, dim=-1). numpy's functions answer to the same names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

_SAME = ("input", "other")
_REDUCE = ("input", "dim", "keepdim")
SIGNATURES: dict[str, tuple[str, ...]] = {
    "softmax": ("input", "dim", "dtype"),
    "log_softmax": ("input", "dim", "dtype"),
    "softmin": ("input", "dim"),
    "logsumexp": _REDUCE,
    "gather": ("input", "dim", "index"),
    "take_along_dim": ("input", "index", "dim"),
    "index_select": ("input", "dim", "index"),
    "multinomial": ("input", "num_samples", "replacement"),
    "clamp": ("input", "min", "max"),
    "exp": ("input",),
    "expm1": ("input",),
    "log": ("input",),
    "log1p": ("input",),
    "sqrt": ("input",),
    "square": ("input",),
    "abs": ("input",),
    "neg": ("input",),
    "sigmoid": ("input",),
    "tanh": ("input",),
    "relu": ("input",),
    "sign": ("input",),
    "nan_to_num": ("input", "nan"),
    "add": _SAME,
    "sub": _SAME,
    "mul": _SAME,
    "div": _SAME,
    "floordiv": _SAME,
    "mod": _SAME,
    "matmul": _SAME,
    "pow": ("input", "exponent"),
    "minimum": _SAME,
    "maximum": _SAME,
    "eq": _SAME,
    "ne": _SAME,
    "lt": _SAME,
    "le": _SAME,
    "gt": _SAME,
    "ge": _SAME,
    "mean": _REDUCE,
    "sum": _REDUCE,
    "median": _REDUCE,
    "nanmean": _REDUCE,
    "std": ("input", "dim", "unbiased", "keepdim"),
    "var": ("input", "dim", "unbiased", "keepdim"),
    "min": _REDUCE,
    "max": _REDUCE,
    "amin": _REDUCE,
    "amax": _REDUCE,
    "any": _REDUCE,
    "all": _REDUCE,
    "argmax": ("input", "dim", "keepdim"),
    "argmin": ("input", "dim", "keepdim"),
    "argsort": ("input", "dim", "descending"),
    "sort": ("input", "dim", "descending"),
    "topk": ("input", "k", "dim"),
    "cumsum": ("input", "dim"),
    "cumprod": ("input", "dim"),
    "flip": ("input", "dims"),
    "roll": ("input", "shifts", "dims"),
    "where": ("condition", "input", "other"),
    "masked_fill": ("input", "mask", "value"),
    "masked_select": ("input", "mask"),
    "scatter": ("input", "dim", "index", "src"),
    "scatter_add": ("input", "dim", "index", "src"),
    "cross_entropy": (
        "input",
        "target",
        "weight",
        "size_average",
        "ignore_index",
        "reduce",
        "reduction",
        "label_smoothing",
    ),
    "nll_loss": ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction"),
    "mse_loss": ("input", "target", "size_average", "reduce", "reduction"),
    "kl_div": ("input", "target", "size_average", "reduce", "reduction", "log_target"),
    "logsigmoid": ("input",),
    "one_hot": ("input", "num_classes"),
    "normalize": ("input", "p", "dim", "eps"),
    "dropout": ("input", "p", "training"),
    "pad": ("input", "pad", "mode", "value"),
    "pad_sequence": ("sequences", "batch_first", "padding_value"),
    "cat": ("tensors", "dim"),
    "stack": ("tensors", "dim"),
    "split": ("input", "size", "dim"),
    "chunk": ("input", "chunks", "dim"),
    "unbind": ("input", "dim"),
    "repeat_interleave": ("input", "repeats", "dim"),
    "repeat": ("input",),
    "tile": ("input",),
    "expand": ("input",),
    "expand_as": _SAME,
    "view": ("input",),
    "reshape": ("input",),
    "flatten": ("input", "start_dim", "end_dim"),
    "squeeze": ("input", "dim"),
    "unsqueeze": ("input", "dim"),
    "transpose": ("input", "dim0", "dim1"),
    "permute": ("input",),
    "clone": ("input",),
    "detach": ("input",),
    "tensor": ("data", "dtype", "device"),
    "full": ("size", "fill_value"),
    "arange": ("start", "end", "step"),
    "randperm": ("n",),
    "einsum": ("equation",),
    "isfinite": ("input",),
    "isnan": ("input",),
    "logical_and": _SAME,
    "logical_or": _SAME,
    "logical_not": ("input",),
    "clip_grad_norm": ("parameters", "max_norm"),
    "manual_seed": ("seed",),
}

# other spellings
ALIASES: dict[str, str] = {
    "clip": "clamp", "clamp_min": "clamp", "clamp_max": "clamp", "divide": "div", "true_divide": "div",
    "subtract": "sub",
    "multiply": "mul", "negative": "neg", "absolute": "abs", "concat": "cat", "concatenate": "cat", "power": "pow",
    "greater": "gt", "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne", "equal": "eq",
    "as_tensor": "tensor", "from_numpy": "tensor", "FloatTensor": "tensor", "LongTensor": "tensor",
    "asarray": "tensor",
    "array": "tensor", "view_as": "view", "reshape_as": "reshape", "bitwise_and": "logical_and",
    "__and__": "logical_and",
    "bitwise_or": "logical_or", "bitwise_not": "logical_not", "fmin": "minimum", "fmax": "maximum",
    "swapaxes": "transpose",
    "t": "transpose", "vstack": "cat", "hstack": "cat", "clip_grad_norm_": "clip_grad_norm", "clip_grad_value_":
    "clip_grad_norm", "rsub": "rsub", "scatter_": "scatter", "softmax_": "softmax", "broadcast_to": "expand",
    "nansum": "sum",
    "nanstd": "std", "take_along_axis": "take_along_dim", "float_power": "pow", "special.log_softmax": "log_softmax",
}  # fmt: skip
_KEYWORDS = {"axis": "dim", "keepdims": "keepdim", "a": "input", "x": "input", "self": "input", "dims": "dim",
             "a_min": "min", "a_max": "max", "arr": "input", "indices": "index"}  # fmt: skip

# methods and functions that give the same numbers in another form
CASTS = frozenset(
    "to float double half bfloat16 long int bool cuda cpu type astype contiguous requires_grad_ type_as npu xpu "
    "to_device pin_memory".split()
)
LEAVES = frozenset({"item", "tolist", "numpy"})  # out of torch: nothing can be differentiated behind them


def canonical(name: str) -> str | None:
    """The operation behind the last part of a function's name or a method; None if it is not one of ours.

    >>> canonical("clip"), canonical("mul_"), canonical("softmax"), canonical("frobnicate")
    ('clamp', 'mul', 'softmax', None)
    """
    if name in CASTS:
        return "cast"
    if name in LEAVES:
        return "leave"
    if name in ALIASES:
        return ALIASES[name]
    if name in SIGNATURES:
        return name
    bare = name.removesuffix("_")
    return canonical(bare) if bare != name and not name.startswith("_") else None


def bound(op: str, name: str, positional: Sequence[T], keywords: Mapping[str, T]) -> dict[str, T]:
    """Arguments by the operation's own names. What has no name there is numbered: "1", "2" after the input."""
    names = SIGNATURES.get(op, ("input",))
    if name == "clamp_min":
        names = ("input", "min")
    elif name == "clamp_max":
        names = ("input", "max")
    arguments: dict[str, T] = {}
    for number, value in enumerate(positional):
        arguments[names[number] if number < len(names) else str(number)] = value
    for keyword, value in keywords.items():
        renamed = keyword if keyword in names else _KEYWORDS.get(keyword, keyword)
        arguments[renamed] = value
    return arguments
