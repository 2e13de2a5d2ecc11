"""
## What it checks
A reward belongs to its row. Where rewards were computed again with the rows in another order, each row must get the
one on record. An answer that comes again must get the reward it got before. And where a dump holds the true answer,
answers that are right must be paid, and wrong ones not.

## Why it hurts
A reward in another row's place praises an answer for what its neighbour wrote. The mean advantage stays 0 and every
curve looks like a hard task.

## How to fix it
Score one row by hand and compare. Keep prompts, completions and answers in one list of records until they are scored.

    # before: the answers are in the order of the data set, the completions in that of the groups
    rewards = [score(c, a) for c, a in zip(completions, answers * group)]
    # after
    rewards = [score(c, a) for c, a in zip(completions, [a for a in answers for _ in range(group)])]

## When it is wrong
A reward that changes on purpose: a schedule, a comparison with the row before. Rows whose reward differs between two
calls in a row (a judge that samples) are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.facts.answers import answers, is_right, right_answers
from assay.doctor.facts.prompts import prompt_keys
from assay.doctor.facts.repeats import completions, values_by_key
from assay.record.batch import Array
from assay.verdict import Confidence, Fact, Missing, Severity, State, Verdict, finding, healthy, not_applicable

NEARLY = 1e-5  # of the largest reward: float32
MOST_VALUES = 32  # of rewards: one with noise in it has as many as rows
FEWEST_PROMPTS = 4
OTHERS = 0.2  # of the prompts that hit another's truth: so few may hit their own too
JUDGED = 12  # rows: fewer may be chance
FEW_ROWS = 8  # of a step
CLEAN, MIXED = 0.03, 0.1  # of the rows: with a reward that contradicts the answer
INVERTED = 0.9  # of the rows
BALANCED_STEPS = 2
MOST_LEVELS = 50  # of rewards that are tried as the limit
AS_RETURNED = ("trl",)  # trainers whose rewards on record are the sum that their functions returned
FEW = 3  # answers that come again with another reward: fewer may be a tie that was cut off differently


def check_batch(batch: Batch) -> Verdict:
    rewards_B, again_B = batch.need("rewards", "rewards_again")
    asked = np.flatnonzero(np.isfinite(again_B) & np.isfinite(rewards_B))
    if not len(asked):
        raise Missing("rewards_again of any row")
    limit = NEARLY * max(1.0, float(np.abs(rewards_B[asked]).max()))
    off = asked[np.abs(rewards_B - again_B)[asked] > limit]
    if not len(off):
        return healthy(
            f"{len(asked)} rows were scored again in another order and got the same reward", Fact("rows", len(asked))
        )
    row = int(off[0])
    # rewards at other rows are exchanged: some rows get more and others less, of the same values
    more, known = again_B[off] > rewards_B[off], {round(float(reward), 5) for reward in again_B[asked]}
    is_exchange = more.any() and not more.all() and all(round(float(reward), 5) in known for reward in rewards_B[off])
    if not is_exchange and batch.settings.get("trainer") not in AS_RETURNED:
        return not_applicable("what the trainer takes for the reward is made of it by a formula")
    if _are_of_copies(batch, off, rewards_B, again_B):
        return not_applicable(
            "which of several equal answers is paid more depends on their order, and nothing else does"
        )
    moved = _moved_as(batch, rewards_B)
    return finding(
        f"{len(off)} of {len(asked)} rows get another reward than that on record when scored in another order"
        + (f": each row has the reward of another one, {moved}" if moved else ""),
        Fact("reward on record", float(rewards_B[row]), None, batch.step, row),
        Fact("reward of the same row in another order", float(again_B[row])),
        confidence=Confidence.PROVEN if moved else Confidence.LIKELY,
    )


def _are_of_copies(batch: Batch, off: Array, rewards_B: Array, again_B: Array) -> bool:
    """Whether only rows that hold the same answer have exchanged their rewards, as by a bonus for the first of them."""
    try:
        rows = list(zip(prompt_keys(batch), _answers(batch), strict=True))
    except Missing:
        return False
    copies = values_by_key(rows, range(len(rows)))
    alike = [copies[rows[row]] for row in off.tolist()]
    return all(sorted(rewards_B[same].round(5)) == sorted(again_B[same].round(5)) for same in alike)


def _moved_as(batch: Batch, rewards_B: Array) -> str:
    """By which plain move the rewards on record become those of the rows scored one by one; "" where none does."""
    alone_B = batch.get("rewards_alone")
    if alone_B is None or len(rewards_B) < FEW_ROWS or not np.isfinite(alone_B + rewards_B).all():
        return ""
    limit = NEARLY * max(1.0, float(np.abs(rewards_B).max()))
    if len(set(rewards_B.round(5).tolist())) <= FEW or np.abs(rewards_B - alone_B).max() <= limit:
        return ""  # a few levels fit several moves
    moves = moved_rows(rewards_B)
    return next((name for name, values_B in moves.items() if np.abs(values_B - alone_B).max() <= limit), "")


def check_batches(batches: Sequence[Batch]) -> Verdict:
    verdicts = []
    reasons = []
    for check in (_one_truth_per_prompt, _truths_of_others, _by_truth, _by_equal_answers):
        try:
            verdicts.append(check(batches))
        except Missing as missing:
            reasons.append(missing)
    if not verdicts:
        raise reasons[-1]
    return max(verdicts, key=lambda verdict: (verdict.state is State.FINDING, verdict.confidence.rank))


def _by_equal_answers(batches: Sequence[Batch]) -> Verdict:
    """Answers that come again, in the same step or a later one. A reward that changes from step to step on purpose
    still gives equal answers of one step the same, so conflicts of both kinds are asked for, except in texts."""
    known: dict[object, tuple[float, int | None]] = {}
    again: set[object] = set()
    within: list[tuple[int | None, int, float, float]] = []
    between: list[tuple[int | None, int, float, float]] = []
    levels: set[float] = set()
    is_of_text = is_judged = False  # judged: by something that may vary: texts alone, and rewards of many sizes
    for batch in batches:
        if batch.get("rewards") is None or batch.settings.get("kl_placement") == "reward":
            continue
        if batch.get("start_states") is not None:
            continue  # an environment may answer the same actions differently
        (rewards_B,) = batch.need("rewards")
        is_of_text = batch.get("tokens") is None
        levels.update(np.unique(rewards_B[np.isfinite(rewards_B)]).tolist())
        is_judged |= is_of_text and len(levels) > FEW
        for row, key in enumerate(zip(prompt_keys(batch), _answers(batch), strict=True)):
            if not np.isfinite(rewards_B[row]) or not key[1]:
                continue
            first, step = known.setdefault(key, (float(rewards_B[row]), batch.step))
            if step != batch.step or is_of_text:
                again.add(key)
            if abs(first - rewards_B[row]) > NEARLY * max(1.0, abs(first)):
                (within if step == batch.step else between).append((batch.step, row, first, float(rewards_B[row])))
    if not again:
        raise Missing("rewards_again, or an answer that comes again in a later step")
    fact = Fact("answers that came again", len(again))
    conflicts = [*between, *(within if is_of_text else ())]
    if not conflicts:
        return healthy("answers that come again get the reward they got before", fact)
    step, row, first, now = conflicts[0]
    is_steady = len(levels) <= MOST_VALUES and bool(within)
    is_sure = len(conflicts) >= FEW and (not is_judged if is_of_text else is_steady)
    return finding(
        f"answers that come again get another reward ({len(conflicts)} times, {len(again)} answers)",
        Fact("reward now", now, None, step, row),
        Fact("reward of the same answer before", first),
        fact,
        confidence=Confidence.LIKELY if is_sure else Confidence.POSSIBLE,
    )


def _answers(batch: Batch) -> Sequence[object]:
    """Without lengths a reward may have read what stands behind the end of an answer: then the whole row counts."""
    tokens_BT = batch.get("tokens")
    if tokens_BT is None:
        return answers(batch)
    return [row.tobytes() for row in tokens_BT] if batch.get("lengths") is None else completions(batch)


def _one_truth_per_prompt(batches: Sequence[Batch]) -> Verdict:
    """A prompt has one true answer: rows that are graded against different ones have the truths of other rows."""
    known: dict[str, set[str]] = {}
    torn: tuple[int | None, int] | None = None
    in_order = ""
    for batch in batches:
        prompts, truths = batch.texts.get("prompt"), batch.texts.get("truth")
        if prompts is None or truths is None or batch.get("rewards") is None:
            continue
        for row, (prompt, truth) in enumerate(zip(prompts, truths, strict=True)):
            known.setdefault(prompt, set()).add(truth)
            if torn is None and len(known[prompt]) > 1:
                torn, in_order = (batch.step, row), _order_of(prompts, truths)
    if not known:
        raise Missing("truth")
    several = sum(len(truths) > 1 for truths in known.values())
    fact = Fact("prompts with several truths", several, 0, *(torn or ()))
    if torn is None or several < max(2, MIXED * len(known)):
        return healthy("all rows of a prompt have the same truth", fact)
    return finding(
        f"rows of one prompt are graded against different truths ({several} of {len(known)} prompts): {in_order}",
        fact,
        confidence=Confidence.LIKELY,
        fix="Repeat the truths as the prompts are repeated: each of them n times in a row where the rows of a group "
        "stand together, and not the whole list n times.",
    )


def _truths_of_others(batches: Sequence[Batch]) -> Verdict:
    """The answers of a group hit the truth of another prompt again and again, and never their own."""
    own = 0
    prompts_seen = 0
    others: dict[int, int] = {}
    for batch in batches:
        texts, prompts, truths = (batch.texts.get(name) for name in ("completion", "prompt", "truth"))
        if texts is None or prompts is None or truths is None:
            continue
        said: dict[str, list[str]] = values_by_key(prompts, texts)
        true = list(dict(zip(prompts, truths, strict=True)).values())
        if len(said) < FEWEST_PROMPTS or len(set(true)) < len(true):
            continue
        prompts_seen += len(said)
        for place, answers_G in enumerate(said.values()):
            hit = [by for by in range(len(true)) if any(is_right(text, true[place - by]) for text in answers_G)]
            own += 0 in hit
            for by in hit:
                others[by] = others.get(by, 0) + (by > 0)
    if not prompts_seen:
        raise Missing(f"truth and answers of {FEWEST_PROMPTS} prompts in a step")
    by, hits = max(others.items(), key=lambda item: item[1], default=(0, 0))
    facts = [Fact("prompts whose own truth is among their answers", own), Fact("prompts with another's", hits)]
    if own > OTHERS * hits or hits < max(FEWEST_PROMPTS, prompts_seen / 2):
        return healthy("answers hit the truth of their own prompt", *facts)
    return finding(
        f"answers are graded against the truth of another prompt: those of {hits} of {prompts_seen} prompts hold the "
        f"truth of the prompt {by} before, and of {own} their own",
        *facts,
        confidence=Confidence.LIKELY,
    )


def _order_of(prompts: Sequence[str], truths: Sequence[str]) -> str:
    """In which order the truths of a step stand, where they fit the prompts in another one."""
    count = len(prompts)
    for size in (size for size in range(2, count) if count % size == 0):
        moved = [truths[place * (count // size) + row] for row in range(count // size) for place in range(size)]
        if len(set(zip(prompts, moved, strict=True))) == len(set(prompts)):
            return f"the list of truths is tiled {size} times, and the prompts stand {size} times in a row"
    shifts = (
        by
        for by in range(1, count)
        if len({*zip(prompts, [*truths[by:], *truths[:by]], strict=True)}) == len({*prompts})
    )
    by = next(shifts, None)
    return "truths stand at other rows than their prompts" if by is None else f"the truths are off by {by} rows"


def _by_truth(batches: Sequence[Batch]) -> Verdict:
    """Rewards against the answers, where the true one is known: right answers are paid, wrong ones are not, and if not
    so, as many are paid as are right."""
    judged = [found for batch in batches if (found := _judged(batch)) is not None]
    if sum(len(right_N) for _, _, right_N, _ in judged) < JUDGED:
        raise Missing(f"truth and a marked answer in {JUDGED} rows")
    limit = _threshold(
        np.concatenate([rewards_N for *_, rewards_N in judged]),
        np.concatenate([right_N for _, _, right_N, _ in judged]),
    )
    if limit is None:
        return not_applicable("all answers are right, all are wrong, or all get the same reward")
    steps = [_Paid(batch, rows_N, right_N, rewards_N > limit) for batch, rows_N, right_N, rewards_N in judged]
    off, rows = sum(step.off for step in steps), sum(len(step.right_N) for step in steps)
    facts = [
        Fact("answers that can be judged", rows),
        Fact("right ones that are not paid", sum(step.unpaid for step in steps)),
        Fact("wrong ones that are paid", sum(step.overpaid for step in steps)),
    ]
    bad = [step for step in steps if step.is_mixed]
    if off >= INVERTED * rows and off >= JUDGED:
        return finding("right answers are paid less than wrong ones", *facts, confidence=Confidence.LIKELY)
    if not bad:
        return _of_one_kind(steps, facts) or healthy(
            "right answers are paid and wrong ones are not, or nearly so", *facts
        )
    worst = max(bad, key=lambda step: step.off)
    row = int(worst.rows_N[np.flatnonzero(worst.right_N != worst.paid_N)[0]])
    facts.insert(0, Fact("rows of the worst step whose reward is another's", worst.off, 0, worst.batch.step, row))
    moved = next((name for name in (worst.moved(),) if name), "")
    is_sudden = any(step.is_clean for step in steps)
    is_balanced = len(bad) >= BALANCED_STEPS and all(step.is_balanced for step in bad)
    since = (
        "" if not is_sudden else f", from step {bad[0].batch.step} on" if _is_last(steps, bad) else ", in some steps"
    )
    how = moved or "as many are paid as are right" if moved or is_balanced else "the two do not go together"
    return finding(
        f"right answers go unpaid and wrong ones are paid{since} ({worst.off} of {len(worst.right_N)} rows of step "
        f"{worst.batch.step}): {how}; rewards stand at other rows than their answers",
        *facts,
        confidence=Confidence.LIKELY if is_sudden or is_balanced or moved else Confidence.POSSIBLE,
    )


def _of_one_kind(steps: Sequence[_Paid], facts: Sequence[Fact]) -> Verdict | None:
    """A finding where many right answers go unpaid, or many wrong ones are paid, and the other way round never."""
    right = sum(int(step.right_N.sum()) for step in steps)
    wrong = sum(len(step.right_N) for step in steps) - right
    unpaid, overpaid = sum(step.unpaid for step in steps), sum(step.overpaid for step in steps)
    kinds = (
        (unpaid, right, "right answers get nothing: the parser misses them, or they fail for another reason"),
        (overpaid, wrong, "wrong answers are paid as if they were right"),
    )
    for count, total, what in kinds:
        if count < max(FEW, MIXED * total):
            continue
        late = [step for step in steps if step.unpaid + step.overpaid > CLEAN * len(step.right_N)]
        clean = [step for step in steps if step.is_clean]
        is_late = bool(clean) and _is_last(steps, late)
        return finding(
            f"{count} of {total} {what}" + (f", from step {late[0].batch.step} on" if is_late else ""),
            *facts,
            confidence=Confidence.LIKELY if is_late and len(clean) > 1 < len(late) else Confidence.POSSIBLE,
        )
    return None


def _is_last(steps: Sequence[_Paid], late: Sequence[_Paid]) -> bool:
    """Whether these steps are the last ones."""
    flags = [step in late for step in steps]
    return flags == sorted(flags)


@dataclass(frozen=True, eq=False)
class _Paid:
    """The rows of a step that can be judged, N of them."""

    batch: Batch
    rows_N: Array
    right_N: Array
    paid_N: Array

    @property
    def unpaid(self) -> int:
        return int((self.right_N & ~self.paid_N).sum())

    @property
    def overpaid(self) -> int:
        return int((~self.right_N & self.paid_N).sum())

    @property
    def off(self) -> int:
        return self.unpaid + self.overpaid

    @property
    def is_clean(self) -> bool:
        is_judged = len(self.right_N) >= FEW_ROWS and bool(self.right_N.any())
        return is_judged and self.off <= CLEAN * len(self.right_N)

    @property
    def is_mixed(self) -> bool:
        return min(self.unpaid, self.overpaid) >= 2 and self.off >= MIXED * len(self.right_N)

    @property
    def is_balanced(self) -> bool:
        return abs(self.unpaid - self.overpaid) <= max(1, len(self.right_N) // 20)

    def moved(self) -> str:
        """By which move of the rows the rewards become those of the answers; "" where no plain one does."""
        count = len(self.batch.arrays["rewards"])
        if len(self.right_N) < FEW_ROWS or len(self.rows_N) < count:
            return ""
        shifts = moved_rows(self.paid_N)
        return next((name for name, paid_N in shifts.items() if np.array_equal(paid_N, self.right_N)), "")


def moved_rows(values_N: Array) -> dict[str, Array]:
    """The values in the order that each plain move of rows would have to be undone to, by the name of the move."""
    count = len(values_N)
    moves = {f"all are off by {by} row{'s' * (by > 1)}": np.roll(values_N, -by) for by in range(1, count // 2)}
    moves |= {f"all are off by {by} row{'s' * (by > 1)}, backwards": np.roll(values_N, by) for by in (1, 2)}
    moves["they are in the reverse order"] = values_N[::-1]
    for size in range(2, count // 2 + 1):
        if count % size == 0:
            name = f"they are those of view({size}, {count // size}), transposed"
            moves[name] = values_N.reshape(size, count // size).T.ravel()
    return moves


def _judged(batch: Batch) -> tuple[Batch, Array, Array, Array] | None:
    """(batch, rows, whether right, rewards) of the rows that can be judged; None without any."""
    rewards_B = batch.get("rewards")
    if rewards_B is None:
        return None
    try:
        right = right_answers(batch)
    except Missing:
        return None
    rows_N = np.array([row for row, one in enumerate(right) if one is not None and np.isfinite(rewards_B[row])], int)
    if not len(rows_N):
        return None
    return batch, rows_N, np.array([right[row] for row in rows_N], bool), rewards_B[rows_N]


def _threshold(rewards_N: Array, right_N: Array) -> float | None:
    """Above which a reward is one of a right answer: where the two agree most; None where nothing shows it."""
    levels = np.unique(rewards_N)
    if len(levels) < 2 or right_N.all() or not right_N.any():
        return None
    between = (levels[1:] + levels[:-1]) / 2
    if len(between) > MOST_LEVELS:
        between = between[:: len(between) // MOST_LEVELS]
    return float(max(between, key=lambda limit: abs(np.mean((rewards_N > limit) == right_N) - 0.5)))


def _asked_again(shift: int) -> Evidence:
    batch = healthy_batch()
    (rewards_B,) = batch.need("rewards")
    again_B = np.where(np.arange(len(rewards_B)) < 4, np.roll(rewards_B, shift), np.nan)
    return of_batch(edit_batch(batch, rewards_again=again_B))


def sick() -> Evidence:
    """Rewards are off by one row."""
    return _asked_again(1)


def well() -> Evidence:
    return _asked_again(0)


ILLNESS = illness(
    __name__,
    code="LAW10",
    name="law_of_the_reward",
    severity=Severity.FATAL,
    summary="rewards are not those of their rows",
    fix="Score the row that is named by hand; keep prompt, completion and answer together until they are scored.",
    symptoms=("rewards do not match the completions", "reward belongs to another sample"),
    sick=sick,
    well=well,
    explained_by=frozenset({"REW", "ALGN", "ADV"}),
)
