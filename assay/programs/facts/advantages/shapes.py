"""Shapes in a script, as far as the text proves them: which dimensions are rows, tokens, groups, or of size 1.

A shape is a tuple of letters: B rows, T tokens, V the vocabulary, P prompts, G completions of a prompt, F
reward functions, L turns of a loop that filled a list, N tokens of all rows in one line, 1. None: the text does
not say.
"""

from __future__ import annotations

import re
from itertools import islice

from assay.programs.facts.advantages.groups import shape_of
from assay.programs.facts.kinds import SCORES, Kind
from assay.programs.facts.masks.counts import token_mask
from assay.programs.graph import UNKNOWN, Value
from assay.programs.program import Program
from assay.programs.read.things import Listing
from assay.programs.walk import ancestors

Shape = tuple[str, ...] | None
_ELEMENTWISE = frozenset("add sub mul div minimum maximum where pow".split())
_KEEPS = frozenset(
    "cast clone detach neg exp expm1 log clamp abs square sqrt leave nan_to_num masked_fill cumsum softmax log_softmax "
    "in_place sigmoid moved setitem".split()
)
_DEEPEST = 60


class Shapes:
    def __init__(self, program: Program) -> None:
        self.program = program
        self._known: dict[int, Shape] = {}

    def of(self, value: Value | None, depth: int = _DEEPEST) -> Shape:
        if value is None or depth == 0:
            return None
        if id(value) not in self._known:
            self._known[id(value)] = None  # what is made of itself is not known
            self._known[id(value)] = self._found(value, depth)
        return self._known[id(value)]

    def _found(self, value: Value, depth: int) -> Shape:
        if isinstance(value.constant, int | float):
            return ()
        if value.op in ("config", "len"):
            return ()
        if self.program.kinds.is_a(value, Kind.MASK) and token_mask(self.program, value) is not None:
            return ("B", "T")
        if self.program.kinds.is_a(value, Kind.MASK) and self._is_on_tokens(value, depth):
            return ("B", "T")
        if value.op in _ELEMENTWISE:
            return self._together(value, depth)
        if value.op in _KEEPS:
            return self.of(value.input, depth - 1)
        method = getattr(self, f"_{value.op}", None)
        return method(value, depth) if method is not None else None

    def _is_on_tokens(self, mask: Value, depth: int) -> bool:
        """A mask that multiplies log-probs of tokens as it is."""
        for user in mask.users:
            sides = user.inputs if user.op == "mul" else []
            others = [side for side in sides if side is not mask and not self.program.kinds.is_a(side, Kind.MASK)]
            if any(self.of(side, depth - 1) == ("B", "T") for side in others):
                return True
        return False

    def _together(self, value: Value, depth: int) -> Shape:
        if value.op == "pow":
            return self.of(value.input, depth - 1)
        sides = [self.of(value.argument(name), depth - 1) for name in ("input", "other")]
        left, right = sides
        if left is None or right is None:
            known = [side for side in sides if side == ("B", "T")]
            masked = value.op == "mul" and any(self.program.kinds.is_a(part, Kind.MASK) for part in value.inputs)
            return ("B", "T") if known and masked else None  # one number for each token, under their mask
        return broadcast(left, right)

    def _phi(self, value: Value, depth: int) -> Shape:
        inputs = [part for part in value.inputs if part.constant is not None and part is not value]
        if value.name == "turn" and any(part.op == "setitem" for part in inputs[1:]):
            inputs = inputs[:1]  # filling does not change a shape
        found = {self.of(part, depth - 1) for part in inputs}
        return found.pop() if len(found) == 1 else None

    # numbers of rows

    def _tensor(self, value: Value, depth: int) -> Shape:
        data = value.argument("data")
        thing = data.thing if data is not None else None
        if not isinstance(thing, Listing) or thing.exact or len(thing.elements) != 1:
            return self.of(data, depth - 1) if data is not None and data.op != "listing" else None
        element = thing.elements[0]
        if isinstance(element.thing, Listing):
            return None
        if (element.op == "leave" and element.name == "item") or _is_running(element):
            return ("L",)
        scalar = element.op in _SCALARS or _is_field(element)
        return ("B",) if scalar and id(value) in self.program.policy_factor_ids else None

    def _stack(self, value: Value, depth: int) -> Shape:
        """torch.stack([a number for each row]); of tensors that a loop collected, its turns come first."""
        data = value.argument("tensors")
        thing = data.thing if data is not None else None
        if value.setting("dim", 0) != 0 or not isinstance(thing, Listing) or thing.exact or len(thing.elements) != 1:
            return None
        inner = self.of(thing.elements[0], depth - 1)
        if inner == ():
            return ("B",) if id(value) in self.program.policy_factor_ids else None
        return ("L", *inner) if inner in (("B",), ("B", "1")) else None

    def _call(self, value: Value, depth: int) -> Shape:
        """torch.zeros(len(completions), 2), to be filled with rewards; a library's log-probs of tokens."""
        if value.name.rpartition(".")[2] in ("selective_log_softmax", "logprobs_from_logits"):
            return ("B", "T")
        sizes = [part for name, part in value.arguments.items() if name.isdigit()]
        made = (
            value.name.rpartition(".")[2] in ("zeros", "ones", "empty") and id(value) in self.program.policy_factor_ids
        )
        if made and len(sizes) == 1 and sizes[0].op == "mul":
            return ("B",)  # prompts * group
        if not made or not sizes or sizes[0].op != "len" or len(sizes) > 2:
            return None
        return ("B", "F")[: len(sizes)]

    def _view(self, value: Value, depth: int) -> Shape:
        inner = self.of(value.input, depth - 1)
        sizes = shape_of(value)
        if not sizes:
            return None
        last = sizes[-1].constant
        if inner == ("N",):
            is_table = len(sizes) == 2 and last != 1 and sizes[0].constant != 1
            return ("B", "T") if is_table or (len(sizes) == 1 and last is UNKNOWN) else None
        is_flat = inner in (("B",), ("P", "G"), ("B", "1"))
        if is_flat and sizes[0].constant == -1 and all(size.constant == 1 for size in sizes[1:]):
            return ("B", *("1" for _ in sizes[1:]))
        if len(sizes) == 1:
            return None
        if len(sizes) == 2 and is_flat:
            if last == 1:
                return ("B", "1")
            return ("1", "B") if sizes[0].constant == 1 else ("P", "G")
        return None

    _reshape = _view

    def _flatten(self, value: Value, depth: int) -> Shape:
        inner = self.of(value.input, depth - 1)
        return ("B",) if inner in (("B",), ("P", "G"), ("B", "1")) else None

    def _method(self, value: Value, depth: int) -> Shape:
        if value.name in ("numel", "size", "count", "nelement"):
            return ()
        inner = self.of(value.input, depth - 1)
        if value.name == "unflatten" and inner == ("B",):
            return ("P", "G")
        return self._flatten(value, depth) if value.name == "ravel" else None

    def _repeat_interleave(self, value: Value, depth: int) -> Shape:
        inner = self.of(value.input, depth - 1)
        return ("B",) if inner == ("P",) else None

    # forms

    def _unsqueeze(self, value: Value, depth: int) -> Shape:
        inner, dim = self.of(value.input, depth - 1), value.setting("dim")
        if inner is None or not isinstance(dim, int):
            return None
        at = dim if dim >= 0 else len(inner) + 1 + dim
        return (*inner[:at], "1", *inner[at:])

    def _squeeze(self, value: Value, depth: int) -> Shape:
        inner, dim = self.of(value.input, depth - 1), value.setting("dim", None)
        if inner is None or not inner:
            return None
        if dim is None and "dim" not in value.arguments:
            return tuple(part for part in inner if part != "1") if "1" in inner else None  # a row may be the only one
        if not isinstance(dim, int) or not -len(inner) <= dim < len(inner):
            return None
        at = dim % len(inner)
        if inner[at] in ("B", "L", "V"):
            return None
        return (*inner[:at], *inner[at + 1 :]) if inner[at] == "1" else inner

    def _index(self, value: Value, depth: int) -> Shape:
        if value.name == "logits":
            return ("B", "T", "V")
        inner = self.of(value.input, depth - 1)
        keys = value.keys
        if keys and keys[0].constant is Ellipsis and inner is not None:
            rest = keys[1:]
            if len(rest) == 1 and rest[0].constant is None:
                return (*inner, "1")
            return inner[:-1] if len(rest) == 1 and isinstance(rest[0].constant, int) else None
        if inner is None:
            sliced = len(keys) >= 2 and all(key.op == "slice" for key in keys[:2]) and not keys[0].arguments
            outputs = self.program.kinds.is_a(value, *SCORES, Kind.LOG_SOFTMAX)
            return ("B", "T", "V") if sliced and outputs and self._is_distribution(value) else None
        return self._indexed(inner, keys)

    def _is_distribution(self, value: Value) -> bool:
        """Whether log-probs are taken of it along the last dimension: three dimensions, then."""
        return self.program.kinds.is_a(value, Kind.LOGITS, Kind.LOG_SOFTMAX) or any(
            user.op in ("log_softmax", "softmax", "div", "cast", "logsumexp", "gather") for user in value.users
        )

    def _indexed(self, inner: tuple[str, ...], keys: list[Value]) -> Shape:
        found: list[str] = []
        at = 0
        for key in keys:
            if key.constant is None:
                found.append("1")
                continue
            if at >= len(inner):
                return None
            if key.op == "slice":
                found.append(inner[at])
            elif isinstance(key.constant, int):
                pass
            elif at == 0 and key.constant is UNKNOWN and len(keys) == 1 and key.op in _PICKS:
                found.append(inner[0])  # some of the rows
            else:
                return None
            at += 1
        return (*found, *inner[at:])

    def _attribute(self, value: Value, depth: int) -> Shape:
        if value.name == "logits" and self.program.kinds.is_a(value, Kind.LOGITS):
            return ("B", "T", "V")
        return None

    def _forward(self, value: Value, depth: int) -> Shape:
        return self.of(value.argument("output"), depth - 1)

    # log-probs

    def _gather(self, value: Value, depth: int) -> Shape:
        inner = self.of(value.input, depth - 1)
        along_last = value.setting("dim") in (-1, 2)
        return ("B", "T", "1") if inner == ("B", "T", "V") and along_last else None

    _take_along_dim = _gather

    def _logsumexp(self, value: Value, depth: int) -> Shape:
        inner = self.of(value.input, depth - 1)
        return inner[:-1] if inner is not None and value.setting("dim") == -1 and len(value.arguments) == 2 else None

    def _transpose(self, value: Value, depth: int) -> Shape:
        inner = self.of(value.input, depth - 1)
        turned = inner is not None and len(inner) == 3 and {value.setting("dim0"), value.setting("dim1")} == {1, 2}
        return ("B", "V", "T") if turned and inner == ("B", "T", "V") else None

    def _cross_entropy(self, value: Value, depth: int) -> Shape:
        inner = self.of(value.input, depth - 1)
        kept = value.setting("reduction", "mean") == "none"
        if kept and inner == ("B", "V", "T"):
            return ("B", "T")
        given = value.input
        sizes = shape_of(given) if given is not None and given.op in ("view", "reshape") else []
        return ("N",) if kept and len(sizes) == 2 and sizes[0].constant == -1 else None

    def _categorical(self, value: Value, depth: int) -> Shape:
        inner = self.of(value.argument("logits") or value.argument("probs"), depth - 1)
        return inner[:-1] if inner else None

    def _log_prob(self, value: Value, depth: int) -> Shape:
        return self.of(value.input, depth - 1)

    _entropy = _log_prob

    # reductions

    def _sum(self, value: Value, depth: int) -> Shape:
        inner = self.of(value.input, depth - 1)
        if "dim" not in value.arguments and (inner is not None or value.name in ("sum", "mean")):
            return ()  # a method of a tensor
        if inner is None or "dim" not in value.arguments:
            return None if inner is None else ()
        dim, keep = value.setting("dim"), value.setting("keepdim", False)
        if not isinstance(dim, int) or not isinstance(keep, bool) or not -len(inner) <= dim < len(inner):
            return None
        at = dim % len(inner)
        return (*inner[:at], *(("1",) if keep else ()), *inner[at + 1 :])

    _mean = _std = _var = _amax = _amin = _any = _all = _nanmean = _sum


# numbers of Python
_SCALARS = frozenset("call cast phi add sub mul div leave constant config neg".split())
_FIELD = re.compile(r"(reward|advantage|score|return)$")


def _is_field(value: Value) -> bool:
    """episode.reward, row["advantage"]: one number of one episode."""
    return value.op in ("attribute", "index") and _FIELD.search(value.name) is not None


def _is_running(element: Value) -> bool:
    """Whether a loop makes each number of the one before, as of discounted sums and GAE: turns, not rows."""
    own = {(loop.place.file, loop.place.line) for loop in element.context.loops[-1:]}
    return any(
        part.op == "phi" and part.name == "turn" and (part.place.file, part.place.line) in own
        for part in islice(ancestors(element), 60)
    )


_PICKS = frozenset("index element randperm chunk split method call phi slice cat tensor".split())


def is_column(value: Value, depth: int = 12) -> bool:
    """Whether a network ends in nn.Linear(n, 1): its output has a last dimension of size 1 that nobody took away."""
    if value.op in _KEEPS and value.input is not None and depth:
        return is_column(value.input, depth - 1)
    output = value.argument("output")
    if value.op != "forward" or depth == 0:
        return False
    if output is not None:
        return is_column(output, depth - 1)
    layer = value.arguments["model"]
    layer = layer.argument("layer") or layer if layer.op == "submodule" else layer
    while layer.op == "module" and layer.name == "Sequential" and layer.arguments:
        layer = layer.inputs[-1]
    return layer.op == "module" and layer.name == "Linear" and layer.setting("1", layer.setting("out_features")) == 1


def broadcast(one: tuple[str, ...], other: tuple[str, ...]) -> Shape:
    """The shape of an elementwise operation; None where letters meet that are not known to fit."""
    width = max(len(one), len(other))
    left = ("1",) * (width - len(one)) + one
    right = ("1",) * (width - len(other)) + other
    found: list[str] = []
    for a, b in zip(left, right, strict=True):
        if a == b or b == "1":
            found.append(a)
        elif a == "1":
            found.append(b)
        else:
            return None
    return tuple(found)


def enlarged(one: Shape, other: Shape) -> str:
    """What is wrong with an elementwise operation of two known shapes; "" if nothing is."""
    if one is None or other is None or not one or not other:
        return ""
    made = broadcast(one, other)
    if made is None:
        short, long = sorted((one, other), key=len)
        if len(short) != 1 or len(long) != 2 or short[0] != long[0]:
            return ""
        return {("B", "T"): "rows meet tokens", ("L", "B"): "turns meet rows"}.get(long, "")
    if made.count("B") > 1:
        return f"every row meets every other: [{', '.join(made)}]"
    return ""
