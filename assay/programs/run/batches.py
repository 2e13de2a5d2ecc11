"""An update of the script --> Batch: its tensors as they were, its settings as they were really in effect.

Each piece of the loss becomes a Part, as each micro-batch of a trainer does; examine/ joins them.

Shape legend: B completions, T token columns of the log-probs, S tokens given to the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.calibration import Tally
from assay.examine.part import Part, join, join_inputs, sampled_fields, stack
from assay.programs.graph import Value
from assay.programs.run.draws import other_temperature
from assay.programs.run.kinds import above
from assay.programs.run.objective import KlTerm, objective_of, penalty_of
from assay.programs.run.policies import (
    MOST_ACTIONS,
    Layout,
    action_fields,
    bends_logits,
    layout_of,
    trained_uncertainty,
)
from assay.programs.run.rewards import Credit, credit_of
from assay.programs.run.roles import LossPiece, is_corrected
from assay.programs.run.rollouts import (
    Found,
    SampledRows,
    are_packed,
    jumbled_shift,
    locate,
    moment,
    other_tokens,
    packed_rows,
    rollouts_of,
    shift_of,
    with_ends,
)
from assay.programs.run.rows import placed_numbers
from assay.programs.run.sight import is_mask, numbers_of, shape_of
from assay.programs.run.states import is_of_states
from assay.programs.run.watched import Backward, WatchedRun, WatchedUpdate, spot_of
from assay.record.batch import PLAIN_FIELDS, Array, Batch, BatchError
from assay.record.metrics import LARGEST_FLOAT32

if TYPE_CHECKING:
    from torch import Tensor

    from assay.policy.plain import Plain

MOST_ROWS = 256
MOST_BATCHES = 3  # updates for which the model is asked again
Ask = Callable[..., "list[Plain] | None"]  # model, rows, temperature, and the position of the first token: see updates
FEW_END = 0.1  # of the rows of a step
MOST_ASKED = 32  # rows that are asked for their end
_INPUTS = ("input_ids", "attention_mask", "position_ids")
_REPEATED = frozenset((*_INPUTS, "labels", "cache_position", "1"))  # arguments of a pass that can be repeated


def fields_of(run: WatchedRun, update: WatchedUpdate, ask: Ask) -> dict[str, Any] | None:
    """What a Batch of this update holds, as far as it is known before the step; None if nothing was recognised."""
    pieces = update.pieces
    if not pieces or any(backward.roles is None for backward in update.backwards):
        return None
    layouts = [layout_of(piece, run) for piece in pieces]
    update.parts = tuple((layout.rows, layout.width) for layout in layouts)
    rows, width = range(sum(rows for rows, _ in update.parts)), max(width for _, width in update.parts)
    are_actions = all(map(is_of_states, pieces))
    if not 0 < len(rows) <= (MOST_ACTIONS if are_actions else MOST_ROWS) or width == 0:
        return None
    if are_actions:  # a loss that is added up action by action is one part
        counts = [sum(layout.rows for layout in layouts[part]) for part in _spans(update)]
        update.parts = tuple((count, width) for count in counts)
    penalties = [
        penalty_of(backward.roles, piece)
        for backward in update.backwards
        if backward.roles is not None
        for piece in backward.pieces
    ]
    parts = _parts(update, penalties, layouts)
    fields: dict[str, Any] = join(parts, rows, width)
    if _reaches_outside(fields.get("mask"), fields.get("gradients")):
        del fields["mask"]  # what was taken for the mask is none, or not all of it
    if "rewards" not in fields or len(set(fields.get("group_ids", ()))) < 2:
        fields.pop("group_ids", None)
    fields["groups_assumed"] = True if "group_ids" in fields else None
    losses = [backward.number for backward in update.backwards if backward.number is not None]
    if len(losses) == len(update.backwards):
        fields["loss"] = -sum(losses) if update.maximize else sum(losses)
    fields |= _settings(run, update) | _baseline_age(run, pieces)
    given = [{name: numbers_of(getattr(piece.forward, name)) for name in _INPUTS} for piece in pieces]
    fields |= join_inputs(parts, given, rows)
    fields["tokens"] = _with_uncounted(fields["tokens"], fields.get("input_ids"))
    apart = None if are_actions else _unpacked(run, update, ask, fields)
    if apart is not None:
        fields = apart
    else:
        fields |= action_fields(run, update, fields, layouts) if are_actions else _sampled(run, update, ask, fields)
    if not are_actions and fields.get("update") == 0 and "sampled_tokens" in fields:
        if "plain_logprobs" not in fields:  # the model was not asked: what the loss was computed with says it as well
            fields |= trained_uncertainty(update, layouts, fields["tokens"].shape, run.kinds)
        fields |= other_temperature(run, update, fields)
    is_plain = fields.get("update") == 0 and "plain_logprobs" in fields and "input_ids" in fields
    if "attention_mask" not in fields and is_plain:
        # a pass without a mask attends to everything; whether that moves log-probs, plain log-probs show
        fields["attention_mask"] = np.ones(fields["input_ids"].shape, dtype=bool)
    fields |= _penalty_settings(run, pieces, penalties)
    if "kl_estimator" not in fields:
        fields.pop("kl", None)
    fields |= _objective(run, fields, pieces)
    return {name: value for name, value in fields.items() if value is not None}


def _spans(update: WatchedUpdate) -> list[slice]:
    """Of the pieces of each backward among all pieces."""
    ends = np.cumsum([len(backward.pieces) for backward in update.backwards]).tolist()
    return [slice(first, last) for first, last in zip([0, *ends], ends, strict=False)]


def _numbers(update: WatchedUpdate) -> dict[str, Any]:
    """What was measured of the update; where the optimizer climbs, uphill is the way down for what is minimised.

    Later steps carry the gradients of earlier batches on: in small batches they may well go against the last one."""
    numbers = dict(update.numbers)
    if update.number > 0:
        numbers.pop("descent", None)
    if update.maximize and "descent" in numbers:
        numbers["descent"] = -numbers["descent"]
    return numbers


def add_after(fields: dict[str, Any], ask: Callable[[], list[Plain] | None]) -> None:
    """Plain log-probs after the step, where those before it are known; `ask` gives them for the same rows."""
    columns = fields.pop("columns", None)
    if columns is None or not {"plain_logprobs", "gradients", "objective", "loss"} <= fields.keys():
        return  # a bonus or a critic in the loss has a say in the step, too
    answers = ask()
    if answers is not None:
        fields["sequences"] = len(fields["plain_logprobs"])  # all that the update has
        fields["plain_logprobs_after"] = _in_columns([answer.scaled_T for answer in answers], *columns)


def batch_of(fields: Mapping[str, Any], update: WatchedUpdate, notes: list[str]) -> Batch | None:
    if fields.get("update", 0) < 0:
        return None  # an optimizer that does not hold the policy
    try:
        return Batch.of({**fields, **_numbers(update)}, source=update.source)
    except BatchError as error:
        notes.append(f"{update.source} could not be read as a batch: {error}")
        return None


# -- the tensors in the loss


def _parts(update: WatchedUpdate, penalties: Sequence[KlTerm | None], layouts: Sequence[Layout]) -> list[Part]:
    """One for each piece, rows numbered through; a field is per row in all parts, or per token in all."""
    is_credited = all(piece.advantages is not None and "advantages" not in piece.unsure for piece in update.pieces)
    groups: dict[int, Array | None] = {}
    parts: list[Part] = []
    first = 0
    pieces = [(backward, piece) for backward in update.backwards for piece in backward.pieces]
    for (backward, piece), penalty, layout in zip(pieces, penalties, layouts, strict=True):
        shape = (layout.rows, layout.width)
        per_token = _arrays(backward, piece, update.maximize)
        per_token["kl"] = None if penalty is None else penalty.numbers
        per_row = _credit(piece, groups) if is_credited else {}
        per_token["step_rewards"] = per_row.pop("step_rewards", None)
        either = {name: per_row[name] for name in ("advantages", "ratio") if name in per_row}
        whole = {name: array for name, array in (per_token | either).items() if array is not None}
        arrays = {name: layout.put(array) for name, array in whole.items() if array.size == math.prod(shape)}
        arrays |= _fitting(per_row, shape[:1])
        parts.append(Part(tuple(range(first, first + shape[0])), arrays))
        first += shape[0]
    wide = {name for part in parts for name, array in part.tensors.items() if array.ndim == 2}
    return [
        replace(part, tensors=_widen(part.tensors, wide, (layout.rows, layout.width)))
        for part, layout in zip(parts, layouts, strict=True)
    ]


def _fitting(arrays: Mapping[str, Array | None], shape: tuple[int, ...]) -> dict[str, Array]:
    size = math.prod(shape)
    return {name: array.reshape(shape) for name, array in arrays.items() if array is not None and array.size == size}


def _widen(arrays: Mapping[str, Array], wide: set[str], shape: tuple[int, int]) -> dict[str, Array]:
    """With a number for each token in place of one for each row, where another part has that."""
    return {
        name: np.broadcast_to(array[:, None], shape) if array.ndim == 1 and name in wide else array
        for name, array in arrays.items()
    }


def _arrays(backward: Backward, piece: LossPiece, maximize: bool) -> dict[str, Array | None]:
    counted, seen = piece.ids >= 0, numbers_of(piece.mask)
    mask = None if seen is None else (seen.astype(bool) ^ piece.mask_is_inverted) & counted
    caught = backward.gradients.get(id(_innermost(piece.new, backward)))
    gradients = None if caught is None else caught.numbers
    return {
        "tokens": piece.ids,
        "mask": counted if piece.mask is None else mask,
        "new_logprobs": numbers_of(piece.new),
        "old_logprobs": numbers_of(piece.old),
        "ref_logprobs": numbers_of(piece.ref),
        "gradients": -gradients if maximize and gradients is not None else gradients,
    }


def _innermost(new: Value, backward: Backward) -> Value:
    """The log-probs as the distribution gave them: a detach may stand between them and those in the loss."""
    while new.op in ("where", "masked_fill", "mul", "nan_to_num"):
        others = [value for value in new.arguments.values() if id(value) in backward.gradients]
        is_masking = new.op != "mul" or any(map(is_mask, new.arguments.values()))
        if len(others) != 1 or not is_masking or shape_of(others[0]) != shape_of(new):
            break
        new = others[0]
    return new


def _credit(piece: LossPiece, groups: dict[int, Array | None]) -> dict[str, Array | None]:
    assert piece.advantages is not None
    advantages, credit = numbers_of(piece.advantages), credit_of(piece.advantages, groups)
    placed = placed_numbers(piece.advantages)
    if placed is not None and not np.array_equal(placed.rows_B, np.arange(len(placed.rows_B))):
        credit = Credit(None, None)  # they were put into another layout: which reward is this row's is not known
    return {
        "advantages": None if advantages is None else piece.sign * advantages,
        "ratio": None if piece.old is None else numbers_of(piece.ratio),
        "rewards": None if credit.rewards is None else -credit.rewards if piece.are_costs else credit.rewards,
        "group_ids": credit.groups,
        "step_rewards": credit.steps,
    }


def _baseline_age(run: WatchedRun, pieces: Sequence[LossPiece]) -> dict[str, int]:
    """How old the baseline is: 0 where it is the mean of the same rewards; nothing where it is of another kind."""
    ages = set()
    for piece in pieces:
        credit = Credit(None, None) if piece.advantages is None else credit_of(piece.advantages, {})
        if credit.stale is not None and piece.advantages is not None:
            ages.add(moment(piece.advantages, run) - moment(credit.stale, run))
        else:
            ages.add(0 if credit.is_centred else -1)
    return {"baseline_age": max(ages)} if ages and min(ages) >= 0 else {}


def _reaches_outside(mask_BT: Array | None, gradients_BT: Array | None) -> bool:
    if mask_BT is None or gradients_BT is None:
        return False
    return bool(np.any(np.nan_to_num(gradients_BT)[~mask_BT] != 0))


def _with_uncounted(tokens_BT: Array, given_BS: Array | None) -> Array:
    """Where a label says that a token does not count, the token itself is in the input."""
    shift = None if given_BS is None or (tokens_BT >= 0).all() else shift_of(given_BS, tokens_BT)
    if shift is None or given_BS is None or shift + tokens_BT.shape[1] > given_BS.shape[1]:
        return tokens_BT
    return np.where(tokens_BT >= 0, tokens_BT, given_BS[:, shift : shift + tokens_BT.shape[1]])


# -- settings


def _settings(run: WatchedRun, update: WatchedUpdate) -> dict[str, Any]:
    pieces = update.pieces
    model = run.models[pieces[0].forward.model]
    autocast = any(piece.forward.value.context.autocast for piece in pieces)
    dtype = "bfloat16" if autocast else next((dtype for dtype in model.dtypes if dtype != "float32"), "float32")
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


def _penalty_settings(
    run: WatchedRun, pieces: Sequence[LossPiece], penalties: Sequence[KlTerm | None]
) -> dict[str, Any]:
    """Of the KL in the loss; there is none at all if only the policy was ever asked."""
    known = [penalty for penalty in penalties if penalty is not None]
    if not known:
        trained = {piece.forward.model for piece in pieces}
        alone = all(forward.model in trained and not forward.adapter_off for forward in run.forwards)
        others = any(_has_others(piece) for piece in pieces)
        return {"kl_coef": 0.0} if alone and not others else {}
    if len(known) < len(penalties) or len({(penalty.coefficient, penalty.estimator) for penalty in known}) != 1:
        return {}
    settings: dict[str, Any] = {"kl_coef": known[0].coefficient, "kl_placement": "loss"}
    if known[0].coefficient is not None and known[0].estimator is not None:
        settings |= {"kl_estimator": known[0].estimator, "kl_gradient": "naive"}
    return settings


def _has_others(piece: LossPiece) -> bool:
    """Whether the log-probs are held against others than old somewhere: these may be a reference's."""
    pulled = {id(made) for made in above(piece.product)} if piece.product is not None else set()
    return any(id(value) not in pulled for value in piece.differences)


def _objective(run: WatchedRun, fields: Mapping[str, Any], pieces: Sequence[LossPiece]) -> dict[str, Any]:
    place = str(pieces[0].product.place) if pieces[0].product is not None else ""
    found = objective_of(fields, pieces)
    if found is not None:
        run.objectives.setdefault(place, found)
    if place not in run.objectives:
        return {}
    objective, is_all = run.objectives[place]
    is_first = fields.get("update") == 0 and not fields.get("correction")  # later ones may clip in a way of their own
    stated = {"objective": objective} | ({"correction": "off"} if is_first else {})
    return stated if is_all else {**stated, "loss": None}  # a critic's loss is in it


# -- what was sampled


def _sampled(run: WatchedRun, update: WatchedUpdate, ask: Ask, fields: Mapping[str, Any]) -> dict[str, Any]:
    rollouts = rollouts_of(run)
    given_BS, tokens_BT = fields.get("input_ids"), fields["tokens"]
    if given_BS is None:
        return _moment(run, update, rollouts, ())
    shift = shift_of(given_BS, tokens_BT)
    rollouts = with_ends(given_BS, rollouts)
    located = locate(given_BS, rollouts)
    if shift is not None and shift + tokens_BT.shape[1] == given_BS.shape[1] + 1:
        # the last token is not fed: rows that differ in it alone are known by what is trained
        whole = locate(np.concatenate([given_BS, tokens_BT[:, -1:]], axis=1), rollouts)
        located = whole if all(whole) else located
    found = [row for row in located if row is not None]
    if shift is not None and shift + tokens_BT.shape[1] > given_BS.shape[1]:
        is_short = any(row.span.stop > given_BS.shape[1] for row in found)
        if not is_short and not all(row.completion == shift for row in found):
            shift = None  # the pass was given whole rows: the tokens are shifted
    if shift is None and len(found) == len(located):
        shift = jumbled_shift(found, tokens_BT)
    sampled = _moment(run, update, rollouts, found)
    if len(found) < len(located):
        update.unknown_rows = (len(located) - len(found), len(located))
        update.other_tokens = other_tokens(given_BS, located, rollouts, _counted(fields, given_BS, shift))
    if len(found) < len(located) or shift is None:
        return {name: value for name, value in sampled.items() if name != "sampler_versions"}
    if are_packed(given_BS, found, rollouts):  # a row holds several answers: it has no length, and no one end
        return {name: value for name, value in sampled.items() if name not in ("sampler_versions", "eos_ids")}
    sampled |= _rows(found, tokens_BT, shift)
    # a pass that was given something that we would leave out cannot be repeated
    if all(piece.forward.value.arguments.keys() <= _REPEATED for piece in update.pieces):
        texts = [_text(*row) for row in zip(given_BS, tokens_BT, found, strict=True)]
        offsets = [shift - row.start - 1 for row in found]
        sampled |= _plain(run, update.pieces, ask, found, (texts, offsets), {**fields, **sampled})
        if "plain_logprobs" in sampled:
            update.ends_next = _ends_next(run, update.pieces, ask, found, sampled)
    return sampled


def _counted(fields: Mapping[str, Any], given_BS: Array, shift: int | None) -> Array | None:
    """Which of the given tokens the loss counts; None where their columns are not known."""
    mask_BT = fields.get("mask")
    if mask_BT is None or shift is None:
        return None
    counted_BS = np.zeros(given_BS.shape, dtype=bool)
    width = min(mask_BT.shape[1], given_BS.shape[1] - shift)
    counted_BS[:, shift : shift + width] = mask_BT[:, :width]
    return counted_BS


def _unpacked(run: WatchedRun, update: WatchedUpdate, ask: Ask, fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """The fields of a pass whose rows hold several sampled rows each, with one row for each of these; None where that
    is not so, or the loss reaches beyond their completions."""
    rollouts, given_BS, tokens_BT, mask_BT = (
        rollouts_of(run), fields.get("input_ids"), fields["tokens"], fields.get("mask"),
    )  # fmt: skip
    shift = None if given_BS is None else shift_of(given_BS, tokens_BT)
    packed = None if given_BS is None or shift is None else packed_rows(given_BS, rollouts)
    if not packed or shift is None or mask_BT is None:
        return None
    spans = [(line, slice(row.completion - shift, row.span.stop - shift)) for line, row in packed]
    outside_BT = mask_BT.copy()
    for line, columns in spans:
        outside_BT[line, columns] = False
    if outside_BT.any() or min(columns.start for _, columns in spans) < 0:
        return None
    found = [row for _, row in packed]
    prompts = [row.rollout.prompt(row.row) for row in found]
    completions = [row.rollout.completion(row.row) for row in found]
    width = max(map(len, completions))
    apart = {name: value for name, value in fields.items() if name not in _INPUTS and not isinstance(value, np.ndarray)}
    for name, array in fields.items():
        if isinstance(array, np.ndarray) and array.shape == tokens_BT.shape:
            apart[name] = stack([array[line, columns] for line, columns in spans], width)
    apart |= sampled_fields(prompts, completions, width)
    apart["packed_behind"] = [
        sum(other == line and before.start < row.start for other, before in packed) for line, row in packed
    ]
    apart |= _moment(run, update, rollouts, found)
    if all(row.rollout.finished_B is not None for row in found):
        apart["finished"] = [
            bool(row.rollout.finished_B[row.row]) for row in found if row.rollout.finished_B is not None
        ]
    draws = [draw.forward for draw in run.samplings if draw.forward is not None]
    if all(draw.value.arguments.keys() <= _REPEATED for draw in draws):  # the sampler asked as we do
        texts = [[*map(int, prompt), *map(int, ids)] for prompt, ids in zip(prompts, completions, strict=True)]
        offsets = [len(prompt) - 1 for prompt in prompts]
        apart |= _plain(run, update.pieces, ask, (), (texts, offsets), apart)
    return apart


def _ends_next(
    run: WatchedRun, pieces: Sequence[LossPiece], ask: Ask, found: Sequence[Found], sampled: Mapping[str, Any]
) -> float | None:
    """Where nearly no row ended: how probable the end is as the next token of those that were cut off, on average."""
    finished, ends = sampled.get("finished"), sampled.get("eos_ids", [])
    if finished is None or len(ends) != 1 or np.mean(finished) > FEW_END:
        return None
    cut = [row for row, is_done in zip(found, finished, strict=True) if not is_done][:MOST_ASKED]
    texts = [[*row.rollout.prompt(row.row).tolist(), *row.rollout.completion(row.row).tolist(), *ends] for row in cut]
    answers = ask(pieces[0].forward.model, texts, sampled["temperature"])
    return None if not answers else float(np.mean([np.exp(float(answer.scaled_T[-1])) for answer in answers]))


def _plain(
    run: WatchedRun,
    pieces: Sequence[LossPiece],
    ask: Ask,
    found: Sequence[Found],
    rows: tuple[Sequence[Sequence[int]], Sequence[int]],
    fields: Mapping[str, Any],
) -> dict[str, Array]:
    """Plain log-probs of the policy and of the reference, in the columns of the tokens. `rows`: prompt and completion
    of each, and how many of its tokens but the first stand before the first column."""
    models: dict[str, set[int | None]] = {"plain": {piece.forward.model for piece in pieces}}
    if len(run.batches) >= MOST_BATCHES or len(models["plain"]) > 1:
        return {}
    if "ref_logprobs" in fields:
        models["plain_ref"] = {_reference(run, piece) for piece in pieces}
    if any(bends_logits(piece, run.kinds) for piece in pieces):
        return {}  # the trainer means another distribution than the model's own
    texts, offsets = rows
    width = fields["tokens"].shape[1]
    temperature = fields.get("temperature")
    plain: dict[str, Array] = {}
    for name, numbers in models.items():
        model = numbers.pop() if len(numbers) == 1 else None
        is_counted = name == "plain" and temperature is not None and fields.get("update") == 0
        is_counted &= "forced" not in fields  # the script's own tokens are not draws
        tally = Tally() if is_counted else None
        prompts = [row.completion - row.start for row in found] or [offset + 1 for offset in offsets]
        answers = None if model is None else ask(model, texts, temperature or 1.0, 0, tally, prompts)
        if answers is None:
            continue
        plain |= {} if tally is None else tally.fields()
        arrays = [_in_columns(values, offsets, width) for values in zip(*answers, strict=True)]
        of_policy = dict(zip(PLAIN_FIELDS, arrays, strict=True))
        if name == "plain":
            plain["columns"] = (offsets, width)  # type: ignore[assignment]
            plain |= of_policy if temperature is not None else {"plain_raw_logprobs": of_policy["plain_raw_logprobs"]}
            if temperature is not None and model is not None and found:
                columns = (texts, offsets)
                plain |= _counted_positions(ask, model, columns, temperature, {**fields, **plain}, found)
        elif temperature is not None:
            plain["plain_ref_logprobs"] = of_policy["plain_logprobs"]
    return plain


def _counted_positions(
    ask: Ask,
    model: int,
    columns: tuple[Sequence[Sequence[int]], Sequence[int]],
    temperature: float,
    fields: Mapping[str, Any],
    found: Sequence[Found],
) -> dict[str, Array]:
    """The positions of a pass that was given none, where they are known: of the row with most padding on its left the
    log-probs in the loss are those at positions that count the padding, and not those without it."""
    names = ("attention_mask", "new_logprobs", "mask", "plain_logprobs")
    if any(fields.get(name) is None for name in names) or "position_ids" in fields or fields.get("update") != 0:
        return {}
    row = int(np.argmax([place.start for place in found]))
    mask_BS, new_BT, inside_BT, plain_BT = (fields[name] for name in names)
    inside_T = inside_BT[row] & np.isfinite(plain_BT[row])
    first, (texts, offsets) = found[row].start, columns
    if first == 0 or mask_BS[row, :first].any() or not inside_T.any():
        return {}
    if np.abs(plain_BT[row] - new_BT[row])[inside_T].max() <= LARGEST_FLOAT32:
        return {}
    answers = ask(model, [texts[row]], temperature, first)
    if answers is None:
        return {}
    counted_T = _in_columns([answers[0].scaled_T], [offsets[row]], len(inside_T))[0]
    if not np.abs(counted_T - new_BT[row])[inside_T].max() <= LARGEST_FLOAT32:
        return {}
    return {"position_ids": np.broadcast_to(np.arange(mask_BS.shape[1]), mask_BS.shape).copy()}


def _text(given_S: Array, tokens_T: Array, row: Found) -> list[int]:
    """Prompt and completion of a row; its last token may be scored and not given."""
    last = [int(tokens_T[-1])] if row.span.stop > len(given_S) else []
    return [*(int(token) for token in given_S[row.span]), *last]


def _in_columns(values: Sequence[Tensor], offsets: Sequence[int], width: int) -> Array:
    """[B, T], NaN where a row has no number; each row begins at its offset, which may lie left of the columns."""
    columns_BT = np.full((len(values), width), np.nan)
    for row_T, numbers, offset in zip(columns_BT, values, offsets, strict=True):
        kept = numbers.numpy()[max(offset, 0) :]
        first = max(-offset, 0)
        row_T[first : first + len(kept)] = kept[: max(width - first, 0)]
    return columns_BT


def _moment(
    run: WatchedRun, update: WatchedUpdate, rollouts: Sequence[SampledRows], found: Sequence[Found]
) -> dict[str, Any]:
    """Step, update within the rollout batch, and the settings that all rows were sampled with."""
    used = list({id(row.rollout): row.rollout for row in found}.values()) or list(rollouts[-1:])
    trained = {piece.forward.model for piece in update.pieces}
    version = run.models[min(trained)].version
    update.samplers = frozenset(rollout.weights for rollout in used)
    update.sampler_models = frozenset(rollout.sampler for rollout in used)
    update.sampled_at = frozenset(spot_of(rollout.value) for rollout in used)
    if not used:
        return {"policy_version": version}
    newest = max(rollout.moment for rollout in used)
    update.is_first = newest == run.updates.index(update)
    calls = [call.value for call in run.generations] + [draw.value for draw in run.samplings]
    moments = sorted({moment(value, run) for value in calls})
    # how often the policy was stepped since the rows were sampled, by whatever model
    latest = max(rollout.value.order for rollout in used)
    since = sum(other.order > latest and not trained.isdisjoint(other.models) for other in run.updates)
    fields: dict[str, Any] = {"step": moments.index(newest) + 1, "policy_version": version, "update": since - 1}
    if found and {rollout.model for rollout in used} <= trained and version >= max(rollout.version for rollout in used):
        fields["sampler_versions"] = np.array([row.rollout.version for row in found])
    shared = used[0].settings.items()
    return fields | {
        name: value for name, value in shared if all(rollout.settings.get(name) == value for rollout in used)
    }


def _rows(found: Sequence[Found], tokens_BT: Array, shift: int) -> dict[str, Any]:
    """The located rows as they were sampled."""
    prompts = [row.rollout.prompt(row.row) for row in found]
    completions = [row.rollout.completion(row.row) for row in found]
    width = tokens_BT.shape[1]
    fields: dict[str, Any] = sampled_fields(prompts, completions, width)
    if all(row.completion == shift for row in found):  # columns of completions alone
        forced_BT = _forced(found, width)
        if forced_BT.any():
            fields["forced"] = forced_BT
        was_drawn_BT = np.arange(width) < fields["lengths"][:, None]
        fields["sampled_tokens"] = np.where(was_drawn_BT, fields["sampled_tokens"], tokens_BT)
    else:
        del fields["sampled_tokens"]
    endings = [None if row.rollout.finished_B is None else bool(row.rollout.finished_B[row.row]) for row in found]
    if None not in endings:
        fields["finished"] = endings
    return fields


def _forced(found: Sequence[Found], width: int) -> Array:
    """Tokens that the script put in place of what was drawn."""
    forced_BT = np.zeros((len(found), width), dtype=bool)
    for forced_T, row in zip(forced_BT, found, strict=True):
        if row.rollout.forced_BT is not None:
            length = min(width, int(row.rollout.lengths_B[row.row]))
            forced_T[:length] = row.rollout.forced_BT[row.row, :length]
    return forced_BT


def _reference(run: WatchedRun, piece: LossPiece) -> int | None:
    forward = run.kinds.forward_of(piece.ref)
    if forward is None or forward.adapter_off or forward.model == piece.forward.model:
        return None  # a switch makes a reference of the policy's own weights: it cannot be asked in the same way
    return forward.model
