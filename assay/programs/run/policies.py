"""Policies over a few actions: no tokens, no model that is given ids. A state goes in, an action is drawn.

Such a policy is known by its parameters: what was computed from one outside of any model's pass is learned, and a
softmax of it is a distribution over actions. Each action is a row of its own, unless the script keeps actions as
[B, T] or [T, B].

Shape legend: N actions, A kinds of actions, B episodes, T steps of an episode.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from assay.calibration import Distributions, Tally
from assay.programs.facts.kinds import Kind
from assay.programs.graph import RESHAPES, Value
from assay.programs.run.kinds import DRAWS, RunKinds, one_of_each
from assay.programs.run.roles import LossPiece
from assay.programs.run.sight import number_of, numbers_of, sight
from assay.programs.run.states import is_of_states, normaliser_of, state_numbers
from assay.programs.run.watched import Sampling, WatchedRun, WatchedUpdate, spot_of
from assay.programs.walk import main_input, walk
from assay.record.batch import Array

MOST_ACTIONS = 8192  # of one update
DRAWS_LOOKED_AT = 64
LEAST_LEANING = 0.05  # of a probability from that of a uniform policy, relative
LEAST_MOVED = 0.25  # of the actions: fewer that were not drawn may be exploration
CUT = -80.0  # log-prob of an action that has no chance
LEAST_OLDER = 0.25  # of the rows that no new draw had: fewer may have the same log-prob by chance
LOWEST = -1e4  # in place of -inf, which times 0 is not a number
SAME_LOGPROB = 2e-5  # of the same action, in float32
FAR = 10  # times as much: another action
SAME_LOGITS = 1e-4  # of the same weights at the same state, in float32
_MOVES = RESHAPES | {"cast", "clone", "detach", "element", "attribute", "index", "expand", "changed"}
_BENDS = frozenset("masked_fill where setitem scatter topk sort add clamp".split())
_BARS = frozenset("masked_fill where setitem".split())
_KNOWN = (Kind.LOG_SOFTMAX, Kind.PROBABILITIES)
_DISTRIBUTIONS = frozenset("softmax log_softmax cross_entropy categorical logsumexp".split())


@dataclass(frozen=True)
class Layout:
    """How the actions of a piece become rows of a Batch."""

    rows: int
    width: int
    turned: bool = False  # the script has time first

    def put(self, array: Array) -> Array:
        """An array of the shape of the actions as [B, T]."""
        return array.reshape(self.width, self.rows).T if self.turned else array.reshape(self.rows, self.width)


def layout_of(piece: LossPiece, run: WatchedRun) -> Layout:
    shape = _without_ones(piece.ids.shape)
    if not is_of_states(piece):
        return Layout(1, piece.ids.size) if len(shape) < 2 else Layout(math.prod(shape[:-1]), shape[-1])
    credit = sight(piece.advantages)
    if len(shape) < 2:
        is_episode = credit is not None and credit.size == 1  # one number for all of its actions
        return Layout(1, piece.ids.size) if is_episode else Layout(piece.ids.size, 1)
    if credit is not None and credit.size == piece.ids.size and _is_one_draw(piece.ids, run):
        return Layout(piece.ids.size, 1)  # nothing was done between these actions: each is an episode
    first, rest = shape[0], math.prod(shape[1:])
    by_column = credit is not None and first != rest == credit.size == math.prod(credit.shape[-1:])
    if by_column or _is_time_first(piece.ids.reshape(first, rest), run):
        return Layout(rest, first, turned=True)
    return Layout(math.prod(shape[:-1]), shape[-1])


def _is_one_draw(ids: Array, run: WatchedRun) -> bool:
    drawn = (numbers_of(draw.value) for draw in reversed(run.samplings[-DRAWS_LOOKED_AT:]))
    return any(
        numbers is not None and numbers.size == ids.size and (numbers.reshape(ids.shape) == ids).all()
        for numbers in drawn
    )


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """gather() leaves a dimension of 1 behind."""
    return shape if len(shape) <= 2 else _sizes(shape)


def _sizes(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size > 1)


def _is_time_first(ids: Array, run: WatchedRun) -> bool:
    """Whether a row of the actions was drawn at once."""
    drawn = [numbers_of(draw.value) for draw in run.samplings[-ids.size :]]
    rows = {tuple(numbers.reshape(-1).tolist()) for numbers in drawn if numbers is not None}
    return all(tuple(row) in rows for row in ids.tolist())


def scored_states(piece: LossPiece, kinds: RunKinds) -> Array | None:
    """What the policy was given for the log-probs in the loss, as numbers."""
    return state_numbers(scored_distribution(piece, kinds)[0] or piece.new, kinds)


# -- what was drawn


@dataclass(frozen=True)
class Drawn:
    """The actions that were drawn since the last update but this one, with the logits that each was drawn from."""

    draws: Sequence[Sampling]
    actions_N: Array
    logits_NA: Array
    temperature: float | None
    is_cut: bool


def action_fields(
    run: WatchedRun, update: WatchedUpdate, fields: dict[str, Any], layouts: Sequence[Layout]
) -> dict[str, Any]:
    """Step, update within the rollout batch; in a first update also who drew each action, and from what."""
    trained = {piece.forward.model for piece in update.pieces}
    version = run.models[min(trained)].version
    found: dict[str, Any] = {"policy_version": version}
    draws = [draw for draw in run.samplings if draw.forward is not None and draw.forward.model in trained]
    is_drawn = any(sight(draw.value) is not None for draw in draws)  # else numpy drew
    draws = [draw for draw in draws if sight(draw.value) is not None or not is_drawn]
    if not draws:
        return found
    orders = [other.order for other in run.updates]
    moments = [sum(order < draw.value.order for order in orders) for draw in draws]
    newest = max(moments)
    draws = [draw for draw, moment in zip(draws, moments, strict=True) if moment == newest]
    latest = draws[-1].value.order
    since = sum(other.order > latest and not trained.isdisjoint(other.models) for other in run.updates)
    update.is_first = newest == run.updates.index(update)
    update.sampled_at = frozenset(spot_of(draw.value) for draw in draws)
    found["step"] = sorted(set(moments)).index(newest) + 1
    older = [draw for draw in run.samplings if draw.value.order < draws[0].value.order][-MOST_ACTIONS:]
    if _are_older(fields, draws, older):
        _note(run, "rows of earlier rollout batches are trained again: checks of fresh rows were not asked of them")
        return found
    found["update"] = since - 1
    found |= _episodes(run, update, layouts, draws)
    if since == 1:
        located = _located(update, draws, fields, version, layouts, run.kinds) if is_drawn else {}
        found |= located
        if not located:
            found |= _as_trained(run, update, draws, fields, layouts)
            update.states_moved, others = _states(run, update, draws)
            _note(run, "which draw each trained action comes from is not known: what was sampled could not be compared")
            if others is not None and not any("states that were scored" in note for note in run.notes):
                run.notes.append(others)
    return found


def _as_trained(
    run: WatchedRun,
    update: WatchedUpdate,
    draws: Sequence[Sampling],
    fields: dict[str, Any],
    layouts: Sequence[Layout],
) -> dict[str, Any]:
    """Where it is not known which draw each action comes from: how uncertain the trained policy is of each, if what is
    trained is what was drawn, all of it and nothing else."""
    tokens_BT = fields["tokens"]
    counted_BT = fields.get("mask", np.ones(tokens_BT.shape, dtype=bool))
    drawn = [numbers_of(draw.value) for draw in draws]
    known = [numbers.reshape(-1) for numbers in drawn if numbers is not None and numbers.dtype.kind in "iu"]
    if len(known) == len(drawn):
        is_it = not Counter(tokens_BT[counted_BT].tolist()) - Counter(np.concatenate(known).tolist())
    else:  # numpy or Python drew
        is_it = not known and sum(map(drawn_actions, draws)) == counted_BT.sum()
    final_NA = _trained_logprobs(update, layouts, tokens_BT.shape, run.kinds) if is_it else None
    return {} if final_NA is None else _uncertainty(final_NA, tokens_BT.shape)


def drawn_actions(draw: Sampling) -> int:
    """How many actions one draw gives."""
    seen, given = sight(draw.value), sight(draw.value.input)
    if seen is not None:
        return seen.size
    return 0 if given is None or not given.shape else math.prod(given.shape[:-1])


def _episodes(
    run: WatchedRun, update: WatchedUpdate, layouts: Sequence[Layout], draws: Sequence[Sampling]
) -> dict[str, Any]:
    """Where each row began, and how many actions of it were taken."""
    from assay.programs.run.episodes import lengths_of, start_states

    found: dict[str, Any] = {"start_states": start_states(run, update.pieces, layouts, len(draws))}
    actions = sum(piece.ids.size for piece in update.pieces)
    if all(piece.mask is None for piece in update.pieces) and sum(map(drawn_actions, draws)) == actions:
        found["lengths"] = np.concatenate([np.full(layout.rows, layout.width) for layout in layouts])  # all are there
    elif len(layouts) == 1:
        found["lengths"] = lengths_of(update.pieces[0], layouts[0], draws)
    return found


def _states(
    run: WatchedRun, update: WatchedUpdate, draws: Sequence[Sampling]
) -> tuple[tuple[int, int, int] | None, str | None]:
    from assay.programs.run.episodes import other_states, states_moved

    return states_moved(update, draws, run.kinds), other_states(update, draws, run.kinds)


def _note(run: WatchedRun, sentence: str) -> None:
    if sentence not in run.notes:
        run.notes.append(sentence)


def _are_older(fields: dict[str, Any], draws: Sequence[Sampling], older: Sequence[Sampling]) -> bool:
    """Whether there are more rows than were drawn, or rows whose old log-probs only earlier draws had."""
    sizes = [seen.size for draw in draws if (seen := sight(draw.value)) is not None]
    if sizes and fields["tokens"].size > sum(sizes):
        return True
    old = fields.get("old_logprobs")
    if old is None or not older:
        return False
    counted_N = fields["mask"].reshape(-1) if "mask" in fields else np.ones(old.size, dtype=bool)
    old_N, actions_N = old.reshape(-1)[counted_N], fields["tokens"].reshape(-1)[counted_N]
    foreign_N = ~_are_among(actions_N, old_N, draws)
    older_N = foreign_N & _are_among(actions_N, old_N, older)
    return bool(older_N.sum() > LEAST_OLDER * foreign_N.sum())


def _are_among(actions_N: Array, logprobs_N: Array, draws: Sequence[Sampling]) -> Array:
    """Which of these (action, log-prob) some draw had."""
    found_N = np.zeros(len(actions_N), dtype=bool)
    tables = [table for draw in draws if (table := _final_logprobs(draw.value)) is not None]
    tables = [table.reshape(-1, table.shape[-1]) for table in tables]
    if not tables or len({table.shape[1] for table in tables}) != 1:
        return found_N
    table_NA = np.concatenate(tables)
    for action in range(table_NA.shape[1]):
        known, asked_N = np.sort(table_NA[:, action]), actions_N == action
        if asked_N.any():
            at = np.clip(np.searchsorted(known, logprobs_N[asked_N]), 1, len(known) - 1) if len(known) > 1 else None
            near = np.stack([known[at - 1], known[at]]) if at is not None else known[None]
            found_N[asked_N] = np.abs(near - logprobs_N[asked_N]).min(axis=0) <= SAME_LOGPROB
    return found_N


def _final_logprobs(value: Value) -> Array | None:
    """Of the distribution that was drawn from, as it was."""
    given = value.input if value.op in DRAWS else None
    is_log = given is not None and given.op == "categorical" and "logits" in given.arguments
    if given is not None and given.op == "categorical":
        given = given.arguments.get("logits") or given.arguments.get("probs")
    numbers = numbers_of(given)
    if numbers is None or not numbers.ndim or numbers.dtype.kind != "f":
        return None
    with np.errstate(divide="ignore"):
        logits = numbers if is_log else np.log(np.maximum(numbers, 0))
    return _log_softmax(logits.reshape(-1, logits.shape[-1]))


def _order(piece: LossPiece, layout: Layout) -> Array:
    """The number of each action in the script's order, in the order of the rows of the Batch."""
    return layout.put(np.arange(piece.ids.size)).reshape(-1)


def _in_rows(
    parts: Sequence[Array], orders: Sequence[Array], layouts: Sequence[Layout], shape: tuple[int, ...]
) -> Array | None:
    """[B * T, A] of what each piece has of its actions, [N, A]; NaN behind the end of short rows."""
    kinds = {part.shape[1] for part in parts}
    if len(kinds) != 1:
        return None
    whole_BTA = np.full((*shape, kinds.pop()), np.nan)
    first = 0
    for part, order, layout in zip(parts, orders, layouts, strict=True):
        rows = slice(first, first + layout.rows)
        whole_BTA[rows, : layout.width] = part[order].reshape(layout.rows, layout.width, -1)
        first += layout.rows
    return whole_BTA.reshape(-1, whole_BTA.shape[-1]) if first == shape[0] else None


def _trained_logprobs(
    update: WatchedUpdate, layouts: Sequence[Layout], shape: tuple[int, ...], kinds: RunKinds
) -> Array | None:
    """[B * T, A]: the distributions that the log-probs in the loss are of."""
    finals = [final_logprobs(piece, kinds) for piece in update.pieces]
    known = [final for final in finals if final is not None]
    if len(known) < len(finals):
        return None
    orders = [_order(piece, layout) for piece, layout in zip(update.pieces, layouts, strict=True)]
    whole_NA = _in_rows(known, orders, layouts, shape)
    return None if whole_NA is None else np.maximum(whole_NA, LOWEST)


def trained_uncertainty(
    update: WatchedUpdate, layouts: Sequence[Layout], shape: tuple[int, ...], kinds: RunKinds
) -> dict[str, Array]:
    """Of the distributions that the log-probs in the loss are of, where they were kept."""
    final_NA = _trained_logprobs(update, layouts, shape, kinds)
    return {} if final_NA is None else _uncertainty(final_NA, shape)


def _uncertainty(logprobs_NA: Array, shape: tuple[int, ...]) -> dict[str, Array]:
    """Entropy, and the variance of a draw's log-prob."""
    entropy_N = -(np.exp(logprobs_NA) * logprobs_NA).sum(axis=1)
    variance_N = (np.exp(logprobs_NA) * logprobs_NA**2).sum(axis=1) - entropy_N**2
    return {"entropy": entropy_N.reshape(shape), "plain_variance": variance_N.reshape(shape)}


def _located(
    update: WatchedUpdate,
    draws: Sequence[Sampling],
    fields: dict[str, Any],
    version: int,
    layouts: Sequence[Layout],
    kinds: RunKinds,
) -> dict[str, Any]:
    """Rows are known by the logits that they were drawn from: the same weights give the same ones again."""
    drawn = _drawn(draws)
    orders = [_order(piece, layout) for piece, layout in zip(update.pieces, layouts, strict=True)]
    pieces = [piece_logits(piece) for piece in update.pieces]
    if drawn is None or any(logits is None for logits in pieces):
        return {}
    shape = fields["tokens"].shape
    actions_N = fields["tokens"].reshape(-1)
    counted = fields["mask"].reshape(-1) if "mask" in fields else np.ones(len(actions_N), dtype=bool)
    logits_NA = _in_rows([logits for logits in pieces if logits is not None], orders, layouts, shape)
    if logits_NA is None or logits_NA.shape[1] != drawn.logits_NA.shape[1]:
        return {}
    places = [_same(logits_A, drawn.logits_NA) for logits_A in logits_NA]
    if not all(len(rows) for rows, is_counted in zip(places, counted, strict=True) if is_counted):
        return {}
    rows_at = Counter(rows.tobytes() for rows, is_counted in zip(places, counted, strict=True) if is_counted)
    if any(8 * count > len(rows) for rows, count in rows_at.items()):
        return {}  # more rows at these logits than were drawn there: the states are others
    versions = {draw.forward.version for draw in draws if draw.forward is not None}
    if versions != {version}:
        return {}
    sampled_N = _overwritten(fields, drawn, places, logits_NA, counted)
    if sampled_N is None:
        sampled_N = _sampled(actions_N, places, drawn.actions_N, counted)
    if sampled_N is None:
        update.replaced = _replaced(fields, drawn, places, logits_NA, counted)
        return {}
    found: dict[str, Any] = {"sampler_versions": np.full(shape[0], version)}
    if (sampled_N != actions_N).any() or _are_single(places, drawn.actions_N):
        found["sampled_tokens"] = sampled_N.reshape(shape)
    if drawn.temperature is not None and not drawn.is_cut:
        found |= {"temperature": drawn.temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
        plain_NA = _log_softmax(logits_NA / drawn.temperature)
    else:  # by what the trainer means
        final_NA = _trained_logprobs(update, layouts, shape, kinds)
        if final_NA is None or final_NA.shape != logits_NA.shape:
            return found
        plain_NA = final_NA
        update.barred = _barred(drawn, places, plain_NA, counted)
    entropy_N = -(np.exp(plain_NA) * plain_NA).sum(axis=1)
    chosen = np.arange(len(actions_N)), actions_N
    found |= _counted(plain_NA, actions_N, counted, shape)
    found |= {
        "plain_logprobs": plain_NA[chosen].reshape(shape),
        "plain_raw_logprobs": _log_softmax(logits_NA)[chosen].reshape(shape),
        "plain_entropy": entropy_N.reshape(shape),
        "plain_variance": ((np.exp(plain_NA) * plain_NA**2).sum(axis=1) - entropy_N**2).reshape(shape),
    }
    return found


def _counted(plain_NA: Array, actions_N: Array, counted_N: Array, shape: tuple[int, ...]) -> dict[str, Array]:
    """See calibration.py; a row of one action has no places."""
    tally, width = Tally(), shape[1]
    for first in range(0, len(actions_N), width):
        part = slice(first, first + width)
        tally.add(Distributions.of(plain_NA[part], actions_N[part].tolist()), counted=counted_N[part].tolist())
    return tally.fields()


def _barred(drawn: Drawn, places: Sequence[Array], scored_NA: Array, counted_N: Array) -> tuple[int, int, float] | None:
    """See WatchedUpdate; None where every action could be drawn, or it is not known which could."""
    tables = [_final_logprobs(draw.value) for draw in drawn.draws]
    if any(table is None or table.shape[-1] != scored_NA.shape[1] for table in tables):
        return None
    table_NA = np.concatenate([table for table in tables if table is not None])
    if len(table_NA) != len(drawn.actions_N):
        return None
    masses, most = [], 0
    for row in np.flatnonzero(counted_N).tolist():
        cut_A = table_NA[places[row]].max(axis=0) < CUT  # of draws at the same logits any
        if cut_A.any():
            masses.append(float(np.exp(scored_NA[row])[cut_A].sum()))
            most = max(most, int(cut_A.sum()))
    return (len(masses), most, float(np.mean(masses))) if masses else None


def _overwritten(
    fields: dict[str, Any], drawn: Drawn, places: Sequence[Array], logits_NA: Array, counted_N: Array
) -> Array | None:
    """The action that was drawn for each row, where the old log-probs show that some trained ones are others: old is
    then not the log-prob of the trained action, but that of an action that was drawn at this very state.

    None where old has no log-prob of that kind. An action that was chosen instead on purpose has its own log-prob."""
    if fields.get("old_logprobs") is None or drawn.temperature is None or drawn.is_cut:
        return None
    actions_N, old_N = fields["tokens"].reshape(-1), fields["old_logprobs"].reshape(-1)
    logprobs_NA = _log_softmax(logits_NA / drawn.temperature)
    off_N = counted_N & (np.abs(logprobs_NA[np.arange(len(actions_N)), actions_N] - old_N) > FAR * SAME_LOGPROB)
    sampled_N = actions_N.copy()
    for row in np.flatnonzero(off_N).tolist():
        tried = np.unique(drawn.actions_N[places[row]]).astype(np.int64)
        fitting = tried[np.abs(logprobs_NA[row, tried] - old_N[row]) <= SAME_LOGPROB]
        if not len(fitting):
            return None
        sampled_N[row] = fitting[0]
    return sampled_N if off_N.any() else None


def _sampled(actions_N: Array, places: Sequence[Array], drawn_N: Array, counted_N: Array) -> Array | None:
    """The action that was drawn for each row; None where others than the drawn ones are trained, as by exploration."""
    if Counter(actions_N[counted_N].tolist()) - Counter(drawn_N.tolist()):
        return None
    sampled_N = np.array(
        [
            action if not len(rows) or action in drawn_N[rows] else drawn_N[rows[0]]
            for action, rows in zip(actions_N, places, strict=True)
        ]
    )
    moved = int((sampled_N != actions_N).sum())
    return sampled_N if moved == 0 or moved >= LEAST_MOVED * len(actions_N) else None


def _replaced(
    fields: dict[str, Any], drawn: Drawn, places: Sequence[Array], logits_NA: Array, counted_N: Array
) -> tuple[int, int] | None:
    """See WatchedUpdate: by how often each action was drawn and is trained at the same logits. None where the loss
    scores another distribution than was drawn from, or where not all that was drawn is trained."""
    actions_N = fields["tokens"].reshape(-1)
    if drawn.temperature is None or drawn.is_cut or len(drawn.actions_N) != counted_N.sum():
        return None
    logprobs_NA = _log_softmax(logits_NA / drawn.temperature)
    if np.median(np.abs(np.exp(logprobs_NA) * logits_NA.shape[1] - 1).max(axis=1)) < LEAST_LEANING:
        return None  # where the policy is uniform, a mixture of it with a uniform one is the same
    logprobs_N = logprobs_NA[np.arange(len(actions_N)), actions_N]
    for name in ("new_logprobs", "old_logprobs"):
        if (given := fields.get(name)) is not None:
            off_N = np.abs(given.reshape(-1) - logprobs_N)[counted_N]
            if off_N.max(initial=0.0) > FAR * SAME_LOGPROB:
                return None
    trained: dict[bytes, Counter[int]] = {}
    met: dict[bytes, Array] = {}
    for row in np.flatnonzero(counted_N).tolist():
        key = places[row].tobytes()
        met[key] = places[row]
        trained.setdefault(key, Counter())[int(actions_N[row])] += 1
    others = sum((count - Counter(drawn.actions_N[met[key]].tolist())).total() for key, count in trained.items())
    return others, int(counted_N.sum())


def _are_single(places: Sequence[Array], drawn_N: Array) -> bool:
    """Whether the logits of a row say which action was drawn: in a state that is met twice they do not."""
    return all(len(set(drawn_N[rows].tolist())) <= 1 for rows in places)


def _same(logits_A: Array, drawn_NA: Array) -> Array:
    scale = max(float(np.abs(logits_A).max()), 1.0)
    return np.flatnonzero(np.abs(drawn_NA - logits_A).max(axis=1) <= SAME_LOGITS * scale)


def _drawn(draws: Sequence[Sampling]) -> Drawn | None:
    """None where the numbers of a draw or of its logits are not known."""
    actions, logits = [], []
    for draw in draws:
        numbers = numbers_of(draw.value)
        base = base_logits(draw.value)
        if numbers is None or base is None or base.size != numbers.size * base.shape[-1]:
            return None
        actions.append(numbers.reshape(-1))
        logits.append(base.reshape(-1, base.shape[-1]))
    if len({rows.shape[1] for rows in logits}) != 1:
        return None
    temperatures = {draw.temperature for draw in draws}
    return Drawn(
        draws,
        np.concatenate(actions),
        np.concatenate(logits),
        temperatures.pop() if len(temperatures) == 1 else None,
        any(draw.cuts for draw in draws),
    )


# -- logits


def piece_logits(piece: LossPiece) -> Array | None:
    """The logits that the log-probs in the loss were made of, before any temperature; [N, A]."""
    return _per_action(base_logits(piece.new), piece)


def _per_action(numbers: Array | None, piece: LossPiece) -> Array | None:
    """[N, A], in the order of the actions of the piece."""
    if numbers is None or not numbers.ndim or _sizes(numbers.shape[:-1]) != _sizes(piece.ids.shape):
        return None
    return numbers.reshape(-1, numbers.shape[-1])


def scored_distribution(piece: LossPiece, kinds: RunKinds) -> tuple[Value | None, bool]:
    """(what the log-probs in the loss were taken from, of all tokens or actions; whether these are logarithms)."""
    for made in _chain(piece.new):
        if made.op in _DISTRIBUTIONS:
            break
        if made.op == "sub" and (sums := normaliser_of(made)) is not None:
            return sums.input, True
        picked = one_of_each(made)
        if picked is not None and (kind := kinds.of(picked[0])) in _KNOWN:
            return picked[0], kind is Kind.LOG_SOFTMAX
        if made.input is not None and (kind := kinds.of(made.input)) in _KNOWN and kinds.of(made) not in _KNOWN:
            return made.input, kind is Kind.LOG_SOFTMAX
    else:
        return None, False
    if made.op == "categorical":
        return made.arguments.get("logits") or made.arguments.get("probs"), "logits" in made.arguments
    return made if made.op in ("softmax", "log_softmax") else made.input, made.op != "softmax"


def bends_logits(piece: LossPiece, kinds: RunKinds) -> bool:
    """Whether the loss takes tokens out of the logits, or adds to them."""
    return any(made.op in _BENDS and kinds.of(made) is Kind.LOGITS for made in walk(piece.new, main_input))


def final_logprobs(piece: LossPiece, kinds: RunKinds) -> Array | None:
    """Of all actions, [N, A], by the distribution that the log-probs in the loss are of."""
    given, is_log = scored_distribution(piece, kinds)
    numbers_NA = _per_action(numbers_of(given), piece)
    if numbers_NA is None:
        return None
    with np.errstate(divide="ignore"):
        return _log_softmax(numbers_NA if is_log else np.log(np.maximum(numbers_NA, 0)))


def base_logits(value: Value) -> Array | None:
    """None where something else than a temperature and actions that are taken out stands between them and the
    distribution."""
    distribution = next((made for made in _chain(value) if made.op in _DISTRIBUTIONS), None)
    if distribution is None:
        return None
    current: Value | None = None
    for name in ("logits", "probs", "input"):
        current = current or distribution.arguments.get(name)
    if current is not None and distribution.op == "categorical" and "logits" not in distribution.arguments:
        inner = next((made for made in _chain(current) if made.op == "softmax"), None)
        current = inner.input if inner is not None and _is_only(current, inner, _MOVES) else None
    while current is not None and (current.op in _MOVES - {"index"} or _is_scaled(current) or _bars(current)):
        if current.op in RESHAPES:
            break
        current = current.input
    numbers = numbers_of(current)
    return None if numbers is None or not numbers.ndim or not np.isfinite(numbers).all() else numbers


def _chain(value: Value) -> Iterator[Value]:
    current: Value | None = value
    while current is not None:
        yield current
        if current.op == "sub" and current.input is not None and current.input.op not in _MOVES | {"gather"}:
            other = current.arguments.get("other")
            if other is not None and other.op == "logsumexp":
                current = other
                continue
        current = current.input


def _is_only(value: Value, until: Value, operations: frozenset[str]) -> bool:
    for made in _chain(value):
        if made is until:
            return True
        if made.op not in operations:
            return False
    return False


def _bars(value: Value) -> bool:
    """Some actions are taken out of the logits."""
    seen, before = sight(value), sight(value.input)
    return value.op in _BARS and seen is not None and before is not None and seen.shape == before.shape


def _is_scaled(value: Value) -> bool:
    return value.op in ("div", "mul") and number_of(value.arguments.get("other")) is not None


def _log_softmax(logits_NA: Array) -> Array:
    shifted_NA = logits_NA - logits_NA.max(axis=1, keepdims=True)
    return np.asarray(shifted_NA - np.log(np.exp(shifted_NA).sum(axis=1, keepdims=True)))
