"""What the model got for each row, and what it should have got: prompt + completion, and padding.

Shape legend: B completions, T completion tokens, P prompt tokens, S tokens given to the model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from assay.doctor.evidence import Batch
from assay.doctor.facts.logprobs import gap_between, row_spans
from assay.record.batch import Array
from assay.verdict import Fact, Missing


@dataclass(frozen=True, eq=False)
class ScoredRow:
    """One row of the scoring pass. `places` are the columns that hold its prompt and completion; None: not found."""

    number: int
    prompt: Array
    completion: Array
    given_S: Array
    attended_S: Array | None  # None: no attention mask is on record
    places: Array | None

    @property
    def stray(self) -> Array:
        """Attended columns that do not belong to the row but lie before or inside it, so that its tokens see them."""
        assert self.places is not None
        assert self.attended_S is not None
        before_S = np.arange(len(self.given_S)) < self.places[-1]
        before_S[self.places] = False
        return np.flatnonzero(before_S & self.attended_S)

    @property
    def hidden(self) -> Array:
        """Columns of the row that are not attended."""
        assert self.places is not None
        assert self.attended_S is not None
        return self.places[~self.attended_S[self.places]]


def rows_given(batch: Batch) -> list[ScoredRow]:
    """All rows with a completion. Raises Missing without input_ids, tokens or the prompts."""
    given_BS, tokens_BT, prompts_BP, prompt_mask_BP = batch.need("input_ids", "tokens", "prompt_tokens", "prompt_mask")
    attention_BS, mask_BT = batch.get("attention_mask"), batch.get("mask")
    rows = []
    for number, (start, end) in enumerate(zip(*row_spans(batch), strict=True)):
        if end <= start:
            continue
        prompt, completion = prompts_BP[number][prompt_mask_BP[number]], tokens_BT[number][start:end]
        attended_S = None if attention_BS is None else attention_BS[number]
        places = _places(given_BS[number], prompt, completion, attended_S)
        if places is None and mask_BT is not None:  # rows of prompt and completion
            for answer in _behind_prompt(tokens_BT[number], prompt, mask_BT[number]):
                again = _places(given_BS[number], prompt, answer, attended_S)
                if again is not None and (places is None or _is_attended(again, attended_S)):
                    completion, places = answer, again
        rows.append(ScoredRow(number, prompt, completion, given_BS[number], attended_S, places))
    if not rows:
        raise Missing("a row with completion tokens")
    return rows


def rows_as_sampled(batch: Batch) -> list[ScoredRow]:
    """Rows trained on the ids that were sampled, and on no more: only these are as long as `lengths` says."""
    rows = rows_given(batch)
    tokens_BT, sampled_BT, lengths_B, mask_BT = (
        batch.get(name) for name in ("tokens", "sampled_tokens", "lengths", "mask")
    )
    if tokens_BT is None or sampled_BT is None or lengths_B is None:
        return rows
    behind_BT = np.arange(tokens_BT.shape[1]) >= lengths_B[:, None]
    same_B = ((tokens_BT == sampled_BT) | behind_BT).all(axis=1)
    if mask_BT is not None:
        same_B &= ~(mask_BT & behind_BT).any(axis=1)
    return [row for row in rows if same_B[row.number]]


def _behind_prompt(tokens_T: Array, prompt: Array, mask_T: Array) -> list[Array]:
    """What may be the completion of a row that begins with its prompt: all after it, or from the first loss token."""
    if not mask_T.any():
        return []
    first, last = int(np.argmax(mask_T)), len(tokens_T) - int(np.argmax(mask_T[::-1]))
    for rest in (prompt, prompt[1:]):  # log-probs have no place for the first token
        begin = last_place(tokens_T[:first], rest)
        if begin is not None:
            return [tokens_T[begin + len(rest) : last], tokens_T[first:last]]
    return []


def _places(given_S: Array, prompt: Array, completion: Array, attended_S: Array | None) -> Array | None:
    whole = np.concatenate([prompt, completion])
    if attended_S is not None and np.array_equal(given_S[attended_S][: len(whole)], whole):
        return np.flatnonzero(attended_S)[: len(whole)]
    in_one_piece = None
    for wanted in (whole, whole[:-1]):  # the last token predicts nothing, so some trainers do not feed it
        first = last_place(given_S, wanted)
        if first is not None:
            in_one_piece = np.arange(first, first + len(wanted))
            break
    if in_one_piece is not None and (attended_S is None or attended_S[in_one_piece].all()):
        return in_one_piece
    # padding may have the id of EOS and look like the completion: what is attended comes first
    apart = _places_apart(given_S, prompt, completion, attended_S)
    return apart if in_one_piece is None or (apart is not None and _is_attended(apart, attended_S)) else in_one_piece


def _is_attended(places: Array, attended_S: Array | None) -> bool:
    return attended_S is not None and bool(attended_S[places].all())


def _places_apart(given_S: Array, prompt: Array, completion: Array, attended_S: Array | None) -> Array | None:
    """Of a prompt padded on the right, and the completion after the padding."""
    head, tail = last_place(given_S, prompt), last_place(given_S, completion)
    if head is None or tail is None or tail < head + len(prompt):
        return None
    between_S = given_S[head + len(prompt) : tail]
    is_padding = len(set(between_S.tolist())) == 1
    if attended_S is not None and not is_padding:
        is_padding = not attended_S[head + len(prompt) : tail].any()
    if not is_padding:
        return None
    return np.concatenate([np.arange(head, head + len(prompt)), np.arange(tail, tail + len(completion))])


def last_place(given_S: Array, wanted: Array) -> int | None:
    """Where `wanted` stands in the row for the last time; padding stands before it."""
    if not len(wanted) or len(wanted) > len(given_S):
        return None
    text, part, size = given_S.tobytes(), wanted.tobytes(), given_S.itemsize
    at = text.rfind(part)
    while at >= 0 and at % size:  # between two numbers
        at = text.rfind(part, 0, at + len(part) - 1)
    return None if at < 0 else at // size


def is_padding(batch: Batch, ids: Array) -> bool:
    """Whether these ids can be padding: the stated id, else one and the same id."""
    stated = batch.settings.get("pad_id")
    return bool((ids == stated).all()) if stated is not None else len(set(ids.tolist())) == 1


@dataclass(frozen=True)
class Move:
    """How far log-probs are from each other where one set of them was computed in another way."""

    how: str
    mean: float
    is_rounding: bool
    fact: Fact

    def __str__(self) -> str:
        return f"log-probs change by {self.mean:.2g} on average {self.how}"


def _move(batch: Batch, how: str, name: str, other: str) -> Move:
    gap = gap_between(batch, name, other)
    fact = Fact(f"mean change of a log-prob {how}", gap.mean, None, batch.step, gap.row, gap.token)
    return Move(how, gap.mean, gap.is_rounding(batch.settings.get("dtype")), fact)


def moved_by_batch_mates(batch: Batch) -> Move | None:
    """The largest change with padding, order and batch-mates. None if that was not tried, or if the same scoring
    repeated gives other numbers anyway."""
    if batch.get("scored_again") is None:
        return None
    if batch.get("new_logprobs") is not None and not _move(batch, "", "new_logprobs", "scored_again").is_rounding:
        return None
    ways = {
        "scored_padded": "with padding added",
        "scored_alone": "one row at a time",
        "scored_permuted": "in another order",
    }
    moves = [_move(batch, how, name, "scored_again") for name, how in ways.items() if batch.get(name) is not None]
    return max(moves, key=lambda move: move.mean, default=None)


def moved_at_all(batch: Batch) -> Move | None:
    """The same, and how far the log-probs of the first update are from the plain ones."""
    moved = moved_by_batch_mates(batch)
    has_both = all(batch.get(name) is not None for name in ("new_logprobs", "plain_logprobs"))
    if not has_both or batch.numbers.get("update") != 0:
        return moved
    plain = _move(batch, "against the plain log-probs", "new_logprobs", "plain_logprobs")
    return moved if moved is not None and moved.mean >= plain.mean else plain


def mask_faults(batch: Batch) -> dict[int, str]:
    """What is wrong with the attention mask of a row, by row. Rows in another context are not judged."""
    faults = {}
    for row in rows_given(batch):
        if row.places is None or row.attended_S is None:
            continue
        stray, hidden = row.stray, row.hidden
        if len(hidden):
            where = f"input column {hidden[0]} (id {row.given_S[hidden[0]]})"
            faults[row.number] = f"{len(hidden)} of its own tokens are hidden, the first at {where}"
        elif len(stray) and is_padding(batch, row.given_S[stray]):
            faults[row.number] = f"{len(stray)} padding tokens are attended to"
    return faults
