"""
## What it checks
The ids that the loss is computed on are the ids that the sampler returned, at every position of every row; and the
model was given the prompt that the sampler was given. Rows are compared one by one: a mean would hide one bad row.
In a dump it looks for ids that begin with the end of the prompt, or that do not spell the text beside them.

## Why it hurts
A policy gradient is only right for the tokens that were sampled. For others the reward says nothing.

## How to fix it
Keep the ids of the sampler from the engine to the loss. Do not go through text, do not sort or drop rows on the way.

    # before: the same text may become other tokens
    ids = tokenizer(tokenizer.batch_decode(sampled)).input_ids
    # after
    ids = sampled

## When it is wrong
Where a trainer adds tokens by design (an EOS after the limit, tool output): mark them in `forced`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from assay.doctor.catalogue import illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import edit_batch, healthy_batch, of_batch
from assay.doctor.facts.logprobs import completion_places
from assay.doctor.facts.prompts import prompt_token_keys
from assay.doctor.facts.repeats import completions
from assay.doctor.laws.pattern import describe
from assay.programs.run.watched import WatchedRun
from assay.record.batch import Array
from assay.verdict import Confidence, Fact, Severity, Verdict, finding, healthy

OVERLAP = 2  # ids: a single one may be a line end on both sides
LONGEST = 64  # ids of an overlap
FEW = 3  # rows
LETTERS = 200  # of text by which a table of letters is learned
HALF, NEARLY_ALL = 0.5, 0.9  # of the answers, and of the prompts, that the table spells
ROUNDS = 3
SHOWN = 24  # letters
Ids = tuple[int, ...]
BEGINNING = 3  # tokens of an answer by which it is recognised


def check_batch(batch: Batch) -> Verdict:
    is_dump = batch.get("sampled_tokens") is None and batch.settings.get("trainer") != "script"
    if is_dump and (verdict := _of_a_dump(batch)) is not None:
        return verdict
    tokens_BT, sampled_BT = batch.need("tokens", "sampled_tokens")
    inside_BT = completion_places(batch)
    forced_BT = batch.get("forced")
    if forced_BT is not None:
        inside_BT = inside_BT & ~forced_BT
    off_BT = inside_BT & (tokens_BT != sampled_BT)
    rows = len(tokens_BT)
    if off_BT.any():
        row, token = (int(places[0]) for places in np.nonzero(off_BT))
        return finding(
            f"the trained tokens are not the sampled ones at {describe(batch, off_BT, inside_BT)}",
            Fact("trained id", int(tokens_BT[row, token]), None, batch.step, row, token),
            Fact("sampled id there", int(sampled_BT[row, token])),
            Fact("rows with other tokens", int(off_BT.any(axis=1).sum()), 0),
        )
    verdict = _other_prompt(batch)
    return verdict or healthy(
        f"the trained tokens are the sampled ones in all {rows} rows", Fact("rows compared", rows)
    )


def _of_a_dump(batch: Batch) -> Verdict | None:
    """Of ids beside the text that was sampled, and of the prompt's ids beside both; None where they show nothing."""
    if batch.get("tokens") is None or batch.get("lengths") is None:
        return None
    rows = completions(batch)
    prompts = prompt_token_keys(batch)
    texts, asked = batch.texts.get("completion"), batch.texts.get("prompt")
    spelled = None if texts is None else _spelled(batch, rows, prompts)
    if spelled is not None and texts is not None:
        off = [row for row, text in enumerate(spelled) if text is not None and not _is_same(text, texts[row])]
        if off:
            row = off[0]
            return finding(
                f"the trained ids of {len(off)} of {len(rows)} rows are not those of their text"
                + _how_cut(rows, prompts, off),
                Fact("ids spell at first", repr((spelled[row] or "")[:SHOWN]), None, batch.step, row),
                Fact("the text begins", repr(texts[row][:SHOWN])),
                confidence=Confidence.LIKELY,
            )
    known = [] if spelled is None else [text for text in spelled if text is not None]
    unread = [row for row in range(len(rows)) if spelled is None or spelled[row] is None]
    begun = [row for row in unread if prompts is not None and _overlap(prompts[row], rows[row]) >= OVERLAP]
    if prompts is None or len(begun) < FEW:
        words = f"the trained ids spell the text in all {len(known)} rows that can be read"
        return healthy(words, Fact("rows", len(known))) if known else None
    # where the text repeats the end of the prompt too, the policy may have said it
    torn = [
        row
        for row in begun
        if texts is not None and asked is not None and not _repeats(asked[row].rstrip(), texts[row].lstrip())
    ]
    row = (torn or begun)[0]
    return finding(
        f"the completion ids of {len(begun)} of {len(rows)} rows begin with the last ids of their prompt: the answer "
        "is cut out of the sequence at a wrong place",
        Fact("ids of the prompt at the beginning", _overlap(prompts[row], rows[row]), 0, batch.step, row),
        Fact("of these rows, without that in their text", len(torn)),
        confidence=Confidence.LIKELY if len(torn) >= FEW else Confidence.POSSIBLE,
    )


def _spelled(batch: Batch, rows: Sequence[Ids], prompts: Sequence[Ids] | None) -> list[str | None] | None:
    """The rows as text, where each id is one letter (a table of bytes or letters); None where that is not so.

    The table is learned from prompts and answers that are as long as their text, or one id longer: an EOS. It is one
    if it spells nearly all prompts, or half of the answers. A row with ids or letters beyond it is None."""
    pairs = [list(zip(rows, batch.texts["completion"], strict=True))]
    if prompts is not None and "prompt" in batch.texts:
        pairs.append(list(zip(prompts, batch.texts["prompt"], strict=True)))
    table: dict[int, str] = {}
    for _ in range(ROUNDS):  # rows that are off vote for wrong letters: they are left out once the table is known
        votes: dict[int, Counter[str]] = {}
        for row, text in (pair for part in pairs for pair in part if len(pair[0]) - len(pair[1]) in (0, 1)):
            if not table or _agreement(row, text, table) >= NEARLY_ALL:
                for token, letter in zip(row, text, strict=False):
                    votes.setdefault(token, Counter())[letter] += 1
        table = {token: counter.most_common(1)[0][0] for token, counter in votes.items()}
    sure = {token for token, counter in votes.items() if counter[table[token]] >= NEARLY_ALL * counter.total()}
    shares = [np.mean([_is_same(_spell(row, table), text) for row, text in part]) for part in pairs]
    if sum(map(Counter.total, votes.values())) < LETTERS or not (shares[0] >= HALF or max(shares) >= NEARLY_ALL):
        return None
    return [_spell(row, table) if text.isascii() and sure.issuperset(row[:-1]) else None for row, text in pairs[0]]


def _agreement(row: Ids, text: str, table: Mapping[int, str]) -> float:
    pairs = list(zip(row, text, strict=False))
    return sum(table.get(token) == letter for token, letter in pairs) / max(len(pairs), 1)


def _spell(row: Ids, table: Mapping[int, str]) -> str:
    return "".join(table.get(token, "") for token in row)


def _is_same(spelled: str, text: str) -> bool:
    """Spaces at the ends do not count: some dumps strip them."""
    return spelled.strip() == text.strip()


def _how_cut(rows: Sequence[Ids], prompts: Sequence[Ids] | None, off: Sequence[int]) -> str:
    if prompts is not None and sum(_overlap(prompts[row], rows[row]) > 0 for row in off) > len(off) / 2:
        return ": they begin with the end of the prompt, so that the answer is cut out at a wrong place"
    return ""


def _overlap(prompt: Ids, answer: Ids) -> int:
    """How many ids at the end of the prompt the answer begins with; ids that are all alike, as line ends, are none."""
    for count in range(min(len(prompt), len(answer), LONGEST), 0, -1):
        if prompt[-count:] == answer[:count] and (count == 1 or len(set(answer[:count])) > 1):
            return count
    return 0


def _repeats(prompt: str, text: str) -> bool:
    return any(text.startswith(prompt[-count:]) for count in range(1, min(len(prompt), LONGEST * 8) + 1))


def check_run(run: WatchedRun) -> Iterator[Verdict]:
    """Rows that were not found among the sampled ones: in place of the sampled ids they hold others."""
    for update in run.updates:
        other = update.other_tokens
        if other is not None:
            yield finding(
                f"{other.rows} of {other.of} rows hold other tokens behind their prompt than were sampled for it: "
                "perhaps the answers were decoded and tokenised again",
                Fact("trained id", other.given, None, None, other.row, other.token),
                Fact("sampled id there", other.sampled),
                Fact("rows with other tokens", other.rows, 0),
                places=(update.pieces[0].forward.value.place,),
            )


def _other_prompt(batch: Batch) -> Verdict | None:
    """A finding where the scoring pass was given another prompt than the sampler; None where it is the same or not
    known."""
    names = ("input_ids", "attention_mask", "prompt_tokens", "prompt_mask", "tokens")
    if any(batch.get(name) is None for name in names):
        return None
    given_BS, visible_BS, prompts_BP, real_BP, tokens_BT = batch.need(*names)
    inside_BT = completion_places(batch)
    for row in range(len(given_BS)):
        seen = given_BS[row][visible_BS[row]]
        prompt, answer = prompts_BP[row][real_BP[row]], tokens_BT[row][inside_BT[row]]
        if len(answer) and not _holds(seen, prompt, answer):
            return finding(
                "the model was not given the prompt that the sampler was given",
                Fact("row with another prompt", row, None, batch.step, row),
                Fact("tokens of the sampler's prompt", len(prompt)),
            )
    return None


def _holds(seen: Array, prompt: Array, answer: Array) -> bool:
    """Whether the prompt stands in `seen`, right before the answer; LAW06 asks how much of that is there."""
    whole = np.concatenate([prompt, answer[:BEGINNING]])
    for width in range(len(whole), len(prompt), -1):
        starts = range(len(seen) - width + 1) if width == len(whole) else [len(seen) - width]
        if any(at >= 0 and np.array_equal(seen[at : at + width], whole[:width]) for at in starts):
            return True
    return bool(len(prompt)) and np.array_equal(seen[-len(prompt) :], prompt)  # nothing of the answer is given


def sick() -> Evidence:
    """One row has the tokens of another."""
    batch = healthy_batch()
    tokens_BT = batch.arrays["tokens"].copy()
    tokens_BT[5, 1] = 77
    return of_batch(edit_batch(batch, tokens=tokens_BT))


def well() -> Evidence:
    return of_batch(healthy_batch())


ILLNESS = illness(
    __name__,
    code="LAW02",
    name="law_of_identity",
    severity=Severity.FATAL,
    summary="the tokens that are trained are not those that were sampled",
    fix="Carry the sampler's own ids to the loss, row by row; never through text, and never in another order.",
    symptoms=("tokens differ from what was sampled",),
    sick=sick,
    well=well,
    explains=frozenset({"LAW01", "LAW03", "LAW05", "LAW06", "RAT01"}),
    explained_by=frozenset({"ALGN", "MASK"}),
)
