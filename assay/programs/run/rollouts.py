"""What was sampled: calls of generate(), and loops that draw one token after the other, as rows of prompt + completion.

Shape legend: B rows, P prompt tokens, T completion tokens, S tokens given to the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from assay.programs.graph import Value
from assay.programs.run.kinds import DRAWS, above
from assay.programs.run.sight import numbers_of, sight
from assay.programs.run.watched import Forward, GenerateCall, OtherTokens, Sampling, WatchedRun
from assay.programs.walk import walk
from assay.record.batch import Array

# a drawn token in another form, or replaced by padding behind the end of its row
_FORMS = frozenset(
    "squeeze unsqueeze view reshape cast index element clone detach where masked_fill setitem changed mul add".split()
)
_MOVED = frozenset("squeeze unsqueeze view reshape cast element clone detach".split())
_JOINS = frozenset({"cat", "stack", "listing"})

MOST_MOMENTS = 4  # of sampling that an update may train on
LEAST_OWN = 0.1  # of the rows: those that hold just what was sampled
MOST_OPERATIONS_BETWEEN = 24  # operations between a draw and the pass that is given it


@dataclass(frozen=True, eq=False)
class SampledRows:
    """Rows that were sampled together."""

    version: int
    model: int
    prompts_BP: Array
    prompt_mask_BP: Array
    sampled_BT: Array  # as the sampler returned them
    lengths_B: Array  # EOS included
    finished_B: Array | None  # None: not known
    value: Value
    moment: int  # optimizer steps of any kind before it
    settings: Mapping[str, Any] = field(default_factory=dict)  # as a Batch names them
    weights: tuple[float, ...] = ()  # of the sampler, as sums
    forced_BT: Array | None = None  # where the script went on with another token than was drawn
    sampler: int = -1  # the model that sampled, a copy of the policy or the policy itself

    def prompt(self, row: int) -> Array:
        prompt: Array = self.prompts_BP[row][self.prompt_mask_BP[row]]
        return prompt

    def completion(self, row: int) -> Array:
        return self.sampled_BT[row, : self.lengths_B[row]]


def rollouts_of(run: WatchedRun) -> list[SampledRows]:
    """In the order in which they were sampled."""
    found = [rollout for call in run.generations if (rollout := _generated(call, run)) is not None]
    looped = [rollout for part in _loops(run.samplings) if (rollout := _looped(part, run)) is not None]
    found += _ended(looped)
    newest = sorted({rollout.moment for rollout in found})[-MOST_MOMENTS:]
    found = [rollout for rollout in found if rollout.moment in newest]
    return sorted(found, key=lambda rollout: rollout.value.order)


def _ended(rollouts: Sequence[SampledRows]) -> list[SampledRows]:
    """Of loops over one row each that stop at different lengths: what the shorter ones end with is what ends a row."""
    by_moment: dict[int, list[SampledRows]] = {}
    for rollout in rollouts:
        if _may_end_anywhere(rollout):
            by_moment.setdefault(rollout.moment, []).append(rollout)
    ends: set[int] = set()
    for together in by_moment.values():
        longest = max(rollout.sampled_BT.shape[1] for rollout in together)
        ends |= {int(rollout.sampled_BT[0, -1]) for rollout in together if rollout.sampled_BT.shape[1] < longest}
    if len(ends) != 1:
        return list(rollouts)
    (end,) = ends
    return [
        replace(
            rollout,
            settings={**rollout.settings, "eos_ids": [end]},
            finished_B=rollout.sampled_BT[:, -1] == end,
        )
        if _may_end_anywhere(rollout)
        else rollout
        for rollout in rollouts
    ]


def _may_end_anywhere(rollout: SampledRows) -> bool:
    return len(rollout.sampled_BT) == 1 and "eos_ids" not in rollout.settings


def _generated(call: GenerateCall, run: WatchedRun) -> SampledRows | None:
    sequences_BL, prompts_BP = numbers_of(call.sequences), numbers_of(call.input_ids)
    if sequences_BL is None or prompts_BP is None or sequences_BL.ndim != 2 or prompts_BP.ndim != 2:
        return None
    width = prompts_BP.shape[1]
    mask = numbers_of(call.attention_mask)
    mask_BP = np.ones(prompts_BP.shape, dtype=bool) if mask is None else mask.astype(bool)
    copies = len(sequences_BL) // max(len(prompts_BP), 1)
    if copies > 1:
        prompts_BP, mask_BP = np.repeat(prompts_BP, copies, axis=0), np.repeat(mask_BP, copies, axis=0)
    if len(prompts_BP) != len(sequences_BL) or not np.array_equal(sequences_BL[:, :width], prompts_BP):
        return None
    config = call.config
    eos_ids = token_ids(config.get("eos_token_id")) or run.models[call.model].eos_ids
    sampled_BT = sequences_BL[:, width:]
    lengths_B, finished_B = _ends(sampled_BT, eos_ids)
    settings: dict[str, Any] = {"temperature": float(config.get("temperature") or 1.0)}
    if eos_ids:
        settings["eos_ids"] = list(eos_ids)
    pad = token_ids(config.get("pad_token_id"))
    if pad:
        settings["pad_id"] = pad[0]
    if isinstance(config.get("max_new_tokens"), int):
        settings["max_tokens"] = config["max_new_tokens"]
    settings |= _cuts(config)
    if not config.get("do_sample"):
        settings = {**settings, "temperature": None, "top_k": 1}
    return SampledRows(
        *_weights(call, run), prompts_BP, mask_BP, sampled_BT, lengths_B, finished_B if eos_ids else None,
        call.value, moment(call.value, run), settings, call.weights, None, call.model,
    )  # fmt: skip


def _weights(sampler: Forward | GenerateCall, run: WatchedRun) -> tuple[int, int]:
    """(version, model): of a copy of the policy those of the policy whose weights it held."""
    model = run.models[sampler.model]
    known = run.history.get(sampler.weights)
    if model.is_trained or known is None:
        return sampler.version, sampler.model
    return known[1], known[0]


def moment(value: Value, run: WatchedRun) -> int:
    return sum(update.order < value.order for update in run.updates)


def _cuts(config: Mapping[str, Any]) -> dict[str, Any]:
    cuts: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return {name: config.get(name) if config.get(name) is not None else off for name, off in cuts.items()}


def token_ids(setting: Any) -> tuple[int, ...]:
    """Of a setting such as eos_token_id, which holds one or several."""
    if isinstance(setting, int) and not isinstance(setting, bool):
        return (setting,)
    return tuple(token for token in setting if isinstance(token, int)) if isinstance(setting, (list, tuple)) else ()


def _ends(sampled_BT: Array, eos_ids: Sequence[int]) -> tuple[Array, Array]:
    """(tokens up to the first EOS and it, whether there is one)."""
    is_end_BT = np.isin(sampled_BT, np.asarray(list(eos_ids), dtype=np.int64))
    finished_B = is_end_BT.any(axis=1) if sampled_BT.shape[1] else np.zeros(len(sampled_BT), dtype=bool)
    first_B = is_end_BT.argmax(axis=1) + 1 if sampled_BT.shape[1] else np.zeros(len(sampled_BT), dtype=np.int64)
    return np.where(finished_B, first_B, sampled_BT.shape[1]), np.asarray(finished_B)


def _loops(samplings: Sequence[Sampling]) -> Iterator[list[Sampling]]:
    """Draws of one loop: each pass sees one token more than the one before, or just one with a cache."""
    part: list[Sampling] = []
    for draw in samplings:
        if part and not _goes_on(part[-1], draw):
            yield part
            part = []
        part.append(draw)
    if part:
        yield part


def _goes_on(before: Sampling, after: Sampling) -> bool:
    """The pass is given what was drawn before, at the end of what it was given then or alone."""
    earlier, later = before.forward, after.forward
    if earlier is None or later is None or earlier.model != later.model or earlier.version != later.version:
        return False
    then, now, drawn = _context(before), _context(after), numbers_of(before.value)
    if then is None or now is None or later.input_ids is None or then.shape[:-1] != now.shape[:-1]:
        return False
    if now.shape[-1] not in (1, then.shape[-1] + 1) and not _slides(before, after):
        return False
    if any(value is before.value for value in islice(above(later.input_ids), MOST_OPERATIONS_BETWEEN)):
        return True
    # tokens may have gone through Python's lists in between
    if drawn is None or drawn.size != now[..., -1].size or not (drawn.reshape(-1) == now[..., -1].reshape(-1)).any():
        return False
    return now.shape[-1] == 1 or np.array_equal(now[..., :-1], then) or _slides(before, after)


def _context(draw: Sampling) -> Array | None:
    """[B, S] of what the pass was given; ids without a second dimension are one row, or one token of each row."""
    given = numbers_of(draw.forward.input_ids) if draw.forward is not None else None
    if given is None or given.ndim != 1:
        return given
    drawn = sight(draw.value)
    return given[:, None] if drawn is not None and drawn.size == len(given) > 1 else given[None]


def _slides(before: Sampling, after: Sampling) -> bool:
    """The pass is given the last few tokens: those of the one before, except for the first, and what was drawn."""
    then, now, drawn = _context(before), _context(after), numbers_of(before.value)
    if then is None or now is None or drawn is None or then.shape != now.shape or drawn.size != now[..., -1].size:
        return False
    is_moved = now.shape[-1] > 1 and np.array_equal(now[..., :-1], then[..., 1:])
    return is_moved and np.array_equal(now[..., -1].reshape(-1), drawn.reshape(-1))


def _looped(part: Sequence[Sampling], run: WatchedRun) -> SampledRows | None:
    first = part[0].forward
    prompts_BP = _context(part[0])
    if first is None or prompts_BP is None or prompts_BP.ndim != 2:
        return None
    rows = len(prompts_BP)
    columns = [numbers_of(draw.value) for draw in part]
    if any(column is None or column.size != rows for column in columns):
        return None
    drawn_BT = np.stack([column.reshape(rows) for column in columns if column is not None], axis=1)
    forced_BT, replaced_BT = _replaced(part, rows)
    sampled_BT = np.where(forced_BT, replaced_BT, drawn_BT)
    mask = numbers_of(first.attention_mask)
    is_mask = mask is not None and mask.shape == prompts_BP.shape
    mask_BP = mask.astype(bool) if is_mask and mask is not None else np.ones(prompts_BP.shape, dtype=bool)
    ends = _compared(part) or set(run.models[first.model].eos_ids) or _padded_behind(sampled_BT, forced_BT)
    lengths_B, finished_B = _ends(np.where(forced_BT, -1, sampled_BT), sorted(ends))
    settings: dict[str, Any] = {}
    temperatures = {draw.temperature for draw in part}
    if len(temperatures) == 1 and None not in temperatures:
        settings["temperature"] = temperatures.pop()
    if ends:
        settings["eos_ids"] = sorted(ends)
    if not any(draw.cuts for draw in part):
        settings |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    return SampledRows(
        *_weights(first, run), prompts_BP, mask_BP, sampled_BT, lengths_B, finished_B if ends else None,
        part[-1].value, moment(part[-1].value, run), settings, first.weights, forced_BT, first.model,
    )  # fmt: skip


def _replaced(part: Sequence[Sampling], rows: int) -> tuple[Array, Array]:
    """[B, T]: where the script goes on with a token of its own in place of what was drawn, and that token: what a tool
    returned, or padding. A second draw in its place is a draw."""
    forced_BT = np.zeros((rows, len(part)), dtype=bool)
    tokens_BT = np.zeros((rows, len(part)), dtype=np.int64)
    for step, draw in enumerate(part):
        forms = list(walk(draw.value, lambda value: [user for user in value.users if user.op in ("where", *_MOVED)]))
        mine = {id(form) for form in forms}
        for form in sorted(forms, key=lambda form: form.order):
            numbers, condition = numbers_of(form), numbers_of(form.arguments.get("condition"))
            if form.op != "where" or numbers is None or condition is None or numbers.size != rows:
                continue
            is_kept = id(form.arguments.get("input")) in mine
            own = form.arguments.get("other" if is_kept else "input")
            is_drawn = own is not None and any(made.op in DRAWS for made in islice(walk(own), MOST_OPERATIONS_BETWEEN))
            if condition.size == rows and not is_drawn:
                here_B = condition.reshape(rows).astype(bool) ^ is_kept
                forced_BT[here_B, step], tokens_BT[here_B, step] = True, numbers.reshape(rows)[here_B]
    return forced_BT, tokens_BT


def _padded_behind(fed_BT: Array, forced_BT: Array) -> set[int]:
    """The token behind which rows go on with one and the same token, whatever is drawn."""
    ends: set[int] = set()
    for fed_T, forced_T in zip(fed_BT, forced_BT, strict=True):
        others = np.flatnonzero(fed_T != fed_T[-1]) if len(fed_T) else np.zeros(0, dtype=np.int64)
        first = int(others[-1]) + 1 if len(others) else 0
        if forced_T[first:].any() and (first or not forced_T[0]):
            ends.add(int(fed_T[first - 1] if forced_T[first] else fed_T[first]))
    return ends if len(ends) == 1 else set()


def _compared(part: Sequence[Sampling]) -> set[int]:
    """The id that drawn tokens are compared with: in the loop; else behind it, where the answer is counted."""
    drawn = [draw.value for draw in part]
    tokens = walk(drawn, lambda value: [user for user in value.users if user.op in _FORMS])
    rows = walk(drawn, lambda value: [user for user in value.users if user.op in _FORMS | _JOINS])
    counted = (pair for pair in _comparisons(rows) if pair[0].op == "eq" and _is_counted(pair[0]))
    ends = {number for _, number in _comparisons(tokens)} or {number for _, number in counted}
    return ends if len(ends) == 1 else set()


def _comparisons(values: Iterable[Value]) -> Iterator[tuple[Value, int]]:
    """Each comparison of one of the values with an integer, and the integer."""
    for user in (user for value in values for user in value.users):
        number = user.setting("other")
        if user.op in ("eq", "ne") and isinstance(number, int) and not isinstance(number, bool):
            yield user, number


def _is_counted(value: Value) -> bool:
    users = [user for form in [value, *(user for user in value.users if user.op == "cast")] for user in form.users]
    return any(user.op in ("cumsum", "any", "argmax", "cumprod", "nonzero", "max") for user in users)


LEAST_ENDED = 3  # rows that stop behind one token
LEAST_PACKED = 3  # tokens of an answer with its prompt


@dataclass(frozen=True)
class Found:
    """Where a row of a scoring pass comes from, and where its prompt and its completion begin in it."""

    rollout: SampledRows
    row: int
    start: int
    completion: int

    @property
    def span(self) -> slice:
        """Where its tokens stand in the row of the pass."""
        return slice(self.start, self.completion + int(self.rollout.lengths_B[self.row]))


def locate(given_BS: Array, rollouts: Sequence[SampledRows]) -> list[Found | None]:
    """Of each row of a pass the newest sampled row that stands whole in it: its own number first, then the longest."""
    given_BS = np.ascontiguousarray(given_BS, dtype=np.int64)
    for rollout in reversed(rollouts):
        if len(rollout.sampled_BT) == len(given_BS):
            found = [_stands(row_S, rollout, number) for number, row_S in enumerate(given_BS)]
            if all(found):
                return list(found)
    return _without_doubtful(given_BS, [_search(row_S, rollouts) for row_S in given_BS])


def _without_doubtful(given_BS: Array, located: Sequence[Found | None]) -> list[Found | None]:
    """None for rows that stand at one sampled row and differ: some of them are of a row that was not seen."""
    given: dict[tuple[int, int], set[bytes]] = {}
    for row_S, found in zip(given_BS, located, strict=True):
        if found is not None:
            given.setdefault((id(found.rollout), found.row), set()).add(row_S.tobytes())
    return [None if found is not None and len(given[id(found.rollout), found.row]) > 1 else found for found in located]


def with_ends(given_BS: Array, rollouts: Sequence[SampledRows]) -> list[SampledRows]:
    """Where nothing shows what ends a row, and rows that are trained stop behind one and the same token while the loop
    drew on: that token ends them."""
    newest = max((rollout.moment for rollout in rollouts), default=0)
    open_ended = [rollout for rollout in rollouts if rollout.moment == newest and rollout.finished_B is None]
    sampled = [(rollout, row) for rollout in open_ended for row in range(len(rollout.lengths_B))]
    if len(sampled) != len(given_BS):
        return list(rollouts)
    ends: list[int] = []
    for given_S, (rollout, row) in zip(np.ascontiguousarray(given_BS, dtype=np.int64), sampled, strict=True):
        prompt, drawn = np.ascontiguousarray(rollout.prompt(row), dtype=np.int64), rollout.sampled_BT[row]
        at = _first_place(given_S.tobytes(), prompt)
        if at is None:
            return list(rollouts)
        rest = given_S[at + len(prompt) :]
        both = min(len(rest), len(drawn))
        same = int(np.argmin(np.append(rest[:both] == drawn[:both], False)))
        if same == both:
            continue
        if same == 0 or len(np.unique(rest[same:])) > 1:
            return list(rollouts)
        ends.append(int(drawn[same - 1]))
    if len(ends) < LEAST_ENDED or len(set(ends)) != 1:
        return list(rollouts)
    mine = {id(rollout) for rollout in open_ended}
    return [_ending_with(rollout, ends[0]) if id(rollout) in mine else rollout for rollout in rollouts]


def _ending_with(rollout: SampledRows, end: int) -> SampledRows:
    lengths_B, finished_B = _ends(rollout.sampled_BT, [end])
    settings = {**rollout.settings, "eos_ids": [end]}
    return replace(rollout, settings=settings, lengths_B=lengths_B, finished_B=finished_B)


def are_packed(given_BS: Array, found: Sequence[Found], rollouts: Sequence[SampledRows]) -> bool:
    """Whether a row of a pass holds, beside the sampled row that was located in it, another one of these rollouts."""
    for given_S, own in zip(np.ascontiguousarray(given_BS, dtype=np.int64), found, strict=True):
        outside = [given_S[: own.span.start], given_S[own.span.stop :]]
        for part in outside:
            if len(part) >= LEAST_PACKED and len(np.unique(part)) > 1:
                same = [rollout for rollout in rollouts if rollout.moment == own.rollout.moment]
                if _search(part, same) is not None:
                    return True
    return False


def packed_rows(given_BS: Array, rollouts: Sequence[SampledRows]) -> list[tuple[int, Found]] | None:
    """Of each row that was sampled last, in which row of a pass it stands, where these hold several of them end to end;
    None where some of them are not there, or no row of the pass holds two."""
    newest = max((rollout.moment for rollout in rollouts), default=0)
    sampled = [
        (rollout, row) for rollout in rollouts if rollout.moment == newest for row in range(len(rollout.lengths_B))
    ]
    if len(sampled) <= len(given_BS):
        return None
    texts = [np.ascontiguousarray(given_S, dtype=np.int64).tobytes() for given_S in given_BS]
    taken = np.zeros(given_BS.shape, dtype=bool)
    found: dict[int, tuple[int, Found]] = {}
    rows = [np.concatenate([rollout.prompt(row), rollout.completion(row)]) for rollout, row in sampled]
    for number in sorted(
        range(len(rows)), key=lambda number: -len(rows[number])
    ):  # a short one may be a part of another
        wanted = np.ascontiguousarray(rows[number], dtype=np.int64)
        places = ((line, at) for line, text in enumerate(texts) for at in _places(text, wanted))
        free = next((place for place in places if not taken[place[0], place[1] :][: len(wanted)].any()), None)
        if free is None:
            return None
        line, at = free
        taken[line, at : at + len(wanted)] = True
        rollout, row = sampled[number]
        found[number] = line, Found(rollout, row, at, at + len(rollout.prompt(row)))
    return [found[number] for number in range(len(sampled))]


def _places(text: bytes, wanted: Array) -> Iterator[int]:
    part, at = wanted.tobytes(), -1
    while part and (at := text.find(part, at + 1)) >= 0:
        if at % 8 == 0:
            yield at // 8


def _search(given_S: Array, rollouts: Sequence[SampledRows]) -> Found | None:
    """The one that begins first, as a short row may stand inside of another by chance; then the longest, the newest."""
    best: Found | None = None
    rank = (-len(given_S), 0)
    for rollout in reversed(rollouts):
        for row in range(len(rollout.sampled_BT)):
            length = int(rollout.prompt_mask_BP[row].sum() + rollout.lengths_B[row])
            if (0, length) <= rank or (found := _stands(given_S, rollout, row)) is None:
                continue
            if (-found.start, length) > rank:
                best, rank = found, (-found.start, length)
    return best


def _stands(given_S: Array, rollout: SampledRows, row: int) -> Found | None:
    prompt, completion = rollout.prompt(row), rollout.completion(row)
    text = given_S.tobytes()
    wanted = np.ascontiguousarray(np.concatenate([prompt, completion]), dtype=np.int64)
    at = _last_place(text, wanted)
    if at is None and len(completion) > 1:  # the last token predicts nothing: some do not feed it
        shorter = wanted[:-1]
        at = _last_place(text, shorter)
        at = at if at is not None and at + len(shorter) == len(given_S) else None
    return None if at is None else Found(rollout, row, at, at + len(prompt))


def _last_place(text: bytes, wanted: Array) -> int | None:
    part = wanted.tobytes()
    at = text.rfind(part)
    while at >= 0 and at % 8:
        at = text.rfind(part, 0, at + len(part) - 1)
    return None if at < 0 else at // 8


def other_tokens(
    given_BS: Array, located: Sequence[Found | None], rollouts: Sequence[SampledRows], counted_BS: Array | None
) -> OtherTokens | None:
    """Of rows that hold a sampled prompt and then other tokens than were sampled for it; None where no row does, or it
    is not sure which sampled row each of them is. A token that the loss does not count is the environment's.

    Sure: there are as many of both, and many are the same in the same place."""
    newest = max((rollout.moment for rollout in rollouts), default=0)
    sampled = [
        (rollout, row) for rollout in rollouts if rollout.moment == newest for row in range(len(rollout.lengths_B))
    ]
    if len(sampled) != len(given_BS):
        return None
    own, elsewhere, others = 0, 0, []
    for number, (given_S, (rollout, row)) in enumerate(zip(given_BS, sampled, strict=True)):
        given_S = np.ascontiguousarray(given_S, dtype=np.int64)
        prompt = np.ascontiguousarray(rollout.prompt(row), dtype=np.int64)
        if _stands(given_S, rollout, row) is not None:
            own += 1
            continue
        at = _first_place(given_S.tobytes(), prompt)
        if at is None:
            return None  # another order
        if located[number] is not None:
            elsewhere += 1  # a short answer may stand there by chance
            continue
        rest, completion = given_S[at + len(prompt) :], rollout.completion(row)
        both = min(len(rest), len(completion))
        same = int(np.argmin(np.append(rest[:both] == completion[:both], False)))
        is_counted = counted_BS is None or bool(counted_BS[number, at + len(prompt) + same :][:1].any())
        if is_counted and len(np.unique(rest[same:])) > 1:  # else it was cut off there, and padded
            others.append(OtherTokens(1, len(given_BS), number, same, int(rest[same]), int(completion[same])))
    if not others or own < max(LEAST_OWN * len(given_BS), 2) or elsewhere > own / 4:
        return None
    return replace(others[0], rows=len(others))


def shift_of(given_BS: Array, tokens_BT: Array) -> int | None:
    """The input column of the first token column; the rightmost that fits."""
    width = tokens_BT.shape[1]
    for first in range(given_BS.shape[1] - width, -1, -1):
        if ((given_BS[:, first : first + width] == tokens_BT) | (tokens_BT < 0)).all():
            return first
    first = int(given_BS.shape[1]) - int(width) + 1  # model(ids[:, :-1]): the last token predicts nothing
    if first >= 1 and ((given_BS[:, first:] == tokens_BT[:, :-1]) | (tokens_BT[:, :-1] < 0)).all():
        return first
    return None


def jumbled_shift(found: Sequence[Found], tokens_BT: Array) -> int | None:
    """Where each row holds the sampled tokens in another order: the column where the completions begin."""
    starts = {row.completion for row in found}
    sampled = [row.rollout.sampled_BT[row.row] for row in found]
    if len(starts) > 1 or any(len(tokens) != tokens_BT.shape[1] for tokens in sampled):
        return None
    same = all(np.array_equal(np.sort(one), np.sort(other)) for one, other in zip(sampled, tokens_BT, strict=True))
    return starts.pop() if same and starts else None


def _first_place(text: bytes, wanted: Array) -> int | None:
    part = wanted.tobytes()
    at = text.find(part)
    while at >= 0 and at % 8:
        at = text.find(part, at + 1)
    return None if at < 0 else at // 8
