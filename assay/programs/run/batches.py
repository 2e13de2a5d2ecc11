"""An update of the script --> Batch: its tensors as they were, its settings as they were really in effect.

Shape legend: B completions, T token columns of the log-probs, S tokens given to the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.examine.part import stack
from assay.programs.run.objective import objective_of, penalty_of
from assay.programs.run.rewards import credit_of
from assay.programs.run.roles import Piece, is_corrected
from assay.programs.run.rollouts import Found, Rollout, locate, moment, rollouts_of
from assay.programs.run.sight import numbers_of
from assay.programs.run.watched import Backward, Update, WatchedRun
from assay.record.batch import Array, Batch, BatchError

if TYPE_CHECKING:
    from assay.policy.plain import Plain

MOST_ROWS = 256
ASKED = 3  # updates for which the model is asked again
Ask = Callable[[int, Sequence[Sequence[int]], float], "list[Plain] | None"]
_NO_PASS = frozenset(("input_ids", "attention_mask", "position_ids", "labels", "cache_position"))


class Rows:
    """The pieces of an update, laid under each other."""

    def __init__(self, pieces: Sequence[tuple[Backward, Piece]]) -> None:
        self.pieces = pieces
        self.shapes = [_two(piece.ids).shape for _, piece in pieces]
        self.width = max(shape[1] for shape in self.shapes)
        self.count = sum(shape[0] for shape in self.shapes)

    def laid(self, arrays: Sequence[Array | None]) -> Array | None:
        """[B, T]; None if one is missing or of another shape."""
        rows: list[Array] = []
        for array, shape in zip(arrays, self.shapes, strict=True):
            if array is None or array.size != shape[0] * shape[1]:
                return None
            rows += list(array.reshape(shape))
        return stack(rows, self.width)

    def by_row(self, arrays: Sequence[Array | None]) -> Array | None:
        """[B], or [B, T] if one of them is so."""
        per_row = []
        for array, shape in zip(arrays, self.shapes, strict=True):
            if array is None:
                return None
            if array.size == shape[0]:
                per_row.append(array.reshape(shape[0]))
        if len(per_row) == len(arrays):
            return np.concatenate(per_row)
        wide = [
            np.broadcast_to(array.reshape(shape[0], 1), shape)
            if array is not None and array.size == shape[0]
            else array
            for array, shape in zip(arrays, self.shapes, strict=True)
        ]
        return self.laid(wide)


def fields_of(trace: WatchedRun, update: Update, ask: Ask) -> dict[str, Any] | None:
    """What a Batch of this update holds, as far as it is known before the step; None if nothing was recognised."""
    pieces = [
        (backward, piece)
        for backward in update.backwards
        if backward.roles is not None
        for piece in backward.roles.pieces
    ]
    if not pieces or any(backward.roles is None for backward in update.backwards):
        return None
    rows = Rows(pieces)
    update.parts = tuple((shape[0], shape[1]) for shape in rows.shapes)
    if rows.count > MOST_ROWS or rows.count == 0 or rows.width == 0:
        return None
    fields: dict[str, Any] = {"mask": rows.laid([_mask(piece) for _, piece in pieces])}
    for name, role in (("new_logprobs", "new"), ("old_logprobs", "old"), ("ref_logprobs", "ref")):
        fields[name] = rows.laid([numbers_of(getattr(piece, role)) for _, piece in pieces])
    fields["gradients"] = rows.laid([_gradients(backward, piece) for backward, piece in pieces])
    if update.maximize and fields["gradients"] is not None:
        fields["gradients"] = -fields["gradients"]
    if _reaches_outside(fields["mask"], fields["gradients"]):
        fields["mask"] = None  # what was taken for the mask is none, or not all of it
    fields |= _credit(rows, [piece for _, piece in pieces])
    numbers = [backward.number for backward in update.backwards]
    if all(number is not None for number in numbers):
        loss = sum(number for number in numbers if number is not None)
        fields["loss"] = -loss if update.maximize else loss
    fields |= _settings(trace, update, [piece for _, piece in pieces])
    fields |= _inputs(rows, [piece for _, piece in pieces])
    fields["tokens"] = _tokens(rows, fields.get("input_ids"))
    rollouts = rollouts_of(trace)
    fields |= _sampled(trace, update, rows, rollouts, ask, fields)
    if fields.get("attention_mask") is None and fields.get("update") == 0 and fields.get("plain_logprobs") is not None:
        # a pass without a mask attends to everything; whether that moves log-probs, plain log-probs show
        given_BS = fields.get("input_ids")
        fields["attention_mask"] = None if given_BS is None else np.ones(given_BS.shape, dtype=bool)
    fields |= _penalty(trace, update, rows)
    fields |= _objective(trace, fields, [piece for _, piece in pieces])
    return {name: value for name, value in fields.items() if value is not None}


def batch_of(fields: Mapping[str, Any], update: Update, notes: list[str]) -> Batch | None:
    if fields.get("update", 0) < 0:
        return None  # an optimizer that does not hold the policy
    source = f"optimizer step {update.number + 1} ({update.place})"
    try:
        return Batch.of({**fields, **update.numbers}, source=source)
    except BatchError as error:
        notes.append(f"{source} could not be read as a batch: {error}")
        return None


def _two(array: Array) -> Array:
    return array.reshape(1, -1) if array.ndim == 1 else array


def _mask(piece: Piece) -> Array | None:
    counted = piece.ids >= 0
    if piece.mask is None:
        return counted
    mask = numbers_of(piece.mask)
    if mask is None:
        return None
    return (~mask.astype(bool) if piece.mask_is_inverted else mask.astype(bool)) & counted


def _tokens(rows: Rows, given_BS: Array | None) -> Array | None:
    """Where a label says that a token does not count, the token itself is in the input."""
    tokens_BT = rows.laid([piece.ids for _, piece in rows.pieces])
    if tokens_BT is None or given_BS is None or (tokens_BT >= 0).all():
        return tokens_BT
    shift = _shift(given_BS, tokens_BT)
    if shift is None:
        return tokens_BT
    return np.where(tokens_BT >= 0, tokens_BT, given_BS[:, shift : shift + tokens_BT.shape[1]])


def _reaches_outside(mask_BT: Array | None, gradients_BT: Array | None) -> bool:
    if mask_BT is None or gradients_BT is None or mask_BT.shape != gradients_BT.shape:
        return False
    return bool(np.any(np.nan_to_num(gradients_BT)[~mask_BT.astype(bool)] != 0))


def _gradients(backward: Backward, piece: Piece) -> Array | None:
    seen = (backward.gradients or {}).get(id(piece.new))
    return None if seen is None else seen.numbers


def _credit(rows: Rows, pieces: Sequence[Piece]) -> dict[str, Any]:
    if any("advantages" in piece.unsure or piece.advantages is None for piece in pieces):
        return {}
    signed = []
    for piece in pieces:
        numbers = numbers_of(piece.advantages)
        signed.append(None if numbers is None else piece.sign * numbers)
    fields: dict[str, Any] = {"advantages": rows.by_row(signed)}
    ratios = [numbers_of(piece.ratio) for piece in pieces]
    if all(piece.old is not None for piece in pieces):
        fields["ratio"] = rows.by_row(ratios)
    known: dict[int, Array | None] = {}
    credit = [credit_of(piece.advantages, known) for piece in pieces if piece.advantages is not None]
    rewards = rows.by_row([one.rewards for one in credit])
    groups = rows.by_row([one.groups for one in credit])
    if rewards is not None and rewards.ndim == 1:
        fields["rewards"] = rewards
        if groups is not None and groups.ndim == 1 and len(set(groups.tolist())) > 1:
            fields["group_ids"] = groups
    return fields


def _settings(trace: WatchedRun, update: Update, pieces: Sequence[Piece]) -> dict[str, Any]:
    model = trace.models[pieces[0].forward.model]
    autocast = any(piece.forward.value.context.autocast for piece in pieces)
    dtype = "bfloat16" if autocast else next((one for one in model.dtypes if one != "float32"), "float32")
    settings: dict[str, Any] = {
        "trainer": "script",
        "learning_rate": update.learning_rate,
        "weight_decay": update.weight_decay,
        "microbatches": len(update.backwards),
        "dropout_modules": max(piece.forward.dropout for piece in pieces),
        "clip_norm": update.clip_norm,
    }
    if dtype in ("float32", "bfloat16", "float16"):
        settings["dtype"] = dtype
    if is_corrected(update.backwards):
        settings["correction"] = "token"
    clips = {piece.clip for piece in pieces}
    if len(clips) == 1 and (clip := clips.pop()) is not None:
        settings["clip_low"] = None if clip[0] is None else round(1 - clip[0], 9)
        settings["clip_high"] = None if clip[1] is None else round(clip[1] - 1, 9)
    return settings


def _penalty(trace: WatchedRun, update: Update, rows: Rows) -> dict[str, Any]:
    """The KL in the loss; none at all if only the policy was ever asked."""
    penalties = [penalty_of(backward.roles, piece) for backward, piece in rows.pieces if backward.roles is not None]
    if all(penalty is None for penalty in penalties):
        trained = {piece.forward.model for _, piece in rows.pieces}
        alone = {one.model for one in trace.forwards} <= trained and not any(one.adapter_off for one in trace.forwards)
        return {"kl_coef": 0.0} if alone else {}
    known = [penalty for penalty in penalties if penalty is not None]
    coefficients, estimators = {one.coefficient for one in known}, {one.estimator for one in known}
    if len(known) < len(penalties) or len(coefficients) != 1 or len(estimators) != 1:
        return {}
    fields: dict[str, Any] = {"kl_coef": known[0].coefficient, "kl_placement": "loss"}
    if known[0].coefficient is not None and known[0].estimator is not None:
        fields |= {"kl_estimator": known[0].estimator, "kl_gradient": "naive"}
        fields["kl"] = rows.laid([one.numbers for one in known])
    return fields


def _objective(trace: WatchedRun, fields: Mapping[str, Any], pieces: Sequence[Piece]) -> dict[str, Any]:
    place = str(pieces[0].product.place) if pieces[0].product is not None else ""
    found = objective_of(fields, pieces)
    if found is not None:
        trace.objectives.setdefault(place, found)
    known = trace.objectives.get(place)
    if known is None:
        return {}
    return (
        {"objective": known[0]} if known[1] else {"objective": known[0], "loss": None}
    )  # a critic's loss is in it too


def _inputs(rows: Rows, pieces: Sequence[Piece]) -> dict[str, Any]:
    """What the scoring passes were given, if all were given the same columns."""
    fields: dict[str, Any] = {}
    for name in ("input_ids", "attention_mask", "position_ids"):
        arrays = [numbers_of(getattr(piece.forward, name)) for piece in pieces]
        whole = [array for array in arrays if array is not None and array.ndim == 2]
        if len(whole) == len(pieces) and len({array.shape[1] for array in whole}) == 1:
            stacked = np.concatenate(whole)
            fields[name] = stacked if len(stacked) == rows.count else None
    return fields


def _sampled(
    trace: WatchedRun, update: Update, rows: Rows, rollouts: Sequence[Rollout], ask: Ask, fields: Mapping[str, Any]
) -> dict[str, Any]:
    given_BS = fields.get("input_ids")
    tokens_BT = fields["tokens"]
    if given_BS is None or tokens_BT is None:
        return _place(trace, update, rollouts, (), whole=False)
    found = locate(given_BS, rollouts)
    known = [one for one in found if one is not None]
    shift = _shift(given_BS, tokens_BT)
    if len(known) < len(found) or shift is None:
        return _place(trace, update, rollouts, known, whole=False)
    told = _place(trace, update, rollouts, known) | _laid_by(known, tokens_BT, shift)
    if len(trace.batches) < ASKED and _can_be_asked(rows.pieces):
        told |= _plain(trace, rows, known, given_BS, tokens_BT, shift, told, ask, fields)
    return told


def _place(
    trace: WatchedRun, update: Update, rollouts: Sequence[Rollout], known: Sequence[Found], *, whole: bool = True
) -> dict[str, Any]:
    """Step, update within the rollout batch, and the settings that all rows were sampled with."""
    of = {id(one.rollout): one.rollout for one in known}
    used = list(of.values()) or list(rollouts[-1:])
    trained = {
        piece.forward.model for backward in update.backwards if backward.roles for piece in backward.roles.pieces
    }
    version = trace.models[min(trained)].version
    update.samplers = frozenset(one.weights for one in used)
    update.sampler_models = frozenset(one.sampler for one in used)
    update.is_first = bool(used) and max(one.moment for one in used) == trace.updates.index(update)
    update.sampled_at = frozenset((one.value.place, one.value.context.calls) for one in used)
    if not used:
        return {"policy_version": version}
    sampled = [one.value for one in trace.generations] + [one.value for one in trace.samplings]
    moments = sorted({moment(value, trace) for value in sampled})
    newest = max(one.version for one in used)
    fields: dict[str, Any] = {"step": moments.index(max(one.moment for one in used)) + 1, "policy_version": version}
    # how often the policy was stepped since the rows were sampled, by whatever model
    latest = max(one.value.order for one in used)
    fields["update"] = sum(one.order > latest and bool(trained & {*one.models}) for one in trace.updates) - 1
    if whole and {one.model for one in used} <= trained and version >= newest:
        fields["sampler_versions"] = np.array([one.rollout.version for one in known])
    shared = dict(used[0].settings)
    for other in used[1:]:
        shared = {name: value for name, value in shared.items() if other.settings.get(name) == value}
    return fields | shared


def _shift(given_BS: Array, tokens_BT: Array) -> int | None:
    """The input column of the first token column; the rightmost that fits."""
    width = tokens_BT.shape[1]
    for first in range(given_BS.shape[1] - width, -1, -1):
        if ((given_BS[:, first : first + width] == tokens_BT) | (tokens_BT < 0)).all():
            return first
    return None


def _laid_by(known: Sequence[Found], tokens_BT: Array, shift: int) -> dict[str, Any]:
    prompts = [one.rollout.prompt(one.row) for one in known]
    sampled_BT = np.full(tokens_BT.shape, -1, dtype=np.int64)
    for number, one in enumerate(known):
        first = one.completion - shift
        drawn = one.rollout.completion(one.row)
        columns = np.arange(max(first, 0), tokens_BT.shape[1])
        inside = columns[(columns - first) < len(drawn)]
        sampled_BT[number, inside] = drawn[inside - first]
        beyond = columns[(columns - first) >= len(drawn)]
        sampled_BT[number, beyond] = tokens_BT[number, beyond]
    fields: dict[str, Any] = {
        "prompt_tokens": stack(prompts),
        "prompt_mask": stack([[True] * len(prompt) for prompt in prompts]),
        "lengths": np.array([int(one.rollout.lengths_B[one.row]) for one in known]),
    }
    if all(one.completion == shift for one in known):  # columns of completions alone
        fields["sampled_tokens"] = sampled_BT
    if all(one.rollout.finished_B is not None for one in known):
        fields["finished"] = np.array([bool(one.rollout.finished_B[one.row]) for one in known])  # type: ignore[index]
    return fields


def _can_be_asked(pieces: Sequence[tuple[Backward, Piece]]) -> bool:
    """The scoring pass was given nothing that we would leave out."""
    names = {name for _, piece in pieces for name in piece.forward.value.arguments}
    return names <= _NO_PASS | {"1"} and len({piece.forward.model for _, piece in pieces}) == 1


def _plain(
    trace: WatchedRun,
    rows: Rows,
    known: Sequence[Found],
    given_BS: Array,
    tokens_BT: Array,
    shift: int,
    told: Mapping[str, Any],
    ask: Ask,
    fields: Mapping[str, Any],
) -> dict[str, Any]:
    temperature = told.get("temperature")
    asked = []
    for number, one in enumerate(known):
        length = len(one.rollout.prompt(one.row)) + int(one.rollout.lengths_B[one.row])
        asked.append([int(token) for token in given_BS[number, one.start : one.start + length]])
    models = {"plain": rows.pieces[0][1].forward.model}
    references = {_reference(trace, piece) for _, piece in rows.pieces}
    if fields.get("ref_logprobs") is not None and len(references) == 1 and (model := references.pop()) is not None:
        models["plain_ref"] = model
    plain: dict[str, Any] = {}
    for name, model in models.items():
        answer = ask(model, asked, float(temperature or 1.0))
        if answer is None:
            continue
        laid = [np.full(tokens_BT.shape, np.nan) for _ in range(2)]
        for number, one in enumerate(known):
            columns = np.arange(tokens_BT.shape[1]) + shift - one.start - 1
            for array, values_T in zip(laid, answer[number], strict=True):
                good = (columns >= 0) & (columns < len(values_T))
                array[number, good] = values_T.numpy()[columns[good]]
        if temperature is not None:
            plain[f"{name}_logprobs"] = laid[0]
        if name == "plain":
            plain["plain_raw_logprobs"] = laid[1]
    return plain


def _reference(trace: WatchedRun, piece: Piece) -> int | None:
    forward = trace.origins.forward_of(piece.ref)
    return None if forward is None or forward.adapter_off else forward.model
