"""The ratio, its clip and the KL in a loss that was really differentiated: which numbers, and where gradients go."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from assay.programs.run.origins import KEEPS_NUMBERS, chosen_ids, differences, is_mask, requires_grad
from assay.programs.run.roles import Flow, Piece
from assay.programs.run.watched import Backward, Sight, WatchedRun, numbers_of, sight
from assay.programs.value import Value
from assay.record.batch import Array
from assay.verdict import Place

MOST = 24  # backwards that are looked at
FIT = 1e-4
COARSE = 3e-2
WIDEST = 3.0  # a clip that lets the ratio grow to this, and fall to 0, is none
_GROWS = KEEPS_NUMBERS | {"exp", "clamp", "sum", "mean", "cast", "masked_fill", "where", "nan_to_num", "expm1"}
Form = Callable[[Array, Array], Array]
_RIGHT: dict[str, Form] = {
    "new / old": lambda new, old: np.exp(new - old),
    "log-probs": lambda new, old: new,
}
_TURNED: dict[str, Form] = {"old / new": lambda new, old: np.exp(old - new)}
_WRONG: dict[str, Form] = {
    "new - old, the logarithm of the ratio": lambda new, old: new - old,
    "old - new": lambda new, old: old - new,
    "exp of the ratio": lambda new, old: np.exp(np.exp(new - old)),
    "the quotient of the log-probs": lambda new, old: new / old,
    "the difference of the probabilities": lambda new, old: np.exp(new) - np.exp(old),
    "exp(new - old) - 1": lambda new, old: np.expm1(new - old),
    "a probability over a log-prob": lambda new, old: np.exp(new) / old,
    "a log-prob over a probability": lambda new, old: new / np.exp(old),
}


def mark_ratio(trace: WatchedRun) -> None:
    flows = [
        (one, one.roles.flow if one.roles is not None else Flow(one.loss, trace.origins))
        for one in trace.backwards[:MOST]
    ]
    for _, flow in flows:
        _gradient_of_old(trace, flow)
    _forms(trace, flows)
    _clips(trace, flows)


# -- old


def _gradient_of_old(trace: WatchedRun, flow: Flow) -> None:
    """A difference of two log-probs of the same tokens by the policy, with gradients on both sides."""
    looked = False
    for value, one, other in differences(flow.values):
        if not (_is_of_policy(one, trace) and _is_of_policy(other, trace)):
            continue
        looked = True
        if not (requires_grad(one) and requires_grad(other)):
            continue
        mine, theirs = chosen_ids(one, trace.origins), chosen_ids(other, trace.origins)
        if one is not other and (mine is None or theirs is None or not np.array_equal(mine, theirs)):
            continue
        same = (
            " (they are the same tensor, so that the ratio is 1 and has no gradient at all)"
            if _root(one) is _root(other)
            else ""
        )
        trace.found(
            "RAT03",
            f"both log-probs in `{value.place.text}` carry a gradient: old is not a constant{same}",
            value.place,
            other.place,
        )
    if looked:
        trace.is_well("RAT03", "old log-probs carry no gradient")


def _root(value: Value) -> Value:
    while value.op in KEEPS_NUMBERS - {"detach"} and value.input is not None:
        value = value.input
    return value


def _is_of_policy(value: Value, trace: WatchedRun) -> bool:
    forward = trace.origins.pass_of(value)
    if forward is None or forward.adapter_off:
        return False
    model = trace.models[forward.model]
    return model.is_trained or (not trace.updates and model.trainable > 0)


# -- the form of the ratio


def _forms(trace: WatchedRun, flows: list[tuple[Backward, Flow]]) -> None:
    """What is multiplied by the advantages, in all updates together: a form that fits only some is not it."""
    fitting: dict[Place, set[str]] = {}
    told: dict[Place, Value] = {}
    for backward, flow in flows:
        for piece in backward.roles.pieces if backward.roles is not None else ():
            for pulled in _pulled(piece, flow):
                old = piece.old or _other_logprobs(pulled, piece, flow)
                numbers, new, before = numbers_of(pulled), numbers_of(piece.new), numbers_of(old)
                if numbers is None or new is None or before is None or not numbers.shape == new.shape == before.shape:
                    continue
                inside = _counted(piece, new, before, numbers)
                if inside.sum() < 2:
                    continue
                fits = {
                    name
                    for name, form in {**_RIGHT, **_TURNED, **_WRONG}.items()
                    if _fits(form, numbers, new, before, inside, piece)
                }
                fitting[pulled.place] = fitting.get(pulled.place, fits) & fits
                told[pulled.place] = pulled
    for place, names in fitting.items():
        if names & _RIGHT.keys():
            trace.is_well("RAT08", "what the advantages weigh is exp(new - old)")
        elif names & _WRONG.keys():
            trace.found(
                "RAT08",
                f"what the advantages are multiplied by, {told[place].shown}, is "
                f"{next(one for one in _WRONG if one in names)}, and "
                "not exp(new - old)",
                place,
            )


def _pulled(piece: Piece, flow: Flow) -> Iterator[Value]:
    """Factors of the advantages that depend on the new log-probs, the clipped one left out."""
    if piece.advantages is None or "advantages" in piece.unsure:
        return
    seen = set()
    for value in flow.values:
        if value.op != "mul" or id(piece.new) not in flow.upon(value):
            continue
        one, other = value.input, value.arguments.get("other")
        for pulled, weight in ((one, other), (other, one)):
            if (
                pulled is None
                or weight is None
                or id(piece.new) not in flow.upon(pulled)
                or not _leads_to(weight, piece.advantages)
            ):
                continue
            inner = _bare(pulled)
            if inner.op != "clamp" and id(inner) not in seen:
                seen.add(id(inner))
                yield inner


def _leads_to(value: Value, advantages: Value) -> bool:
    return _plain(value) is _plain(advantages)


def _plain(value: Value) -> Value:
    while value.op in KEEPS_NUMBERS | {"neg", "cast"} and value.input is not None:
        if value.op == "index" and any(
            sight(one) is not None for name, one in value.arguments.items() if name != "input"
        ):
            break
        value = value.input
    return value


def _bare(value: Value) -> Value:
    while value.op in ("neg", "cast") and value.input is not None:
        value = value.input
    return value


def _other_logprobs(pulled: Value, piece: Piece, flow: Flow) -> Value | None:
    """Log-probs without a gradient that the factor is made of as well; None if there are none or several."""
    shape = sight(piece.new)
    found: dict[int, Value] = {}
    waiting, seen = [pulled], set()
    while waiting:
        current = waiting.pop()
        for one in current.arguments.values():
            if id(one) in seen or one is piece.new:
                continue
            seen.add(id(one))
            if not requires_grad(one) and not is_mask(one) and _looks_like(one, shape):
                found[id(one)] = one
            elif one.op not in ("forward", "generate"):
                waiting.append(one)
    return next(iter(found.values())) if len(found) == 1 else None


def _looks_like(value: Value, new: Sight | None) -> bool:
    numbers = numbers_of(value)
    if numbers is None or new is None or numbers.shape != new.shape or numbers.dtype.kind != "f":
        return False
    return bool(np.all(numbers <= 1e-3)) and bool(np.any(numbers < 0))


def _counted(piece: Piece, new: Array, old: Array, numbers: Array) -> Array:
    inside: Array = np.isfinite(new) & np.isfinite(old) & np.isfinite(numbers) & (old < 0) & (new < 0)
    mask = numbers_of(piece.mask)
    if mask is not None and mask.shape == new.shape:
        inside &= ~mask.astype(bool) if piece.mask_is_inverted else mask.astype(bool)
    return inside


def _fits(form: Form, numbers: Array, new: Array, old: Array, inside: Array, piece: Piece) -> bool:
    seen = sight(piece.new)
    limit = FIT if seen is not None and seen.dtype in ("float32", "float64") else COARSE
    with np.errstate(all="ignore"):
        expected = form(new, old)[inside]
    return bool(np.allclose(numbers[inside], expected, rtol=limit, atol=limit))


def slope(value: Value, piece: Piece, flow: Flow) -> int | None:
    """1: it grows with the new log-probs; -1: it falls; None: not known."""
    if value is piece.new:
        return 1
    depending = [(name, one) for name, one in value.arguments.items() if id(piece.new) in flow.upon(one)]
    if len(depending) != 1:
        return None
    name, inner = depending[0]
    way = slope(inner, piece, flow)
    if way is None or value.op in _GROWS:
        return way
    if value.op == "neg":
        return -way
    if value.op == "sub":
        return way if name == "input" else -way
    if value.op == "div":
        other = next(one for key, one in value.arguments.items() if key != name)
        side = _side(other)
        return None if side is None else way * side * (1 if name == "input" else -1)
    if value.op == "mul":
        other = next(one for key, one in value.arguments.items() if key != name)
        if is_mask(other):
            return way
        return None if not isinstance(other.constant, (int, float)) else way if other.constant > 0 else -way
    return None


def _side(value: Value) -> int | None:
    """1: all its numbers are above 0; -1: none is; None: both, or not known."""
    numbers = np.asarray(value.constant) if isinstance(value.constant, (int, float)) else numbers_of(value)
    if numbers is None or not numbers.size:
        return None
    return 1 if np.all(numbers > 0) else -1 if np.all(numbers < 0) else None


# -- the clip


def _clips(trace: WatchedRun, flows: list[tuple[Backward, Flow]]) -> None:
    several = len(trace.updates) > 1
    used: set[Place] = set()
    for backward, flow in flows:
        pieces = backward.roles.pieces if backward.roles is not None else ()
        for piece in pieces:
            if piece.ratio is None:
                continue
            root = _bare(piece.ratio)
            clamps = [user for user in _users(root) if user.op == "clamp"]
            reaching = [one for one in clamps if id(one) in flow.inside]
            used |= {one.place for one in reaching}
            for clamp in clamps:
                low, high = _bounds(clamp)
                if low is None or high is None:
                    continue
                if clamp in reaching and _is_paired(clamp, flow) and low <= 0 and high >= WIDEST:
                    trace.found(
                        "CLIP01",
                        f"`{clamp.place.text}` lets the ratio go from {low:g} to {high:g}: it clips nothing",
                        clamp.place,
                    )
                elif clamp not in reaching and low < 1 < high and several:
                    trace.found(
                        "CLIP01",
                        f"`{clamp.place.text}` is computed, but the loss does not depend on it",
                        clamp.place,
                        root.place,
                    )
            _unclipped_pair(trace, root, flow)
            if reaching:
                trace.is_well("CLIP01", "the clipped ratio reaches the loss")


def _users(value: Value) -> list[Value]:
    found, waiting = [], [value]
    while waiting:
        for user in waiting.pop().users:
            found.append(user)
            if user.op in ("cast", "neg"):
                waiting.append(user)
    return found


def _bounds(clamp: Value) -> tuple[float | None, float | None]:
    found: list[float | None] = []
    for name in ("min", "max"):
        value = clamp.arguments.get(name)
        numbers = numbers_of(value)
        if value is not None and isinstance(value.constant, (int, float)):
            found.append(float(value.constant))
        else:
            found.append(float(numbers.reshape(-1)[0]) if numbers is not None and numbers.size == 1 else None)
    return found[0], found[1]


def _is_paired(clamp: Value, flow: Flow) -> bool:
    """The clipped product meets the unclipped one in a minimum."""
    return any(_sides(one) is not None for one in _behind(clamp, flow))


def _sides(value: Value) -> tuple[Value, Value] | None:
    """Of a minimum or maximum of two tensors; torch.min() names its second one dim."""
    if value.op not in ("minimum", "maximum", "min", "max"):
        return None
    other = value.arguments.get("other") or value.arguments.get("dim")
    return (value.input, other) if value.input is not None and other is not None and sight(other) is not None else None


def _behind(value: Value, flow: Flow) -> Iterator[Value]:
    seen, waiting = {id(value)}, [value]
    while waiting:
        for user in waiting.pop().users:
            if id(user) in flow.inside and id(user) not in seen:
                seen.add(id(user))
                yield user
                if user.op in ("mul", "neg", "cast"):
                    waiting.append(user)


def _unclipped_pair(trace: WatchedRun, root: Value, flow: Flow) -> None:
    for value in flow.values:
        pair = _sides(value)
        if pair is None:
            continue
        one, other = pair
        sides = [
            side.op == "mul" and any(_bare(part) is root for part in side.arguments.values())
            for side in map(_bare, (one, other))
        ]
        mine, theirs = numbers_of(one), numbers_of(other)
        if all(sides) and mine is not None and theirs is not None and np.array_equal(mine, theirs):
            trace.found(
                "CLIP01", f"both sides of `{value.place.text}` are the unclipped ratio", value.place, root.place
            )
