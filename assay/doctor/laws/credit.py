"""
## What it checks
Advantages are a function of the rewards of the prompt's own group. The doctor computes them again from the rewards in
every known way, deliberate or mistaken, along every axis and in every order of rows, and looks for the one that gives
the recorded numbers. Where none does, it reads the baseline and the scale of each group off the numbers themselves, as
a line from reward to advantage, and asks of which rewards that baseline is made: those of the group, of some of its
rows, of another group, or of an earlier visit of the same prompt.

## Why it hurts
The advantage is the whole message of the reward to the policy. If it mixes prompts or rows, the policy is paid for
what other answers did.

## How to fix it
Recompute the row that is named by hand: its reward, minus the mean of its group, over the group's std.

    # before: view puts the group on dim 1, and the mean is taken over dim 0, which mixes prompts
    advantages = rewards.view(prompts, group) - rewards.view(prompts, group).mean(0)
    # after
    advantages = rewards.view(prompts, group) - rewards.view(prompts, group).mean(1, keepdim=True)

## When it is wrong
Advantages by a formula that the doctor does not know: a length bonus, a curriculum weight, a learned baseline.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import GROUPS, SIZE, healthy_batch, of_batch
from assay.doctor.examples.evidence import EPSILON
from assay.doctor.facts.prompts import need_groups, prompt_keys
from assay.doctor.recompute.advantages import (
    advantages,
    groups_of,
    has_whole_groups,
    nearest_advantages,
    other_kind,
    row_advantages,
)
from assay.doctor.recompute.consistent import consistent
from assay.doctor.recompute.credit_space import (
    ARGUABLE,
    FEWEST_LEVELS,
    MISTAKEN,
    SOUND,
    Line,
    Lines,
    change_that_fits,
    column_advantages,
    levels_that_fit,
    lines_of,
    order_that_fits,
)
from assay.doctor.recompute.match import tolerance
from assay.programs.run.returns import weighings
from assay.programs.run.watched import WatchedRun
from assay.record.batch import Array
from assay.verdict import (
    Confidence,
    Fact,
    Missing,
    Severity,
    Verdict,
    finding,
    healthy,
    not_applicable,
    not_enough_data,
)

MANY_ROWS, MANY_VALUES = 8, 4  # rows and different advantages that no wrong axis gives by chance
FEWEST_OLD = 2  # steps with a baseline of the same rewards, and as many with an older one
FEWEST_GROUPS = 3  # with different rewards
RELATED = 0.5  # correlation of rewards and advantages inside groups
WEIGHINGS = {  # mistaken ways to make weights of rewards, and what to do
    "uncut": (
        "the weight of an action is the sum of the rewards {series} after it, {how}, that goes on over the ends of "
        "{ends} episodes: actions are paid for what later episodes earned",
        "Set the running sum to 0 where an episode ended: running = reward + gamma * running * (1 - done).",
    ),
    "past": (
        "the weight of an action is the sum of the rewards {series} up to it, {how}: it is paid for what came before, "
        "and not for what it led to",
        "Add the rewards up from the last step to the first.",
    ),
    "without own": (
        "the weight of an action is the sum of the rewards {series} after its own, {how}: its own is left out",
        "Add the action's own reward first: running = reward + gamma * running; then store it.",
    ),
    "reversed": (
        "the weights are the sums of the rewards {series} after each action, {how}, in the opposite order: the first "
        "action has the return of the last one",
        "Turn the list around after it was filled from the end, or put each return in front.",
    ),
}
NEARLY = 1e-3  # relative: what epsilons and 16 bits leave


def check_batch(batch: Batch) -> Verdict:
    batch = _with_groups(batch)
    rewards_B, advantages_given = batch.need("rewards", "advantages")
    if advantages_given.ndim == 2 and not batch.settings.get("process_rewards"):
        verdict = _within_rows(batch)
        if verdict is not None:
            return verdict
    reason = other_kind(batch)
    if reason:
        return not_applicable(reason)
    if not len(rewards_B) or not has_whole_groups(batch):
        raise Missing("whole groups")
    match = nearest_advantages(batch)
    recorded_B = row_advantages(batch)
    assert recorded_B is not None  # nearest_advantages has raised Missing
    if match.distance <= max(match.tolerance, NEARLY) and not match.variant.is_bug:
        need_groups(batch)
        return healthy(f"advantages are {match.variant.name}", Fact("largest relative difference", match.distance))
    if match.distance <= match.tolerance:
        return not_applicable(f"advantages are {match.variant.name}: a known mistake, or this batch cannot show it")
    mixed = _other_axis(batch, rewards_B, recorded_B, match.tolerance)
    if mixed:
        return _broken(batch, recorded_B, mixed, Confidence.PROVEN)
    changed = _changed(batch, recorded_B, match.tolerance)
    if changed is not None:
        return changed
    if (verdict := _of_levels([batch])) is not None:
        return verdict
    order = _disorder(batch, rewards_B, recorded_B)
    if order and batch.settings.get("kl_coef", 1.0) and batch.settings.get("kl_placement") == "reward":
        return not_applicable("a KL is taken from the rewards, which changes their order")
    if order and not {"kl_coef", "kl_placement"} <= batch.settings.keys() and not _is_unrelated(batch, recorded_B):
        raise Missing("kl_coef", "kl_placement")  # a KL may be taken from the rewards: then equal ones differ a little
    if order:
        return _broken(batch, recorded_B, order, Confidence.LIKELY)
    if batch.get("gradients") is None and _is_turned_around(batch, rewards_B, recorded_B):
        what = "better answers of every group have lower advantages: the sign is turned around"
        return _broken(batch, recorded_B, what, Confidence.LIKELY)
    return not_applicable(
        "advantages are of a formula that is not known here; better answers of a group have better ones"
    )


def check_batches(batches: Sequence[Batch]) -> Verdict:
    """The baselines of several steps together: that of a prompt may be of an earlier visit."""
    steps: dict[int | None, Batch] = {}
    for batch in batches:
        steps.setdefault(batch.step, batch)
    if (verdict := _of_old_baselines(list(steps.values()))) is not None:
        return verdict
    usable = [batch for batch in map(_with_groups, steps.values()) if _lines(batch) is not None]
    if len(usable) < 2:
        return check_batch(batches[-1])
    verdict = _of_levels(usable) or _of_earlier_visits(usable)
    return verdict or not_applicable("no mistaken baseline is the same in all steps")


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """Of a small environment: each action is weighed by the rewards that came after it, until its episode ended."""
    known = weighings(run)
    if not known and run.updates:
        yield not_enough_data(
            "rewards that lie in the script's variables, one for each action, and weights made of them"
        )
    for weighing in known:
        series = f"`{weighing.rewards}`"
        how = f"discounted by {weighing.discount:g}" if weighing.discount < 1 else "not discounted"
        if not weighing.form:
            yield healthy(
                f"each of {weighing.actions} actions is weighed by the rewards {series} that came after it, {how}",
                Fact("ends of episodes inside", weighing.ends),
                places=(weighing.place,),
            )
            continue
        words, fix = WEIGHINGS[weighing.form]
        yield finding(
            words.format(series=series, how=how, ends=weighing.ends),
            Fact("actions whose weight is just that", weighing.actions),
            confidence=Confidence.LIKELY,
            severity=Severity.HARMFUL if weighing.form == "uncut" else Severity.FATAL,
            fix=fix,
            places=(weighing.place,),
        )


def _with_groups(batch: Batch) -> Batch:
    """Rows of one prompt are a group, where nobody says which rows are."""
    if batch.get("group_ids") is not None or batch.get("rewards") is None:
        return batch
    try:
        keys = list(prompt_keys(batch))
    except Missing:
        return batch
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    ids_B = np.array([numbers[key] for key in keys], dtype=np.int64)
    counts = set(np.bincount(ids_B).tolist())
    if len(numbers) < 2 or len(counts) != 1 or counts == {1}:
        return batch
    return replace(batch, arrays={**batch.arrays, "group_ids": ids_B})


def _lines(batch: Batch) -> Lines | None:
    """From rewards to advantages, in each group whose rewards vary; None where there is no line, or it is not known."""
    rewards_B = batch.get("rewards")
    if rewards_B is None or batch.get("advantages") is None or batch.get("group_ids") is None:
        return None
    if other_kind(batch) or not has_whole_groups(batch):
        return None
    try:
        need_groups(batch)
    except Missing:
        return None
    recorded_B = row_advantages(batch)
    if recorded_B is None or not np.isfinite(recorded_B).any():
        return None
    found = lines_of(rewards_B, recorded_B, groups_of(batch), tolerance(batch, recorded_B[np.isfinite(recorded_B)]))
    return found if found.is_straight else None


def _of_levels(batches: Sequence[Batch]) -> Verdict | None:
    """A finding where one baseline that nobody means, or that the settings do not say, is that of every group."""
    found = [lines for lines in map(_lines, batches) if lines is not None]
    lines = [line for batch_lines in found for line in batch_lines.lines]
    if len(lines) < FEWEST_LEVELS or len(found) < len(batches):
        return None
    if all(line.is_at(float(line.rewards_G.mean())) for line in lines):
        return None
    if len({line.slope > 0 for line in lines}) > 1:
        return None  # of other things than a baseline
    fits = levels_that_fit(found)
    stated = batches[-1].settings.get("baseline") in ("mean", "leave_one_out")
    differ = len({round(line.level, 6) for line in lines}) > 1
    if any(name in SOUND for name in fits):
        return None
    if not fits and not stated:
        return None  # a critic, a greedy answer, a running mean
    is_odd, is_wrong = (all(name in kind for name in fits) for kind in (ARGUABLE | MISTAKEN, MISTAKEN))
    if fits and not stated and not (differ and is_odd):
        return None
    words = " or ".join(sorted(fits, key=lambda name: name not in MISTAKEN)[:4]) if fits else _unknown_level(found)
    sure = Confidence.PROVEN if fits and stated else Confidence.LIKELY
    if not stated and not is_wrong:
        sure = Confidence.POSSIBLE
    # settings of TRL say what TRL does: a trainer of one's own may choose another baseline on purpose
    if batches[-1].settings.get("trainer") == "trl" and not is_wrong:
        sure = Confidence.LIKELY if any(name in ARGUABLE | MISTAKEN for name in fits) else Confidence.POSSIBLE
    return _off_level(
        f"the baseline of {len(lines)} groups is not their mean: it is {words}", lines, batches[-1].step, sure
    )


def _unknown_level(found: Sequence[Lines]) -> str:
    """What is certain of baselines that no known way gives."""
    is_common = all(
        line.is_at(lines.lines[0].level) or abs(line.level - lines.lines[0].level) <= line.slack + lines.lines[0].slack
        for lines in found
        for line in lines.lines
    )
    return (
        "one number for all groups of a batch, whatever their rewards"
        if is_common and any(len(lines.lines) > 1 for lines in found)
        else "of no known kind, and not made of the rewards of the group alone"
    )


def _off_level(what: str, lines: Sequence[Line], step: int | None, sure: Confidence) -> Verdict:
    worst = max(lines, key=lambda line: abs(line.level - float(line.rewards_G.mean())))
    return finding(
        what,
        Fact("baseline of a group, read off its advantages", worst.level, None, step),
        Fact("mean of its rewards", float(worst.rewards_G.mean())),
        Fact("groups compared", len(lines)),
        confidence=sure,
        severity=Severity.HARMFUL,
    )


def _of_old_baselines(batches: Sequence[Batch]) -> Verdict | None:
    """A finding where rewards are centred by their own mean in some steps, and in others by one that was made of other
    rewards before: it was kept. A running mean is of neither kind."""
    numbers = [(batch.numbers.get("baseline_age", np.nan), batch) for batch in batches]
    ages = [(int(age), batch) for age, batch in numbers if np.isfinite(age)]
    old = [(age, batch) for age, batch in ages if age > 0]
    if len(old) < FEWEST_OLD or len(ages) - len(old) < FEWEST_OLD:
        return None
    age, batch = old[-1]
    advantages_B, rewards_B = batch.need("advantages", "rewards")
    return finding(
        f"the baseline is the mean of these rewards in {len(ages) - len(old)} steps, and in {len(old)} that of an "
        "earlier group: it was kept from then, and the policy has changed since",
        Fact("updates since the rewards of the baseline", age, 0, batch.step),
        Fact("mean of the advantages it leaves", float(np.nanmean(advantages_B)), 0.0),
        Fact("mean of the rewards", float(np.nanmean(rewards_B))),
        confidence=Confidence.LIKELY,
        severity=Severity.HARMFUL,
    )


def _of_earlier_visits(batches: Sequence[Batch]) -> Verdict | None:
    """A finding where the baseline of prompts that come again is that of a group of an earlier step."""
    seen: dict[Hashable, list[float]] = {}
    stale = []
    for batch in batches:
        found = _lines(batch)
        try:
            keys = prompt_keys(batch)
        except Missing:
            return None
        if found is None:
            return None
        groups = groups_of(batch)
        for line, number in zip(found.lines, found.numbers, strict=True):
            earlier = seen.get(keys[int(groups[number][0])], [])
            if line.is_at(float(line.rewards_G.mean())):
                continue
            if not any(line.is_at(mean) for mean in earlier):
                return None  # another kind of baseline
            stale.append(line)
        for rows in groups:
            rewards_G = batch.arrays["rewards"][rows]
            seen.setdefault(keys[int(rows[0])], []).append(float(rewards_G[np.isfinite(rewards_G)].mean()))
    if len(stale) < 2:
        return None
    return _off_level(
        f"the baseline of {len(stale)} groups is the mean of an earlier visit of the same prompt, not of these answers",
        stale,
        batches[-1].step,
        Confidence.PROVEN if len(stale) >= FEWEST_LEVELS else Confidence.LIKELY,
    )


def _changed(batch: Batch, recorded_B: Array, limit: float) -> Verdict | None:
    """A finding where the right advantages were put into another order, or were changed one by one."""
    right_B = advantages(batch)
    order = order_that_fits(right_B, recorded_B, groups_of(batch), limit)
    if order is not None:
        words, from_B = order
        is_named = not words.startswith("the advantages are the right")
        verdict = _broken(batch, recorded_B, words, Confidence.PROVEN if is_named else Confidence.LIKELY)
        row = int(np.argmax(from_B != np.arange(len(from_B))))
        return replace(verdict, facts=(*verdict.facts, Fact(f"row whose advantage row {row} has", int(from_B[row]))))
    change = change_that_fits(right_B, recorded_B, limit)
    if not change:
        return None
    is_meant = "baseline" not in batch.settings or "alone" in change or "set to 0" in change
    sure = Confidence.POSSIBLE if is_meant else Confidence.PROVEN
    return _broken(batch, recorded_B, f"the advantages are the right ones changed: {change}", sure)


def _within_rows(batch: Batch) -> Verdict | None:
    """One reward per row gives one advantage per row, unless something discounts it on the way."""
    if row_advantages(batch) is not None or batch.get("values") is not None or batch.get("returns") is not None:
        return None
    if batch.get("token_rewards") is not None:
        return None
    (mask_BT,) = batch.need("mask")
    is_across = column_advantages(batch.token_advantages, mask_BT)
    spread_B = np.array(
        [
            np.ptp(row[inside]) if inside.any() else 0.0
            for row, inside in zip(batch.token_advantages, mask_BT, strict=True)
        ]
    )
    row = int(np.argmax(spread_B))
    what = "advantages differ between the tokens of one row, though every row has one reward"
    if is_across:
        what = "advantages follow the column and not the row: those of the rows are laid along the tokens"
    return finding(
        what,
        Fact("spread of the advantages within a row", float(spread_B[row]), 0, batch.step, row),
        confidence=Confidence.PROVEN if is_across else Confidence.LIKELY,
    )


def _broken(batch: Batch, recorded_B: Array, what: str, confidence: Confidence) -> Verdict:
    expected_B = advantages(batch)
    row = int(np.argmax(np.abs(np.nan_to_num(recorded_B - expected_B))))
    return finding(
        what,
        Fact("advantage", float(recorded_B[row]), None, batch.step, row),
        Fact("its reward", float(batch.arrays["rewards"][row])),
        Fact("advantage within its group", float(expected_B[row])),
        confidence=confidence,
    )


def _other_axis(batch: Batch, rewards_B: Array, recorded_B: Array, limit: float) -> str:
    """Whether mean or std were taken over dim 0 of rewards.view(prompts, group) or of its transpose, or over
    neighbouring rows that are not of one prompt."""
    groups = groups_of(batch)
    sizes = {len(rows) for rows in groups}
    is_together = all((np.diff(rows) == 1).all() for rows in groups)
    if len(rewards_B) < MANY_ROWS or len(np.unique(recorded_B)) < MANY_VALUES:
        return ""  # with so few, some axis always fits
    if len(sizes) != 1 or len(rewards_B) % next(iter(sizes)):
        return ""
    size = sizes.pop()
    words = {0: "over the same place in every group (dim 0)", 1: "within each group (dim 1)", None: "over the batch"}
    for shape in ((len(rewards_B) // size, size), (size, len(rewards_B) // size)):
        rewards_XY = rewards_B.reshape(shape)
        for mean_axis in words:
            for std_axis in (0, 1, None, -1):  # -1: no std
                for ddof in (0, 1):
                    is_by_neighbours = (mean_axis, std_axis) in ((1, 1), (1, -1)) and shape[1] == size
                    if is_by_neighbours and is_together:
                        continue
                    values_B = _normalise(
                        rewards_XY, mean_axis, std_axis, ddof, batch.settings.get("advantage_epsilon")
                    )
                    if is_by_neighbours and _is_of_one_prompt(batch, size):
                        continue  # then the groups are not what the batch calls so
                    if is_by_neighbours and _is_near(recorded_B, values_B, limit):
                        return f"each {size} neighbouring rows are normalised together, which are of different prompts"
                    if _is_near(recorded_B, values_B, limit):
                        divided = "" if std_axis == -1 else f", the std {words[std_axis]}"
                        return f"the mean of the rewards is taken {words[mean_axis]}{divided} of view{shape}"
    return ""


def _is_unrelated(batch: Batch, recorded_B: Array) -> bool:
    """Whether better rewards of a group hardly go with higher advantages: no KL that is taken off does that."""
    (rewards_B,) = batch.need("rewards")
    pairs = [(rewards_B[rows], recorded_B[rows]) for rows in groups_of(batch) if np.ptp(rewards_B[rows]) > 0]
    if len(pairs) < FEWEST_GROUPS:
        return False
    centred = [np.concatenate([values_G - values_G.mean() for values_G in side]) for side in zip(*pairs, strict=True)]
    spread = float(np.linalg.norm(centred[0]) * np.linalg.norm(centred[1]))
    return bool(np.isfinite(spread) and spread > 0 and float(centred[0] @ centred[1]) / spread < RELATED)


def _is_of_one_prompt(batch: Batch, size: int) -> bool:
    """Whether each block of neighbouring rows has one prompt, by its text; False where the texts are not known."""
    prompts = batch.texts.get("prompt")
    return prompts is not None and all(len(set(prompts[at : at + size])) == 1 for at in range(0, len(prompts), size))


def _normalise(
    rewards_XY: Array, mean_axis: int | None, std_axis: int | None, ddof: int, epsilon: float | None
) -> Array:
    centred_XY = rewards_XY - rewards_XY.mean(axis=mean_axis, keepdims=True)
    if std_axis == -1:
        return np.asarray(centred_XY.ravel())
    std_XY = rewards_XY.std(axis=std_axis, ddof=ddof, keepdims=True) + (1e-4 if epsilon is None else epsilon)
    return np.asarray((centred_XY / std_XY).ravel())


def _is_near(recorded_B: Array, values_B: Array, limit: float) -> bool:
    known_B = np.isfinite(recorded_B) & np.isfinite(values_B)
    scale = float(np.abs(recorded_B[known_B]).max(initial=0.0))
    return (
        bool(known_B.any())
        and scale > 0
        and float(np.abs(recorded_B - values_B)[known_B].max()) <= max(limit, NEARLY) * scale
    )


def _disorder(batch: Batch, rewards_B: Array, recorded_B: Array) -> str:
    """In words, where advantages neither rise nor fall with the rewards of their group, or differ at equal rewards:
    no formula, listed or not, does that."""
    largest = float(np.abs(recorded_B[np.isfinite(recorded_B)]).max(initial=0.0))
    for rows in groups_of(batch):
        kept = rows[np.isfinite(recorded_B[rows]) & np.isfinite(rewards_B[rows])]
        order = kept[np.argsort(rewards_B[kept], kind="stable")]
        steps, gaps = np.diff(rewards_B[order]), np.diff(recorded_B[order])
        if (np.abs(gaps[steps == 0]) > NEARLY * largest).any():
            return "within a group, answers with the same reward have different advantages"
        rises, falls = gaps[steps > 0] > NEARLY * largest, gaps[steps > 0] < -NEARLY * largest
        if rises.any() and falls.any():
            return "within a group, some better answers have higher advantages and others lower ones"
    return ""


def _is_turned_around(batch: Batch, rewards_B: Array, recorded_B: Array) -> bool:
    """Where the gradient is known, a loss of the other sign may make it right again: then that is asked instead."""
    groups = [rows for rows in groups_of(batch) if np.ptp(rewards_B[rows]) > 0]
    falls = [
        recorded_B[rows][np.argmax(rewards_B[rows])] < recorded_B[rows][np.argmin(rewards_B[rows])] for rows in groups
    ]
    return len(groups) >= FEWEST_GROUPS and all(falls)


def sick() -> Evidence:
    """The std over dim 0 of view(prompts, group)."""
    batch = healthy_batch()
    rewards_PG = batch.arrays["rewards"].reshape(GROUPS, SIZE)
    centred_PG = rewards_PG - rewards_PG.mean(axis=1, keepdims=True)
    advantages_PG = centred_PG / (rewards_PG.std(axis=0, ddof=1) + EPSILON)
    return of_batch(consistent(batch, advantages=advantages_PG.ravel()))


def well() -> Evidence:
    return of_batch(healthy_batch())


ILLNESS = illness(
    __name__,
    code="LAW04",
    name="law_of_credit",
    severity=Severity.FATAL,
    summary="advantages do not follow from the rewards of the prompt's group",
    fix="Compute the advantage of the row that is named by hand, from the rewards of its own group.",
    symptoms=("advantages are wrong", "advantages do not match rewards"),
    sick=sick,
    well=well,
    explains=frozenset({"LAW05", "ADV03", "ADV05"}),
    explained_by=frozenset({"ADV", "REW", "NUM"}),
)
