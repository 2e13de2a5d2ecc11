"""Of which rewards the weight of each action is made, found by reproducing the numbers.

A script of a small environment stores rewards (and where episodes end, and what a critic predicted), makes returns or
advantages of them in Python, numpy or torch, and multiplies log-probs by these. Here each known way, sound or mistaken,
is tried on the stored numbers until one gives the weights in the loss, up to a scale and an offset (whitening).

Shape legend: K draws of a rollout, N actions of each (environments side by side), K x N actions in all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from assay.programs.graph import RESHAPES
from assay.programs.once import once
from assay.programs.run.policies import drawn_actions
from assay.programs.run.roles import LossPiece
from assay.programs.run.sight import numbers_of
from assay.programs.run.watched import Stored, WatchedRun, WatchedUpdate
from assay.programs.walk import main_input, walk
from assay.record.batch import Array
from assay.verdict import Place

FIT = 2e-4  # largest difference, of the spread of the weights: float32, and sums of hundreds of rewards
FEWEST = 12  # actions
FEWEST_IN_A_PART = 5  # actions that share a scale and an offset
FEWEST_VALUES = 5  # different weights
MOST_ACTIONS = 4096
MOST_SERIES = 24  # stored series that may be rewards
MOST_CRITICS = 8
MOST_OPERATIONS = 200  # between what stands in the loss and the weights of the whole rollout
FEWEST_ENDS = 2  # ends of episodes inside of the rollout
LOWEST_DISCOUNT = 0.3
USUAL_DISCOUNTS = (1.0, 0.99, 0.95, 0.9, 0.98, 0.999, 0.97, 0.995)  # where the scale differs from part to part
_KEEPS = RESHAPES | set("index index_select sub div add mul neg cast detach clone clamp transpose permute t".split())
_ENDS = re.compile(r"done|term|trunc|dead|over|alive|live|not_?done|mask|last|final|fin", re.IGNORECASE)
_ON = re.compile(r"alive|live|not_?done|mask|continu", re.IGNORECASE)


@dataclass(frozen=True)
class Weighing:
    """How the weights of one rollout were made of a stored series."""

    update: WatchedUpdate
    place: Place  # of the weights in the loss
    form: str  # "" where it is sound
    rewards: str  # name of the series
    discount: float
    actions: int
    ends: int  # ends of episodes inside


@once
def weighings(run: WatchedRun) -> list[Weighing]:
    """Of the rollouts whose weights could be reproduced."""
    found = []
    for order, stored in run.stores:
        update = next((update for update in run.updates if update.order > order), None)
        if update is not None and stored and (weighing := _weighing(run, update, order, stored)) is not None:
            found.append(weighing)
    return found


def _weighing(run: WatchedRun, update: WatchedUpdate, order: int, stored: Sequence[Stored]) -> Weighing | None:
    before = max((other.order for other in run.updates if other.order < order), default=-1)
    sizes = [drawn_actions(draw) for draw in run.samplings if before < draw.value.order < order]
    if not sizes or len(set(sizes)) > 1 or not FEWEST <= sum(sizes) <= MOST_ACTIONS:
        return None
    grid = (len(sizes), sizes[0])
    sound: Weighing | None = None
    for place, weights in _weights(update, sum(sizes)):
        for weights_KN in _as_grids(weights, grid):
            found = reproduce(weights_KN, stored, grid)
            if found is None:
                continue
            form, name, discount, ends = found
            weighing = Weighing(update, place, form, name, discount, sum(sizes), ends)
            if not form:
                return weighing
            sound = sound or weighing
    return sound


def _weights(update: WatchedUpdate, count: int) -> Iterator[tuple[Place, Array]]:
    """What multiplies the log-probs of all actions of the rollout: the advantages, before rows were picked for a
    minibatch; else how the loss pulls at each log-prob."""
    pieces = update.pieces
    if pieces and pieces[0].advantages is not None:
        chain = walk(pieces[0].advantages, main_input, until=lambda value: value.op not in _KEEPS)
        for value in islice(chain, MOST_OPERATIONS):
            numbers = numbers_of(value)
            if numbers is not None and numbers.size == count and numbers.dtype.kind == "f":
                yield value.place, (pieces[0].sign if value is pieces[0].advantages else 1.0) * numbers
                break
    pulls = [(piece, _pull(piece, update)) for piece in sorted(pieces, key=lambda piece: piece.new.order)]
    known = [pull for _, pull in pulls if pull is not None]
    if known and len(known) == len(pulls) and sum(pull.size for pull in known) == count and update.is_first:
        whole = known[0] if len(known) == 1 else np.concatenate([pull.reshape(-1) for pull in known])
        yield pulls[0][0].new.place, -whole if not update.maximize else whole


def _pull(piece: LossPiece, update: WatchedUpdate) -> Array | None:
    for backward in update.backwards:
        caught = backward.gradients.get(id(piece.new))
        if caught is not None:
            return caught.numbers
    return None


def _as_grids(numbers: Array, grid: tuple[int, int]) -> Iterator[Array]:
    """[K, N]: by their shape, else in both orders."""
    draws, side_by_side = grid
    shape = tuple(size for size in numbers.shape if size > 1)
    if side_by_side == 1 or shape == grid != grid[::-1]:
        yield numbers.reshape(grid)
    elif shape == grid[::-1] != grid:
        yield numbers.reshape(side_by_side, draws).T
    else:
        yield numbers.reshape(grid)
        yield numbers.reshape(side_by_side, draws).T


# -- the search


def reproduce(weights_KN: Array, stored: Sequence[Stored], grid: tuple[int, int]) -> tuple[str, str, float, int] | None:
    """(form, series, discount, ends of episodes) that gives the weights: a sound one if any does."""
    if not np.isfinite(weights_KN).all() or len(np.unique(weights_KN.round(9))) < FEWEST_VALUES:
        return None
    ends = list(_ends(stored, grid))
    if any(_is_one_per_episode(weights_KN, ends_KN) for ends_KN in [*ends, _no_ends(grid)]):
        return None  # one number for a whole episode: the other checks of the law ask of that
    series = [
        (part.name, numbers_KN)
        for part in stored
        for numbers_KN in _as_grids(part.numbers, grid)
        if len(np.unique(numbers_KN)) > 1 and np.isfinite(numbers_KN).all()
    ]
    inside = max((int((ends_KN[:-1] & ~ends_KN[1:]).sum()) for ends_KN in ends), default=0)  # others begin behind them
    mistaken: tuple[str, str, float, int] | None = None
    for ends_KN in [*ends, _no_ends(grid)]:
        count = int(ends_KN[:-1].sum())
        for name, discount in _sums(weights_KN, series, ends_KN):
            if count or inside < FEWEST_ENDS:
                return "", name, discount, count
            mistaken = mistaken or ("uncut", name, discount, inside)
    for ends_KN in [*ends, _no_ends(grid)] if mistaken is None else ():
        for name, rewards_KN in series[:MOST_SERIES]:
            for form, discount in _mistaken(weights_KN, rewards_KN, ends_KN):
                mistaken = mistaken or (form, name, discount, inside)
    return mistaken


def _sums(weights_KN: Array, series: Sequence[tuple[str, Array]], ends_KN: Array) -> Iterator[tuple[str, float]]:
    """Series, with a discount, whose sums behind each action are the weights; less what a critic predicted, if so."""
    for name, rewards_KN in series[:MOST_SERIES]:
        discount = _solved(weights_KN, rewards_KN, None, ends_KN)
        if discount is not None:
            yield name, discount
    critics = [part for part in series if len(np.unique(part[1])) > FEWEST_VALUES][:MOST_CRITICS]
    for name, rewards_KN in series[:MOST_SERIES]:
        for critic, values_KN in critics:
            discount = None if critic == name else _solved(weights_KN, rewards_KN, values_KN, ends_KN)
            if discount is not None:
                yield name, discount
    parts = _parts(ends_KN)
    for name, rewards_KN in series[:MOST_SERIES]:
        for discount in USUAL_DISCOUNTS:
            returns_KN = _returns(rewards_KN, ends_KN, discount)
            if any(_is_line(weights_KN.reshape(-1), returns_KN.reshape(-1), part.reshape(-1)) for part in parts):
                yield name, discount


def _ends(stored: Sequence[Stored], grid: tuple[int, int]) -> Iterator[Array]:
    """[K, N]: after which action an episode ends, as the script stored it, of the action or of the state before it."""
    for part in stored:
        if part.lengths and grid[1] == 1 and len(part.lengths) > 1:
            ends_KN = np.zeros(grid, dtype=bool)
            ends_KN[np.cumsum(part.lengths) - 1] = True
            yield ends_KN
        is_flag = bool(np.isin(part.numbers, (0, 1)).all()) and _ENDS.search(part.name) is not None
        for numbers_KN in _as_grids(part.numbers, grid) if is_flag else ():
            ends_KN = (numbers_KN == 0) if _ON.search(part.name) else (numbers_KN != 0)
            if ends_KN.any() and not ends_KN.all():
                yield ends_KN
                yield np.concatenate([ends_KN[1:], np.ones((1, grid[1]), dtype=bool)])


def _no_ends(grid: tuple[int, int]) -> Array:
    return np.zeros(grid, dtype=bool)


def _is_one_per_episode(weights_KN: Array, ends_KN: Array) -> bool:
    same_KN = np.abs(np.diff(weights_KN, axis=0)) <= 1e-6 * max(float(np.ptp(weights_KN)), 1e-12)
    return bool(same_KN[~ends_KN[:-1]].all())


def _solved(weights_KN: Array, rewards_KN: Array, values_KN: Array | None, ends_KN: Array) -> float | None:
    """The discount with which the weights are returns of these rewards, or advantages by GAE with these values.

    The weights are w = a A + b with A_k = r_k + g c_k v_k+1 - v_k + g l c_k A_k+1, where c is 0 as an episode ends.
    So w_k is a sum of r_k - v_k, c_k v_k+1, c_k w_k+1, 1 and c_k with the factors a, a g, g l, b and -b g l."""
    on_KN = np.where(ends_KN, 0.0, 1.0)[:-1]
    own_KN = rewards_KN if values_KN is None else rewards_KN - values_KN
    columns = [own_KN[:-1], on_KN * weights_KN[1:], np.ones(on_KN.shape), on_KN]
    if values_KN is not None:
        columns.append(on_KN * values_KN[1:])
    factors = _factors(weights_KN[:-1], columns)
    if factors is None or factors[0] <= 0:
        return None
    discount = float(factors[1] if values_KN is None else factors[4] / factors[0])
    return discount if LOWEST_DISCOUNT <= discount <= 1 + FIT and factors[1] <= 1 + FIT else None


def _factors(weights_KN: Array, columns: Sequence[Array]) -> Array | None:
    """Of the columns, whose sum is the weights; None where it is not."""
    if weights_KN.size < FEWEST - 1 + len(columns) - 4:
        return None
    made = np.stack([column.reshape(-1) for column in columns], axis=1)
    expected = weights_KN.reshape(-1)
    spread = float(np.std(expected))
    factors: Array = np.linalg.lstsq(made, expected, rcond=1e-10)[0]
    return factors if spread > 0 and np.abs(made @ factors - expected).max() <= FIT * spread else None


def _mistaken(weights_KN: Array, rewards_KN: Array, ends_KN: Array) -> Iterator[tuple[str, float]]:
    begins_KN = np.concatenate([np.ones((1, rewards_KN.shape[1]), dtype=bool), ends_KN[:-1]])
    discount = _solved(weights_KN[::-1], rewards_KN[::-1], None, begins_KN[::-1])
    if discount is not None:
        yield "past", discount
    if not ends_KN[:-1].any() and (discount := _solved(weights_KN[::-1], rewards_KN, None, ends_KN)) is not None:
        yield "reversed", discount
    is_own = np.count_nonzero(rewards_KN[begins_KN]) > begins_KN.sum() / 2  # else it is stored one later
    on_KN = np.where(ends_KN, 0.0, 1.0)[:-1]
    columns = [on_KN * rewards_KN[1:], on_KN * weights_KN[1:], np.ones(on_KN.shape), on_KN]
    factors = _factors(weights_KN[:-1], columns) if is_own else None
    if factors is not None and factors[0] > 0 and LOWEST_DISCOUNT <= factors[1] <= 1 + FIT:
        yield "without own", float(factors[1])


def _returns(rewards_KN: Array, ends_KN: Array, discount: float) -> Array:
    """What came at each action and after it, until the episode ends."""
    returns_KN, after_N = np.zeros(rewards_KN.shape), np.zeros(rewards_KN.shape[1])
    for step in reversed(range(len(rewards_KN))):
        after_N = rewards_KN[step] + discount * np.where(ends_KN[step], 0.0, after_N)
        returns_KN[step] = after_N
    return returns_KN


def _parts(ends_KN: Array) -> list[Array]:
    """Numberings of the actions by what may share a scale and an offset: an episode; a step of all environments, or of
    some that stand side by side."""
    steps, places = np.indices(ends_KN.shape)
    width = ends_KN.shape[1]
    begun_KN = np.concatenate([np.zeros((1, width)), np.cumsum(ends_KN[:-1], axis=0)]).astype(int)
    sizes = [size for size in range(FEWEST_IN_A_PART, width + 1) if width % size == 0]
    return [begun_KN * width + places, *(steps * width + places // size for size in sizes)]


def _is_line(weights_M: Array, made_M: Array, part_M: Array) -> bool:
    """Whether in each part the weights are the other numbers times a factor above 0, plus an offset."""
    judged, spread = 0, float(np.std(weights_M))
    for number in np.unique(part_M):
        weights, made = weights_M[part_M == number], made_M[part_M == number]
        off = made - made.mean()
        if len(weights) < FEWEST_IN_A_PART or np.abs(off).max() <= 1e-9 * max(1.0, float(np.abs(made).max())):
            continue
        slope = float((off * (weights - weights.mean())).sum() / (off**2).sum())
        rest = np.abs(weights - weights.mean() - slope * off).max()
        if slope <= 0 or rest > FIT * max(spread, float(np.std(weights))):
            return False
        judged += len(weights)
    return judged >= max(FEWEST, len(weights_M) / 2)


# -- after the end


@once
def trained_after_the_end(run: WatchedRun) -> list[tuple[WatchedUpdate, str, int, int]]:
    """(update, the series that says so, actions with a gradient though their episode was over, actions that were over):
    the environment paid nothing for any of them."""
    found = []
    for order, stored in run.stores:
        update = next((update for update in run.updates if update.order > order), None)
        before = max((other.order for other in run.updates if other.order < order), default=-1)
        sizes = [drawn_actions(draw) for draw in run.samplings if before < draw.value.order < order]
        if update is None or len(update.pieces) != 1 or len(set(sizes)) != 1 or sizes[0] < 2:
            continue
        pull, grid = _pull(update.pieces[0], update), (len(sizes), sizes[0])
        if pull is None or pull.size != sum(sizes):
            continue
        pulled_KN = next(_as_grids(pull, grid)) != 0
        for name, over_KN in _over(stored, grid):
            trained = int((pulled_KN & over_KN).sum())
            if trained >= FEWEST and _pays_nothing(stored, grid, over_KN):
                found.append((update, name, trained, int(over_KN.sum())))
                break
    return found


def _over(stored: Sequence[Stored], grid: tuple[int, int]) -> Iterator[tuple[str, Array]]:
    """[K, N]: which actions were drawn after their episode had ended, by a flag that never goes back."""
    for part in stored:
        is_flag = bool(np.isin(part.numbers, (0, 1)).all()) and _ENDS.search(part.name) is not None
        for numbers_KN in _as_grids(part.numbers, grid) if is_flag else ():
            over_KN = (numbers_KN == 0) if _ON.search(part.name) else (numbers_KN != 0)
            if (over_KN[:-1] & ~over_KN[1:]).any() or over_KN.all() or not over_KN.any():
                continue
            over_KN = np.concatenate(
                [np.zeros((1, grid[1]), dtype=bool), over_KN[:-1]]
            )  # said after the action, or before
            yield part.name, over_KN


def _pays_nothing(stored: Sequence[Stored], grid: tuple[int, int], over_KN: Array) -> bool:
    """Whether a stored series is 0 wherever the episode is over, and mostly not elsewhere."""
    for part in stored:
        for numbers_KN in _as_grids(part.numbers, grid):
            is_flag = bool(np.isin(numbers_KN, (0, 1)).all())
            if not is_flag and not numbers_KN[over_KN].any() and (numbers_KN[~over_KN] != 0).mean() > 0.5:
                return True
    return False
