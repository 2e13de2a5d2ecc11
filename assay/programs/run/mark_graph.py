"""Shapes, precisions and memory of the values on the way to a loss."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assay.programs.run.origins import CHOSEN, above, is_mask, requires_grad
from assay.programs.run.watched import Backward, Forward, WatchedRun, numbers_of, sight
from assay.programs.value import Value

MOST = 8  # backwards that are looked at
_ARITHMETIC = frozenset("add sub mul div pow minimum maximum min max where mse_loss".split())
_HALF = ("bfloat16", "float16")
_NORMALISES = frozenset("log_softmax cross_entropy logsumexp softmax nll_loss".split())
_WRITES = frozenset("setitem changed masked_fill mul zero fill".split())


def mark_graph(trace: WatchedRun) -> None:
    for backward in trace.backwards[:MOST]:
        _outer(trace, backward)
        _precision(trace, backward)
        _autocast(trace, backward)
    _aliases(trace)
    _sums(trace)
    _nothing_to_train(trace)


def _outer(trace: WatchedRun, backward: Backward) -> None:
    """[B, 1] with [B]: every row meets every other."""
    chosen = [sight(one) for one in above(backward.loss) if trace.origins.kind(one) == CHOSEN]
    rows = {seen.shape[0] for seen in chosen if seen is not None and len(seen.shape) == 2}
    if not rows:
        return
    for value in above(backward.loss):
        seen = sight(value)
        if value.op not in _ARITHMETIC or seen is None or not seen.requires_grad or len(seen.shape) < 2:
            continue
        shapes = [
            one.shape for name in ("input", "other", "target") if (one := sight(value.arguments.get(name))) is not None
        ]
        if len(shapes) != 2 or any(len(shape) == 0 for shape in shapes):
            continue
        whole = np.array(seen.shape)
        sides = [np.array((1,) * (len(seen.shape) - len(shape)) + shape) for shape in shapes]
        grown_one, grown_other = ((side == 1) & (whole > 1) for side in sides)
        if not grown_one.any() or not grown_other.any():
            continue
        sizes = set(whole[grown_one].tolist()) & set(whole[grown_other].tolist())
        if sizes & rows:
            count = max(sizes & rows)
            trace.found(
                "ADV08",
                f"`{value.place.text}` of shapes {list(shapes[0])} and {list(shapes[1])} is {list(seen.shape)}: each "
                f"of the {count} "
                "rows is combined with every other",
                value.place,
                value.arguments["other" if "other" in value.arguments else "target"].place,
            )
    trace.is_well("ADV08", "no operation of the loss combines every row with every other")


def _precision(trace: WatchedRun, backward: Backward) -> None:
    """The softmax behind log-probs in the loss, computed in 16 bits."""
    for value in _chosen(trace, backward):
        for one in _behind_logprobs(value):
            seen, given = sight(one), one
            if one.op == "log_prob":
                given = one.arguments["input"]
                given = given.arguments.get("logits") or given.arguments.get("probs") or given
                seen = sight(given)
            elif one.op not in _NORMALISES:
                continue
            if seen is not None and seen.dtype in _HALF:
                trace.found(
                    "NUM01",
                    f"the softmax behind the log-probs in the loss is computed in {seen.dtype}: it keeps 2 to 3 digits",
                    one.place,
                )
            elif seen is not None:
                trace.is_well("NUM01", f"the softmax behind the log-probs in the loss is computed in {seen.dtype}")


def _behind_logprobs(value: Value) -> Iterator[Value]:
    """What the numbers are made of; not how the tokens were chosen."""
    waiting = [value]
    while waiting:
        current = waiting.pop()
        yield current
        names = ("input", "other") if current.op == "sub" else ("input", "tensors")
        for name in names if current.op not in ("forward", "log_prob") else ():
            one = current.arguments.get(name)
            if one is not None:
                waiting += list(one.arguments.values())[:1] if one.op == "listing" else [one]


def _chosen(trace: WatchedRun, backward: Backward) -> list[Value]:
    """The last log-probs of chosen tokens, whatever was done to them later."""
    pieces = backward.roles.pieces if backward.roles is not None else ()
    return [one for piece in pieces for one in (piece.new, piece.old, piece.ref) if one is not None]


def _autocast(trace: WatchedRun, backward: Backward) -> None:
    for piece in backward.roles.pieces if backward.roles is not None else ():
        mine = piece.forward
        others = [("old", trace.origins.pass_of(piece.old_operand))]
        others += [("reference", trace.origins.pass_of(piece.ref))]
        for name, other in others:
            if other is None or _is_sampler(other, trace):
                continue
            if mine.value.context.autocast != other.value.context.autocast and _dtype(mine) != _dtype(other):
                inside = "new" if mine.value.context.autocast else name
                trace.found(
                    "NUM02",
                    f"new and {name} log-probs come from passes of different precision: only that of {inside} ran "
                    "under autocast",
                    other.value.place,
                    mine.value.place,
                )
            else:
                trace.is_well("NUM02", "the passes whose log-probs are compared ran in the same precision")


def _is_sampler(forward: Forward, trace: WatchedRun) -> bool:
    return any(draw.forward is forward for draw in trace.samplings)


def _dtype(forward: Forward) -> str:
    outputs = [sight(one) for one in [forward.value, *forward.value.users]]
    return next(
        (seen.dtype for seen in outputs if seen is not None and seen.is_floating),
        "autocast" * forward.value.context.autocast,
    )


# -- memory that two names share


def _aliases(trace: WatchedRun) -> None:
    for value in trace.graph.of("setitem"):
        before = sight(value.input)
        if before is not None and before.overlaps:
            trace.found(
                "ALGN06",
                f"`{value.place.text}` writes into a tensor whose rows or columns are one place in memory (expand): "
                "more changes "
                "than what is named",
                value.place,
                *([value.input.place] if value.input is not None else []),
            )
    for forward in trace.forwards:
        mask, ids = forward.attention_mask, numbers_of(forward.input_ids)
        for write in _writes(mask):
            was, now = numbers_of(write.input), numbers_of(write)
            if was is None or now is None or ids is None or not was.shape == now.shape == ids.shape:
                continue
            hidden = (was != 0) & (now == 0)
            if hidden.any() and _were_attended(trace, forward, ids, hidden):
                trace.found(
                    "ALGN06",
                    f"`{write.place.text}` writes into the tensor that is the attention mask of a later pass: "
                    f"{int(hidden.sum())} "
                    "tokens of prompts are hidden there",
                    write.place,
                    forward.value.place,
                )
    _changed_between(trace)


def _writes(value: Value | None) -> Iterator[Value]:
    """The writes into the tensor itself, the last first."""
    while value is not None and value.op in ("setitem", "changed", "index", "cast"):
        if value.op == "setitem":
            yield value
        value = value.input


def _were_attended(trace: WatchedRun, forward: Forward, ids: np.ndarray, hidden: np.ndarray) -> bool:
    """Whether a sampler saw the tokens that are hidden now."""
    seen = set(ids[hidden].tolist())
    prompts = [numbers_of(one.input_ids) for one in trace.generations]
    prompts += [numbers_of(draw.forward.input_ids) for draw in trace.samplings if draw.forward is not None]
    return any(prompt is not None and len(seen & set(prompt.reshape(-1).tolist())) == len(seen) for prompt in prompts)


def _changed_between(trace: WatchedRun) -> None:
    """A mask of rollouts that is changed in place while updates on them go on."""
    borders = [update.order for update in trace.updates]
    masks: dict[int, Value] = {}
    for backward in trace.backwards:
        for piece in backward.roles.pieces if backward.roles is not None else ():
            root = piece.mask
            while root is not None and root.op in ("index", "cast"):
                root = root.input
            if root is None or not is_mask(root):
                continue
            writes = [one for one in _writes(root) if one.op == "setitem"]
            for write in writes:
                source = write.input
                while source is not None and source.op == "setitem":
                    source = source.input
                first = masks.get(id(source))
                if first is not None and first.order < write.order and sum(border < write.order for border in borders):
                    before, after = numbers_of(write.input), numbers_of(write)
                    trained = any(border > first.order and border < write.order for border in borders)
                    if (
                        before is not None
                        and after is not None
                        and trained
                        and before.shape == after.shape
                        and (before != after).any()
                    ):
                        trace.found(
                            "ALGN06",
                            f"`{write.place.text}` changes the mask of the rollouts in place while updates on them "
                            "go on",
                            write.place,
                        )
            masks.setdefault(id(root), root)


def _sums(trace: WatchedRun) -> None:
    """Sums of losses that went backward already, and keep their graphs."""
    gone = {id(one.loss): one for one in trace.backwards}
    used = {id(value) for one in trace.backwards for value in above(one.loss)}
    orders = {id(one.loss): order for one, order in zip(trace.backwards, _orders(trace), strict=False)}
    for value in trace.graph.of("add"):
        one, other = value.input, value.arguments.get("other")
        if not requires_grad(value) or id(value) in used or one is None or other is None:
            continue
        for kept, added in ((one, other), (other, one)):
            again = kept.op == "add" and kept.place == value.place and requires_grad(kept)
            if again and id(added) in gone and orders[id(added)] < value.order:
                trace.found(
                    "PERF02",
                    f"`{value.place.text}` sums losses that went backward already, with their graphs",
                    value.place,
                )


def _orders(trace: WatchedRun) -> list[int]:
    return [value.order for value in trace.graph.of("backward")]


# -- nothing that could learn


def _nothing_to_train(trace: WatchedRun) -> None:
    failure = trace.failure
    if failure is None or "does not require grad" not in failure.message or failure.place is None:
        return
    trace.found(
        "OPT02",
        "backward() failed because nothing that the loss is made of requires a gradient: the policy's parameters are "
        "frozen, or "
        "the loss was detached",
        failure.place,
    )
