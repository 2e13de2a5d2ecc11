"""A log by its own names --> curves by ours, and notes on what was taken, what was not, and what is not known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import translate
from typing import Any

import numpy as np

from assay.doctor.evidence import Curves
from assay.doctor.evidence.logs.names import ASSAY, OVERLONG, PLAIN, TRAINERS, WRAPPERS, Trainer
from assay.doctor.evidence.logs.series import Log, LogError, is_finite
from assay.machine.terminal import quote

NAMED = 6  # columns that a note names; it counts the others
NEGATIVE = -1e-5  # below, a KL is none of k2 and k3
DIFFERENT = 1e-4  # relative: two columns of one metric contradict each other
_COMPLEMENT = "1 - "
_SMALL = ("learning_rate", "gradient_norm", "loss", "policy_loss", "ref_kl")  # often below 0.0005
_TRAINERS_OWN = "overlong"  # a reward's part of this name is not held against the others

Series = Mapping[float, float]


def curves_of(log: Log, source: str) -> tuple[Curves, list[str]]:
    """Raises LogError where no column is known."""
    if not log.series:
        raise LogError(f"{source} holds no number by a name; give a log of metrics, one row per step (docs/logs.md)")
    trainer, columns = recognise(log)
    notes: list[str] = []
    taken: dict[str, Series] = {}
    used: set[str] = set()
    for metric, names in trainer.names.items():
        series = _first(metric, names, columns, log, used, notes)
        if series is not None:
            taken[metric] = series
    taken |= _components(trainer, log, used)
    _leave_signed_kl(trainer, taken, notes)
    _leave_rounded_zeros(taken, notes)
    if not taken:
        known = _join_names(sorted(log.series))
        raise LogError(f"{source}: none of its columns is a metric known here ({known}); docs/logs.md lists the names")
    _note_order(used, log, notes)
    _note_not_finite(taken, log, notes)
    rows = _rows(taken, log)
    settings = {**log.settings, **_implied_settings(trainer, columns), **_reward_scale(trainer, taken, notes)}
    evaluations = _evaluations(trainer, log, used, notes)
    unused = [name for name in log.series if name not in used]
    beginning = f"read as a log of {trainer.name}: {len(taken)} metrics of {len(rows)} steps"
    if unused:
        beginning += f"; {len(unused)} of {len(log.series)} columns are not used or not known: {_join_names(unused)}"
    if not log.steps_are_stated:
        notes.append("no row states its step, so that steps cannot be named")
    return Curves(rows, evaluations=evaluations, settings=settings), [beginning, *log.notes, *notes]


def recognise(log: Log) -> tuple[Trainer, dict[str, str]]:
    """The trainer that most of the columns are of, and its names -> columns; PLAIN where nobody's sign is seen."""
    best, columns = PLAIN, _columns(PLAIN, log)
    for trainer in TRAINERS:
        own = _columns(trainer, log)
        if _is_signed(trainer, log) and (best is PLAIN or len(own) > len(columns)):
            best, columns = trainer, own
    return best, columns


def _is_signed(trainer: Trainer, log: Log) -> bool:
    """One pattern for all of its signs: a log may have a hundred thousand columns."""
    if not trainer.signs:
        return False
    wrapper, sign = "|".join(map(re.escape, WRAPPERS)), "|".join(map(translate, trainer.signs))
    pattern = re.compile(f"(?:{wrapper})(?:{sign})")
    return any(pattern.match(name) for name in log.series)


def _columns(trainer: Trainer, log: Log) -> dict[str, str]:
    """Which column a name of the trainer stands in; a logger may have put a prefix before it."""
    names = [*(name.removeprefix(_COMPLEMENT) for own in trainer.names.values() for name in own), *trainer.implied]
    found = {}
    for name in names:
        column = next((wrapper + name for wrapper in WRAPPERS if wrapper + name in log.series), None)
        if column is not None:
            found[name] = column
    return found


def _first(
    metric: str, names: Sequence[str], columns: Mapping[str, str], log: Log, used: set[str], notes: list[str]
) -> Series | None:
    """Of the first name that has data; a note where a later one says something else."""
    chosen: Series | None = None
    chosen_name, lost = "", None  # a column that is NaN from the first step on
    for name in names:
        column = columns.get(name.removeprefix(_COMPLEMENT))
        if column is None:
            continue
        used.add(column)
        series = log.series[column]
        if name.startswith(_COMPLEMENT):
            series = {step: 1.0 - value for step, value in series.items()}
        if chosen is None and any(map(is_finite, series.values())):
            chosen, chosen_name = series, column
        elif chosen is not None and _contradicts(chosen, series):
            notes.append(f"{metric} is taken from {quote(chosen_name)}; {quote(column)} says something else")
        lost = lost or series
    return chosen or lost


def _contradicts(one: Series, other: Series) -> bool:
    return any(
        is_finite(one[step]) and is_finite(value) and abs(one[step] - value) > DIFFERENT * max(abs(value), 1e-9)
        for step, value in other.items()
        if step in one
    )


def _components(trainer: Trainer, log: Log, used: set[str]) -> dict[str, Series]:
    """Means and deviations of a reward's parts, as reward_<name>_mean."""
    if not trainer.component:
        return {}
    found: dict[str, Series] = {}
    for column, series in log.series.items():
        bare = next((column.removeprefix(wrapper) for wrapper in WRAPPERS[::-1] if column.startswith(wrapper)), column)
        match = re.fullmatch(trainer.component, bare)
        if match is None or column in used or not any(map(is_finite, series.values())):
            continue
        name = match["name"]
        if trainer is not ASSAY and OVERLONG.search(name):
            name = _TRAINERS_OWN
        used.add(column)
        found[f"reward_{name}_{match['what'] or 'mean'}"] = series
    return found


def _leave_signed_kl(trainer: Trainer, taken: dict[str, Series], notes: list[str]) -> None:
    if trainer.kl_may_be_signed and any(value < NEGATIVE for value in taken.get("ref_kl", {}).values()):
        del taken["ref_kl"]
        notes.append("the KL to the reference is negative in places, so it is of the k1 estimator; it is not used")


def _leave_rounded_zeros(taken: dict[str, Series], notes: list[str]) -> None:
    """Some trainers print three decimals: a learning rate of 1e-6 is 0.000 there."""
    values = [
        value for name, series in taken.items() if name != "step" for value in series.values() if is_finite(value)
    ]
    if any(abs(value * 1e3 - round(value * 1e3)) > 1e-6 for value in values):
        return
    for metric in _SMALL:
        if metric in taken and not any(taken[metric].values()):
            del taken[metric]
            notes.append(f"the numbers have three decimals or fewer, so that a {quote(metric)} of 0 says nothing")


def _note_order(used: set[str], log: Log, notes: list[str]) -> None:
    doubled = max((log.series.doubled(name) for name in used), default=0)
    if doubled:
        notes.append(f"{doubled} steps stand more than once, as after a resume; the later values count")
    elif not all(map(log.series.is_in_order, used)):
        notes.append("the steps do not stand in their order; they are sorted")


def _note_not_finite(taken: Mapping[str, Series], log: Log, notes: list[str]) -> None:
    for metric, series in taken.items():
        bad = [step for step, value in series.items() if not is_finite(value)]
        if bad:
            where = f", first at step {bad[0]:.0f}" if log.steps_are_stated else ""
            notes.append(f"{quote(metric)} is NaN or infinite in {len(bad)} of {len(series)} steps{where}")


def _rows(taken: Mapping[str, Series], log: Log) -> list[dict[str, float | int | None]]:
    rows: dict[float, dict[str, float | int | None]] = {}
    for step in sorted({step for series in taken.values() for step in series}):
        rows[step] = {"step": int(step) if log.steps_are_stated else None}
    for metric, series in taken.items():
        for step, value in series.items():
            rows[step][metric] = value
    return list(rows.values())


def _implied_settings(trainer: Trainer, columns: Mapping[str, str]) -> dict[str, Any]:
    found = {} if trainer in (ASSAY, PLAIN) else {"trainer": trainer.name}
    for column, settings in trainer.implied.items():
        if column in columns:
            found |= settings
    return found


def _reward_scale(trainer: Trainer, taken: Mapping[str, Series], notes: list[str]) -> dict[str, float]:
    """What counts as solved where the log does not hold the largest reward: else a solved run would look sick.

    By convention a reward, or each of its parts, lies in 0 to 1 or -1 to 1 (open-instruct: 10); where the means
    contradict that, the scale is as wide as the means.
    """
    means = [value for value in taken.get("reward_mean", {}).values() if is_finite(value)]
    if not means or "reward_max" in taken:
        return {}
    low, high = min(means), max(means)
    parts = _parts_that_add_up(taken)
    best = trainer.right_answer * max(parts, 1)
    worst = -best if low < 0.0 else 0.0
    if high > best or low < -best:
        best, worst = high, low
        notes.append(
            f"the scale of the reward is not logged; it is taken as that of its means, {low:.3g} to {high:.3g}"
        )
    else:
        notes.append(f"the scale of the reward is not logged; it is taken as {worst:g} to {best:g}")
    return {"max_reward": best, "min_reward": worst}


def _parts_that_add_up(taken: Mapping[str, Series]) -> int:
    """How many parts the reward has, if their means add up to it; else 0."""
    parts = [series for name, series in taken.items() if re.fullmatch(r"reward_.+_mean", name)]
    whole = taken["reward_mean"]
    for step, value in whole.items():
        if not all(step in part for part in parts) or abs(sum(part[step] for part in parts) - value) > 1e-3:
            return 0
    return len(parts)


def _evaluations(trainer: Trainer, log: Log, used: set[str], notes: list[str]) -> list[dict[str, Any]]:
    if not trainer.evaluation:
        return []
    columns = [name for name in log.series if re.fullmatch(rf"(?:data/|metrics/)?{trainer.evaluation}", name)]
    if len(columns) > 1:
        notes.append(
            f"{len(columns)} held-out sets are logged ({_join_names(columns)}); they are not compared with the reward"
        )
    if len(columns) != 1:
        return []
    series = log.series[columns[0]]
    values = np.array([value for value in series.values() if is_finite(value)])
    if not len(values) or values.min() < 0.0 or values.max() > 1.0:
        return []
    used.add(columns[0])
    return [{"step": int(step), "pass_at_1": value} for step, value in series.items() if is_finite(value)]


def _join_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(quote, names[:NAMED])) + more
