"""The graph: each value of a program, the operation that made it, where it stands, and under what circumstances.

The same nouns serve a program that was only read and one that ran. A reader knows the operations and the constants; a
run knows the numbers too (`Value.thing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

from assay.verdict import Place

T = TypeVar("T")


class _Unknown:
    def __repr__(self) -> str:
        return "UNKNOWN"

    def __bool__(self) -> bool:
        return False


UNKNOWN = _Unknown()  # a constant that is not known; None is a constant


@dataclass(frozen=True, eq=False)
class Loop:
    """One loop of the program. `source` is what it runs over, where that is known."""

    place: Place
    source: Value | None = None

    @property
    def turns(self) -> int | None:
        """How often it runs, where the text says so: `for _ in range(4)`."""
        stop = self.source.arguments.get("stop") if self.source is not None and self.source.op == "range" else None
        if stop is None or not isinstance(stop.constant, int) or isinstance(stop.constant, bool):
            return None
        start = self.source.arguments.get("start") if self.source is not None else None
        first = start.constant if start is not None and isinstance(start.constant, int) else 0
        return max(stop.constant - first, 0)


@dataclass(frozen=True, eq=False)
class Branch:
    """One side of an `if` that the text does not decide."""

    place: Place
    condition: Value
    side: bool


@dataclass(frozen=True)
class Context:
    """The circumstances of an operation."""

    no_grad: bool = False
    grad_unknown: bool = False  # a condition or a context manager of the program decides
    autocast: bool = False
    adapter_off: bool = False  # peft: inside `with model.disable_adapter()`
    loops: tuple[Loop, ...] = ()
    branches: tuple[Branch, ...] = ()
    calls: tuple[Place, ...] = ()  # where the functions around it were called
    functions: tuple[str, ...] = ()  # their names
    handled: bool = False  # inside a `try` whose handler swallows what is raised
    in_handler: bool = False  # inside an `except`

    def is_under(self, branch: Branch) -> bool:
        """Whether it stands on that side of the same `if`; a loop or a call may have read the `if` twice."""
        return any((value.place, value.side) == (branch.place, branch.side) for value in self.branches)


@dataclass(eq=False, slots=True)
class Value:
    """One value. `op` made it: one of SIGNATURES, OPERATIONS or KNOWN_METHODS (read/library.py).

    `arguments` are named as the operation's documentation names them: see SIGNATURES.

    In a loop a value may depend on itself: assay.programs.walk goes through it once.
    """

    op: str
    arguments: dict[str, Value]
    place: Place
    context: Context
    order: int  # of evaluation
    name: str = ""  # of an attribute, a parameter, a called function
    constant: Any = UNKNOWN
    thing: Any = None  # a function, class, instance or container of the program; of a run: a Sight (run/sight.py)
    names: list[str] = field(default_factory=list)  # that it was bound to
    users: list[Value] = field(default_factory=list)
    given: dict[str, Place] = field(default_factory=dict)  # where each argument stands in the text of the operation

    def place_of(self, name: str) -> Place:
        """Where an argument is written; `arguments[name].place` is where its value was made."""
        return self.given.get(name, self.place)

    def argument(self, name: str) -> Value | None:
        return self.arguments.get(name)

    def setting(self, name: str, default: Any = UNKNOWN) -> Any:
        """The constant of an argument; `default` where it is not given, UNKNOWN where it is not a constant."""
        value = self.arguments.get(name)
        return default if value is None else value.constant

    @property
    def input(self) -> Value | None:
        return self.arguments.get("input")

    @property
    def inputs(self) -> list[Value]:
        return list(self.arguments.values())

    @property
    def keys(self) -> list[Value]:
        """What stands between the brackets of x[...] or x[...] = y."""
        return [part for name, part in self.arguments.items() if name not in ("input", "value")]

    @property
    def shown(self) -> str:
        """How a sentence calls it: by its name, else by its text."""
        names = [name for name in self.names if name != "self"]
        return f"`{names[0]}`" if names else f"`{self.place.text}`"

    def __repr__(self) -> str:
        constant = "" if self.constant is UNKNOWN else f"={self.constant!r}"
        return f"<{self.op}{':' + self.name if self.name else ''}{constant} line {self.place.line}>"


@dataclass
class Graph:
    """All values in the order in which they were made."""

    values: list[Value] = field(default_factory=list)
    _made_by: dict[str, list[Value]] = field(default_factory=dict)

    def new(
        self,
        op: str,
        arguments: Mapping[str, Value],
        place: Place,
        context: Context,
        *,
        name: str = "",
        constant: Any = UNKNOWN,
        thing: Any = None,
    ) -> Value:
        value = Value(op, dict(arguments), place, context, len(self.values), name, constant, thing)
        for argument in value.arguments.values():
            argument.users.append(value)
        self.values.append(value)
        self._made_by.setdefault(op, []).append(value)
        return value

    def of(self, *ops: str) -> list[Value]:
        """What these operations made, in order."""
        found = [self._made_by[op] for op in dict.fromkeys(ops) if op in self._made_by]
        return list(found[0]) if len(found) == 1 else sorted(chain(*found), key=lambda value: value.order)


# names: however it is written, one operation has one name and its arguments have theirs. `F.softmax(x, -1)`,
# `x.softmax(dim=-1)` and `torch.nn.functional.softmax(input=x, dim=-1)` are all softmax(input=x, dim=-1). numpy's
# functions answer to the same names.

# the names of the arguments --> the operations that have them, as torch names them
_ARGUMENTS = {
    "input": (
        "exp expm1 log log1p sqrt square abs neg sigmoid tanh relu sign logsigmoid rsqrt reciprocal unique repeat "
        "tile expand view reshape permute clone detach isfinite isnan logical_not"
    ),
    "input other": (
        "add sub mul div floordiv mod matmul minimum maximum eq ne lt le gt ge expand_as logical_and logical_or"
    ),
    "input dim keepdim": "logsumexp mean sum median nanmean min max amin amax any all argmax argmin",
    "input dim": "softmin count_nonzero cumsum cumprod unbind squeeze unsqueeze",
    "input dim dtype": "softmax log_softmax",
    "input dim index": "gather index_select",
    "input dim index src": "scatter scatter_add",
    "input repeats dim": "repeat_interleave",
    "input index dim": "take_along_dim",
    "parameters max_norm": "clip_grad_norm",
    "input mask": "masked_select",
    "input target weight size_average ignore_index reduce reduction label_smoothing": "cross_entropy",
    "input dim descending": "argsort sort",
    "sequences batch_first padding_value": "pad_sequence",
    "input num_samples replacement": "multinomial",
    "input mask value": "masked_fill",
    "seed": "manual_seed",
    "input nan": "nan_to_num",
    "input p dim eps": "normalize",
    "tensors dim": "cat stack",
    "input dim0 dim1": "transpose",
    "input target weight size_average ignore_index reduce reduction": "nll_loss",
    "input target size_average reduce reduction": "mse_loss smooth_l1_loss",
    "n": "randperm",
    "input dim unbiased keepdim": "std var",
    "input num_classes": "one_hot",
    "input p training": "dropout",
    "input start_dim end_dim": "flatten",
    "input target size_average reduce reduction log_target": "kl_div",
    "data dtype device": "tensor",
    "start end step": "arange",
    "equation": "einsum",
    "input min max": "clamp",
    "condition input other": "where",
    "input size dim": "split",
    "input chunks dim": "chunk",
    "input k dim": "topk",
    "input dims": "flip",
    "input shifts dims": "roll",
    "size fill_value": "full",
    "input exponent": "pow",
    "input pad mode value": "pad",
}
SIGNATURES = {op: tuple(names.split()) for names, ops in _ARGUMENTS.items() for op in ops.split()}

_SPELLINGS = {
    "clamp": "clip clamp_min clamp_max", "div": "divide true_divide", "sub": "subtract", "mul": "multiply",
    "neg": "negative", "abs": "absolute", "cat": "concat concatenate vstack hstack", "pow": "power float_power",
    "gt": "greater", "ge": "greater_equal", "lt": "less", "le": "less_equal", "ne": "not_equal", "eq": "equal",
    "tensor": "as_tensor from_numpy FloatTensor LongTensor asarray array", "view": "view_as", "reshape": "reshape_as",
    "logical_and": "bitwise_and __and__", "logical_or": "bitwise_or", "logical_not": "bitwise_not", "minimum": "fmin",
    "maximum": "fmax", "transpose": "swapaxes t", "clip_grad_norm": "clip_grad_norm_ clip_grad_value_",
    "rsub": "rsub", "scatter": "scatter_", "softmax": "softmax_", "expand": "broadcast_to", "sum": "nansum",
    "std": "nanstd", "take_along_dim": "take_along_axis", "log_softmax": "special.log_softmax",
}  # fmt: skip
ALIASES = {other: op for op, others in _SPELLINGS.items() for other in others.split()}
_KEYWORDS = {"axis": "dim", "keepdims": "keepdim", "a": "input", "x": "input", "self": "input", "dims": "dim",
             "a_min": "min", "a_max": "max", "arr": "input", "indices": "index"}  # fmt: skip

# What else an `op` may be, besides SIGNATURES and KNOWN_METHODS (read/library.py): what a reader makes of the text.
OPERATIONS = {
    # names and constants
    "constant": "a number, a text, None: `constant`",
    "config": "a constant that a user may set: a flag's default, a field of a dataclass, a setting",
    "string": "an f-string; `arguments` are the values in it",
    "parameter": "of a function that nobody calls, or that was given nothing for it",
    "unknown": "the text does not say what it is",
    "phi": "one of several values, the text does not say which: after an `if`, in a loop, `x or y`",
    "exception": "what `except ... as error` binds",
    # functions, classes and objects: `thing` holds them
    "function": "a function of the program",
    "class": "a class of the program",
    "instance": "an object of a class of the program",
    "bound": "a method of such an object, without a call",
    "partial": "functools.partial(...)",
    "library": "a module, function or class of a library: `name` is its path",
    "call": 'a call of something that is not one of our operations: `name` is its path; "callee" if it is a value',
    "method": "a method that is not one of our operations: `name`",
    "super": "super().method(...) of a library's class",
    "misfit": "a call with more arguments than the function has: it raises",
    "starred": "*values in a call, where the text does not list them",
    # containers
    "listing": "a list, tuple or set, a comprehension, what a generator yields",
    "table": "a dictionary or a namespace",
    "list_repeat": "[x] * n",
    "append": "items.append(x); of a set: add",
    "items": "table.items()",
    "keys": "table.keys()",
    "values": "table.values(), where the text shows none",
    "element": "one of what a container, a loop or a result holds",
    "index": "x[...]; a part of what is unpacked",
    "slice": "a:b:c between brackets",
    "setitem": "x after x[...] = value",
    "attribute": "x.name",
    "setattr": "x.name = value",
    "in_place": "an event: x += y, or a method that changes x: x.mul_(y)",
    "len": "len(x)",
    # what a loop runs over
    "range": "range(...)",
    "zip": "zip(...)",
    "enumerate": "enumerate(x)",
    "reversed": "reversed(x)",
    "progress": "tqdm(x)",
    "dataloader": "DataLoader(x)",
    "tensor_dataset": "TensorDataset(x, y)",
    # truth
    "not": "not x",
    "and": "x and y; a < b < c",
    "bool": "`and` or `or` whose end is known",
    "is": "x is y",
    "is_not": "x is not y",
    "in": "x in y",
    "not_in": "x not in y",
    "assert": "assert x",
    # arithmetic without a signature
    "xor": "x ^ y",
    "shift": "x << y, x >> y",
    "rsub": "torch.rsub(x, y) is y - x",
    # numbers that stay as they are
    "cast": "the same numbers in another precision, on another device, gathered: CASTS",
    "leave": "out of torch: LEAVES, float(x)",
    # networks, optimizers, sampling
    "module": "a layer of torch.nn: `name`",
    "pretrained": "a network that transformers loads",
    "submodule": "a part of a network",
    "deepcopy": "a copy, of a network above all",
    "wrapped": "a network in DDP, peft, torch.compile, deepspeed",
    "moved": "model.to(...), model.half(): the network itself goes on",
    "requires_grad_": "model.requires_grad_(...)",
    "forward": 'a pass of a network: "model", "output" if its code was read, "given_..." for what it was given',
    "prepare": "accelerator.prepare(...): what was given goes on",
    "scaled": "scaler.scale(loss)",
    "optimizer": "an optimizer of torch, or of a library like it",
    "scheduler": "of a learning rate",
    "categorical": "torch.distributions.Categorical",
    "parser": "argparse.ArgumentParser(), HfArgumentParser(...)",
}
# In a run every function of torch is an operation, under torch's own name. These are the ones that checks ask for, and
# two that are not functions of torch.
OPERATIONS_OF_RUNS = {
    "given": "a tensor that was there before it was seen",
    "changed": "a tensor that something else has written into",
    "dot": "torch.dot(x, y)",
    "embedding": "F.embedding(ids, weight): a lookup in a table of parameters",
    "t": "x.t(), x.T of a matrix",
    "empty": "torch.empty(...): its numbers mean nothing",
    "empty_like": "torch.empty_like(x)",
    "new_empty": "x.new_empty(...)",
    "nonzero": "torch.nonzero(x)",
    "bernoulli": "torch.bernoulli(p)",
    "vecdot": "torch.linalg.vecdot(x, y)",
    "linalg_vecdot": "torch.linalg.vecdot(x, y), by its other name",
    "rand": "torch.rand(...)",
    "rand_like": "torch.rand_like(x)",
    "uniform": "a sample of a uniform distribution",
    "uniform_": "x.uniform_(...)",
    "exponential": "a sample of an exponential distribution",
    "exponential_": "x.exponential_(...)",
    "gumbel": "a sample of a Gumbel distribution",
}

# methods and functions that give the same numbers in another form
CASTS = frozenset(
    "to float double half bfloat16 long int bool cuda cpu type astype contiguous requires_grad_ type_as npu xpu "
    "to_device pin_memory".split()
)
RESHAPES = frozenset("view reshape flatten squeeze unsqueeze".split())
# the same numbers in another shape, order, precision or selection
SAME_NUMBERS = RESHAPES | frozenset(
    "cast transpose permute clone detach expand expand_as element stack cat pad pad_sequence split chunk "
    "unbind index_select repeat".split()
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
