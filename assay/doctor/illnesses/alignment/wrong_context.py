"""
## What it checks
The model must score the completion behind the prompt that it was sampled for. The check puts each row's prompt and
completion together and looks for them in what the model was given (`input_ids` under its attention mask): both present,
once, and nothing else in front.

## Why it hurts
A completion behind another prompt, a prompt that is cut or missing, or one that comes twice has other probabilities
than the ones it was sampled with. The policy learns answers to questions that were not asked.

## How to fix it
Build the scored sequence from the very ids that the engine was given, row by row, before any shuffle.

    # before: the completions were shuffled, the prompts were not
    ids = torch.cat([prompt_ids, completion_ids[order]], dim=1)
    # after
    ids = torch.cat([prompt_ids, completion_ids], dim=1)[order]

## When it is wrong
If `prompt_tokens` were recorded without special tokens that the engine adds itself (BOS), the context is right and the
record is not. The last token of a completion may be left out of the input: it predicts nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from assay.doctor.catalogue import Scripts, illness
from assay.doctor.evidence import Batch, Evidence
from assay.doctor.examples import SIZE, edit_batch, healthy_batch, of_batch, scored_behind
from assay.doctor.examples.scripts import LOOP
from assay.doctor.facts.context import ScoredRow, last_place, rows_as_sampled
from assay.doctor.illnesses.alignment.attention_mask import has_extra_tokens
from assay.programs.facts.kinds import Kind
from assay.programs.facts.origin import network
from assay.programs.facts.positions import Span, Spans, cat_parts, constant, given_ids, plus
from assay.programs.facts.sampling.prompts import answers_left_out, fault_of_lonely, is_prompted
from assay.programs.facts.sampling.scoring import scorings
from assay.programs.graph import Value
from assay.programs.program import Program
from assay.record.batch import Array
from assay.verdict import Confidence, Fact, Place, Severity, Verdict, finding, healthy, not_applicable, suspected

FEWEST_TOKENS = 2  # tokens of a prompt: one that is dropped may be a second start token
FILLS = ("full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "empty", "new_full", "new_zeros")


def check_batch(batch: Batch) -> Verdict:
    rows = rows_as_sampled(batch)
    if not rows:
        return not_applicable("no row was trained as it was sampled: see retokenise and post_eos_in_loss")
    lost = [row for row in rows if row.places is None and not _is_cut(row)]
    if lost:
        causes = [_cause(row, rows) for row in lost]
        usual = max(dict.fromkeys(causes), key=causes.count)
        first = lost[causes.index(usual)]
        return finding(
            f"{len(lost)} of {len(rows)} rows were not scored as prompt + completion; in {causes.count(usual)} of them "
            f"{usual}",
            Fact("rows scored in another context", len(lost), 0, batch.step, first.number),
            Fact("tokens of prompt and completion", len(first.prompt) + len(first.completion), row=first.number),
            Fact("tokens given to the model", len(_seen(first)), row=first.number),
        )
    strange = [row for row in rows if has_extra_tokens(batch, row)]
    if strange:
        row = strange[0]
        twice = _holds(row.given_S[row.stray], row.prompt)
        what = "the prompt comes twice" if twice else f"{len(row.stray)} other tokens stand in front of the prompt"
        return finding(
            f"{len(strange)} of {len(rows)} rows were scored with more than their prompt: in row {row.number} {what}",
            Fact("tokens that are not the row's", len(row.stray), 0, batch.step, row.number, None),
            confidence=Confidence.PROVEN if twice else Confidence.LIKELY,
        )
    return healthy(f"all {len(rows)} rows were scored as prompt + completion", Fact("rows compared", len(rows)))


def check_source(program: Program) -> Iterator[Verdict]:
    spans = Spans(program)
    seen: set[Place] = set()
    for scoring, call, fault in answers_left_out(program):
        seen.add(call.place)
        yield suspected(
            f"{call.place.text} is given {_shown_ids(call)}, {fault}",
            places=(call.place, scoring.value.place),
            why=program.kinds.why(scoring.value),
        )
    for scoring in scorings(program):
        for call in program.origins.forwards(scoring.logits):
            ids = given_ids(call)
            if ids is None or call.place in seen or _is_encoder(call):
                continue
            is_drawn = program.kinds.is_a(ids, Kind.SAMPLED)
            lonely = "" if is_drawn else fault_of_lonely(program, call, ids)
            if not is_drawn and not lonely:
                continue
            seen.add(call.place)
            tokens, fed = spans.of(scoring.tokens), spans.of(ids)
            fault = lonely or _without_prompt(program, spans, tokens, fed) or _other_rows(fed)
            fault = fault or fault_of_lonely(program, call, ids)
            if not fault:
                yield healthy("the scored sequence begins with its prompt", places=(call.place,))
                continue
            yield suspected(
                f"{call.place.text} scores {ids.shown}, {fault}",
                places=(call.place, ids.place),
                why=program.kinds.why(scoring.value),
            )


def _shown_ids(call: Value) -> str:
    given = [value for name, value in call.arguments.items() if name.startswith("given_")]
    return given[0].shown if given else "ids"


def _is_cut(row: ScoredRow) -> bool:
    """Whether the pass got the prompt and the first tokens of the completion: in the right context, and LAW06 asks for
    the others."""
    seen = _seen(row)
    behind = len(seen) - len(row.prompt)
    wanted = np.concatenate([row.prompt, row.completion[: max(behind, 0)]])
    return 0 < behind < len(row.completion) and np.array_equal(seen, wanted)


def _cause(row: ScoredRow, rows: list[ScoredRow]) -> str:
    seen = _seen(row)
    has_prompt, has_completion = _holds(seen, row.prompt), _holds(seen, row.completion)
    if has_prompt and has_completion:
        return "something stands between prompt and completion"
    if has_completion:
        before = seen[: len(seen) - len(row.completion)]
        if len(before) and _holds(row.prompt, before):  # a short prompt of another row may be a part of this one too
            return f"the prompt is cut to {len(before)} of its {len(row.prompt)} tokens"
        strangers = [other.prompt for other in rows if not np.array_equal(other.prompt, row.prompt)]
        if any(np.array_equal(before[-len(prompt) :], prompt) for prompt in strangers):
            return "the completion stands behind another row's prompt"
        return "the prompt is missing" if not len(before) else "the prompt is another one"
    if has_prompt:
        if any(_holds(seen, other.completion) for other in rows):
            return "the prompt is followed by another row's completion"
        return "the completion is not the trained one"
    return "neither the prompt nor the completion is there"


def _seen(row: ScoredRow) -> Array:
    return row.given_S if row.attended_S is None else row.given_S[row.attended_S]


def _holds(ids: Array, part: Array) -> bool:
    return last_place(ids, part) is not None


def _is_encoder(call: Value) -> bool:
    model = network(call.arguments.get("model") or call.arguments["callee"])
    return "Seq2Seq" in model.name or "T5" in model.name or "past_key_values" in " ".join(call.arguments)


def _without_prompt(program: Program, spans: Spans, tokens: Span, fed: Span) -> str:
    """Whether what goes in begins where the scored tokens begin, and these begin behind a prompt."""
    parts = cat_parts(fed.root)
    if parts is not None and len(parts) == 2 and parts[0].name.rpartition(".")[2] in FILLS:
        part = spans.of(parts[1])
        if constant(part.start) is None and part.root is tokens.root:
            return "which is a filler and the completion: the prompt it was drawn after is not there"
        return ""
    dropped, ahead = constant(fed.start), constant(plus(tokens.start, fed.start, -1))
    if fed.root is tokens.root and ahead in (0, 1) and (dropped is None or dropped >= FEWEST_TOKENS):
        return "which begins behind the prompt: the completion was drawn after it"
    if fed.root.op == "stack" and fed.root is tokens.root and is_prompted(program, fed.root):
        return "which is drawn tokens only: the prompt they were drawn after is not there"
    return ""


def _other_rows(fed: Span) -> str:
    parts = cat_parts(fed.root)
    first = parts[0] if parts is not None and len(parts) > 1 else None
    is_moved = first is not None and first.op in ("roll", "flip")
    if first is not None and is_moved and first.setting("dims", first.setting("dim", None)) == 0:
        return "in which each completion stands behind the prompt of another row"
    return ""


def _prompts_moved_by(groups: int) -> Evidence:
    """Each group's completions stand behind the prompt of another group; mask and positions fit what is there."""
    batch = healthy_batch()
    prompts_BP, mask_BP = (
        np.roll(batch.arrays[name], groups * SIZE, axis=0) for name in ("prompt_tokens", "prompt_mask")
    )
    return of_batch(edit_batch(batch, **scored_behind(batch, prompts_BP, mask_BP)))


SICK = LOOP.replace("    logits = model(ids)[:, prompts.shape[1] - 1:-1] / T", "    logits = model(completions) / T")
SICK = SICK.replace(
    "F.log_softmax(logits, dim=-1).gather(-1, completions",
    "F.log_softmax(logits[:, :-1], dim=-1).gather(-1, completions[:, 1:]",
)

ILLNESS = illness(
    __name__,
    code="ALGN03",
    severity=Severity.FATAL,
    summary="completions are scored after another prompt, or without one",
    fix="Score prompt + completion of one and the same row, with the ids that the engine was given.",
    symptoms=(
        "log-probs computed without the prompt",
        "completions scored with the wrong prompt",
        "log-probs very low for own samples",
    ),
    sick=lambda: _prompts_moved_by(1),
    well=lambda: _prompts_moved_by(0),
    scripts=Scripts(SICK, LOOP),
    explains=frozenset(
        {"SAMP06", "SAMP01", "ALGN01", "ALGN04", "ALGN05", "ALGN10", "SYNC01", "RAT01", "RAT07", "KL05"}
        | {"ADV02", "LAW11"}
    ),
)
