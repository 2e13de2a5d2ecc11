"""Batches --> what the page shows of single completions: groups, cells, texts, and numbers of every token.

A page must fit in a mail: the numbers of every completion travel, texts and tokens only of whole groups as long as
there is room, those that a finding names first. What was left out is named.

Shape legend: B completions, T completion tokens.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.doctor.diagnosis import Diagnosis
from assay.doctor.evidence import Batch
from assay.record.batch import Array
from assay.report.markup import readable
from assay.report.opened import is_examined
from assay.report.pieces import Pieces
from assay.report.sampled_steps import clipped_sides, is_clipped_by_token
from assay.report.series import rounded

MOST_TOKENS = 64 * 512  # of all completions whose tokens travel
MOST_COMPLETIONS = 512
LONGEST_TEXT = 4_000  # characters of a prompt, or of a completion without tokens; the middle of a longer one is cut
LONGEST_PIECE = 200  # characters of one token
MOST_CELLS = 6_000  # completions that are shown as cells

# name -> what it is, for its reader
CHANNELS: dict[str, str] = {
    "gradient": "minus d loss / d log-prob, times the loss tokens: above 0 the loss makes the token likelier",
    "log_ratio": "log of new / old",
    "entropy": "entropy of the policy at this place, in nats",
    "kl": "KL to the reference (k3)",
    "logprob": "log-prob under the policy being trained",
    "mismatch": "log-prob of old minus that of the sampler",
    "advantage": "advantage of this token",
}
DERIVED = {
    "ratio": "new / old",
    "surprise": "log-prob + entropy: below 0 the token was less likely than the policy's own draws are on average",
}


@dataclass(frozen=True)
class Stored:
    """What the page holds of single completions, and sentences on what it does not hold."""

    sources: list[dict[str, Any]]
    completions: list[dict[str, Any]]
    prompts: list[str]
    left_out: list[str]


@dataclass
class _Room:
    tokens: int
    completions: int = MOST_COMPLETIONS
    prompts: dict[str, int] = field(default_factory=dict)
    stored: list[dict[str, Any]] = field(default_factory=list)

    def prompt(self, text: str) -> int:
        return self.prompts.setdefault(shortened(text), len(self.prompts))


def stored_completions(
    batches: Sequence[Batch], diagnosis: Diagnosis, pieces: Pieces, *, tokens: int = MOST_TOKENS
) -> Stored:
    usable = [batch for batch in batches if "tokens" in batch.arrays and len(batch.arrays["tokens"])]
    cells = 0
    shown: list[Batch] = []
    for batch in usable:
        cells += len(batch.arrays["tokens"])
        if cells <= MOST_CELLS or not shown:
            shown.append(batch)
    room = _Room(tokens)
    tables = [_Table(batch, _named_rows(diagnosis, batch)) for batch in shown]
    for place, group in _in_turn([table.by_interest for table in tables]):
        tables[place].store(group, room, pieces)
    sources = [table.as_source(room, pieces) for table in tables]
    return Stored(sources, room.stored, list(room.prompts), _left_out(tables, len(usable), room))


class _Table:
    """One batch, by groups."""

    def __init__(self, batch: Batch, named: set[int]) -> None:
        self.batch, self.named = batch, named
        self.tokens_BT = batch.arrays["tokens"]
        count, width = self.tokens_BT.shape
        mask_BT = batch.get("mask")
        self.mask_BT = np.ones((count, width), bool) if mask_BT is None else mask_BT
        self.lengths_B = _lengths(batch, self.mask_BT)
        # tokens behind the end that are in the loss, as they never should be, are shown too
        self.shown_B = np.maximum(self.lengths_B, _ends(self.mask_BT))
        self.channels = _channels(batch)
        self.clipped_BT = _clipped(batch, self.channels.get("log_ratio"))
        self.rewards_B = batch.get("rewards")
        self.advantages_B = _row_advantages(batch, self.mask_BT)
        self.groups = _groups(batch, count)
        ends = batch.settings.get("eos_ids", ())
        self.ends = {ends} if isinstance(ends, int) else set(ends)
        self.places: dict[int, int] = {}  # row -> where it is stored
        self.peaks_B = self._peaks()

    def _peaks(self) -> Array:
        """The largest |log-ratio| of each row."""
        log_BT = self.channels.get("log_ratio")
        if log_BT is None:
            return np.full(len(self.tokens_BT), np.nan)
        size_BT = np.where(self.mask_BT & np.isfinite(log_BT), np.abs(log_BT), -1.0)
        peaks_B = size_BT.max(axis=1, initial=-1.0)
        return np.where(peaks_B < 0, np.nan, peaks_B)

    @property
    def by_interest(self) -> list[list[int]]:
        """Groups that a finding names, then by the spread of their rewards, then by their largest |log-ratio|."""

        def interest(rows: list[int]) -> tuple[float, ...]:
            peak = np.nan_to_num(self.peaks_B[rows]).max(initial=0.0)
            return (-len(self.named & set(rows)), -self._spread(rows), -float(peak))

        return sorted(self.groups, key=interest)

    def _spread(self, rows: list[int]) -> float:
        values = self.rewards_B if self.rewards_B is not None else self.advantages_B
        known = [] if values is None else [float(value) for value in values[rows] if np.isfinite(value)]
        return max(known) - min(known) if known else 0.0

    def store(self, rows: list[int], room: _Room, pieces: Pieces) -> None:
        """The whole group, or the named rows of it if it does not fit."""
        needed = int(self.shown_B[rows].sum())
        if needed > room.tokens or len(rows) > room.completions:
            rows = [row for row in rows if row in self.named]
            needed = int(self.shown_B[rows].sum())
        if not rows or needed > room.tokens or len(rows) > room.completions:
            return
        room.tokens -= needed
        room.completions -= len(rows)
        for row in rows:
            self.places[row] = len(room.stored)
            room.stored.append(self._completion(row, pieces))

    def _completion(self, row: int, pieces: Pieces) -> dict[str, Any]:
        sampled, length = int(self.lengths_B[row]), int(self.shown_B[row])
        ids = self.tokens_BT[row, :length].tolist()
        texts = self.batch.texts.get("completion")
        text = texts[row] if texts else None
        cut = [*pieces.of(ids[:sampled], text, self.ends), *pieces.of(ids[sampled:], None, self.ends)]
        found: dict[str, Any] = {"ids": _packed(ids, "<u4"), "pieces": list(map(_short_piece, cut))}
        if text and not pieces.knows_texts and len(text) not in (sampled, sampled - 1):
            found["text"] = shortened(text)  # the pieces are ids alone
        found["masked"] = [place for place in range(length) if not self.mask_BT[row, place]]
        if self.clipped_BT is not None:
            found["clipped"] = np.flatnonzero(self.clipped_BT[row, :length]).tolist()
        found["channels"] = {
            name: _packed(array_BT[row, :length], "<f2")
            for name, array_BT in self.channels.items()
            if np.isfinite(array_BT).any()
        }
        return found

    def as_source(self, room: _Room, pieces: Pieces) -> dict[str, Any]:
        batch, update = self.batch, self.batch.numbers.get("update")
        ids = batch.texts.get("prompt_id")
        groups = [
            {
                "prompt": self._prompt(rows[0], room, pieces),
                "id": shortened(ids[rows[0]], 80) if ids else "",
                "rows": rows,
            }
            for rows in self.groups
        ]
        return {
            "name": readable(batch.source),
            "step": batch.step,
            "update": None if update is None else int(update) + 1,
            "examined": is_examined(batch),
            "groups": groups,
            "length": self.lengths_B.tolist(),
            "reward": _numbers(self.rewards_B),
            "advantage": _numbers(self.advantages_B),
            "peak": _numbers(self.peaks_B),
            "cut": _flags(batch.get("finished")),
            "out": np.flatnonzero(~self.mask_BT.any(axis=1)).tolist(),
            "clipped": None if self.clipped_BT is None else self.clipped_BT.sum(axis=1).tolist(),
            "stored": {str(row): place for row, place in self.places.items()},
            "channels": list(self.channels),
            "named": sorted(self.named),
        }

    def _prompt(self, row: int, room: _Room, pieces: Pieces) -> int:
        """Where its text is; -1 if neither a text nor ids were recorded."""
        texts, tokens_BP = self.batch.texts.get("prompt"), self.batch.get("prompt_tokens")
        if texts:
            return room.prompt(texts[row])
        if tokens_BP is None:
            return -1
        mask_BP = self.batch.get("prompt_mask")
        ids = tokens_BP[row] if mask_BP is None else tokens_BP[row][mask_BP[row]]
        return room.prompt("".join(pieces.of(ids.tolist(), None)))


def _in_turn(queues: Sequence[Sequence[list[int]]]) -> list[tuple[int, list[int]]]:
    """The first of each queue, then the second of each, and so on."""
    longest = max(map(len, queues), default=0)
    return [(at, queue[turn]) for turn in range(longest) for at, queue in enumerate(queues) if turn < len(queue)]


def _named_rows(diagnosis: Diagnosis, batch: Batch) -> set[int]:
    count = len(batch.arrays["tokens"])
    return {
        fact.row
        for word in diagnosis.findings
        if word.source == batch.source
        for fact in word.verdict.facts
        if fact.row is not None and 0 <= fact.row < count
    }


def _channels(batch: Batch) -> dict[str, Array]:
    """Those that were recorded, by CHANNELS."""
    new_BT, old_BT, ref_BT, sampler_BT = (batch.get(f"{name}_logprobs") for name in ("new", "old", "ref", "sampler"))
    found: dict[str, Array | None] = dict.fromkeys(CHANNELS)
    gradients_BT, mask_BT = batch.get("gradients"), batch.get("mask")
    if gradients_BT is not None:
        tokens = batch.settings.get("loss_tokens") or (gradients_BT.size if mask_BT is None else int(mask_BT.sum()))
        found["gradient"] = -gradients_BT * float(tokens)
    with np.errstate(over="ignore", invalid="ignore"):
        if new_BT is not None and old_BT is not None:
            found["log_ratio"] = new_BT - old_BT
        if new_BT is not None and ref_BT is not None:
            found["kl"] = np.exp(ref_BT - new_BT) - (ref_BT - new_BT) - 1
        if old_BT is not None and sampler_BT is not None:
            found["mismatch"] = old_BT - sampler_BT
    found["logprob"] = new_BT if new_BT is not None else old_BT if old_BT is not None else sampler_BT
    entropy_BT = batch.get("entropy")
    found["entropy"] = entropy_BT if entropy_BT is not None else batch.get("plain_entropy")
    advantages = batch.get("advantages")
    found["advantage"] = advantages if advantages is not None and advantages.ndim == 2 else None
    return {name: array for name, array in found.items() if array is not None}


def _clipped(batch: Batch, log_ratio_BT: Array | None) -> Array | None:
    """As the trainer counted it, else by the ratio, the advantage and the bounds of the loss."""
    recorded_BT = batch.get("clipped")
    if recorded_BT is not None:
        return np.asarray(recorded_BT)
    if log_ratio_BT is None or "advantages" not in batch.arrays or not is_clipped_by_token(batch.settings):
        return None
    below_BT, above_BT = clipped_sides(log_ratio_BT, batch.token_advantages, batch.settings)
    mask_BT = batch.get("mask")
    return np.asarray((below_BT | above_BT) & (True if mask_BT is None else mask_BT))


def _lengths(batch: Batch, mask_BT: Array) -> Array:
    """Without recorded lengths a row ends with its last loss token."""
    width = mask_BT.shape[1]
    lengths_B = batch.get("lengths")
    if lengths_B is not None:
        return np.asarray(np.clip(lengths_B, 0, width))
    return np.asarray(np.where(mask_BT.any(axis=1), _ends(mask_BT), width))


def _ends(mask_BT: Array) -> Array:
    """The place behind the last loss token of each row; 0 of a row without any."""
    ends_B = mask_BT.shape[1] - np.argmax(mask_BT[:, ::-1], axis=1)
    return np.asarray(np.where(mask_BT.any(axis=1), ends_B, 0))


def _row_advantages(batch: Batch, mask_BT: Array) -> Array | None:
    advantages = batch.get("advantages")
    if advantages is None or advantages.ndim == 1:
        return advantages
    counts_B = np.maximum(mask_BT.sum(axis=1), 1)
    return np.asarray(np.where(mask_BT, advantages, 0.0).sum(axis=1) / counts_B)


def _groups(batch: Batch, count: int) -> list[list[int]]:
    """Rows by group; by prompt where groups are unknown."""
    names: Sequence[Any] = list(range(count))
    if "group_ids" in batch.arrays:
        names = batch.arrays["group_ids"].tolist()
    elif "prompt_id" in batch.texts or "prompt" in batch.texts:
        names = list(batch.texts.get("prompt_id") or batch.texts["prompt"])
    elif "prompt_tokens" in batch.arrays:
        names = [row.tobytes() for row in batch.arrays["prompt_tokens"]]
    found: dict[Any, list[int]] = {}
    for row, name in enumerate(names):
        found.setdefault(name, []).append(row)
    return list(found.values())


def shortened(text: str, longest: int = LONGEST_TEXT) -> str:
    """A readable text that loses its middle if it is long."""
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]} [... {len(text) - longest:,} characters left out ...] {text[-half:]}"
    return readable(text)


def _short_piece(piece: str) -> str:
    return piece if len(piece) <= LONGEST_PIECE else f"{piece[:LONGEST_PIECE]}[...]"


def _packed(values: Any, kind: str) -> str:
    with np.errstate(over="ignore"):
        return base64.b64encode(np.asarray(values).astype(kind).tobytes()).decode("ascii")


def _numbers(values: Array | None) -> list[float | None] | None:
    return None if values is None else [rounded(float(value)) for value in values]


def _flags(finished_B: Array | None) -> list[int]:
    return [] if finished_B is None else np.flatnonzero(~finished_B).tolist()


def _left_out(tables: Sequence[_Table], batches: int, room: _Room) -> list[str]:
    total = sum(len(table.tokens_BT) for table in tables)
    sentences = []
    if len(room.stored) < total:
        sentences.append(
            f"Text and tokens of {len(room.stored):,} of {total:,} completions are in this page: groups that a finding "
            "names, then those whose rewards differ most. The numbers of all of them are."
        )
    if len(tables) < batches:
        sentences.append(f"{batches - len(tables)} of {batches} recorded batches were left out.")
    long = sum(int((table.lengths_B > 0).any()) and _has_long(table.batch.texts) for table in tables)
    if long:
        sentences.append(f"Texts of more than {LONGEST_TEXT:,} characters lost their middle.")
    return sentences


def _has_long(texts: Mapping[str, Sequence[str]]) -> bool:
    return any(len(text) > LONGEST_TEXT for text in texts.get("prompt", ()))
