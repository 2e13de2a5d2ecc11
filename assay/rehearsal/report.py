"""One report of a text and its rehearsal: what was read, what the numbers prove, and what they contradict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from assay.doctor.catalogue import catalogue
from assay.doctor.command import exit_code
from assay.doctor.diagnosis import Diagnosis, Word, diagnose, root_causes
from assay.doctor.evidence import Curves, Evidence
from assay.doctor.prove_edits import with_edits
from assay.doctor.report import Report, write
from assay.doctor.report.select import select
from assay.programs.run.watched import WatchedRun
from assay.rehearsal.stage import Kind
from assay.rehearsal.trust import doubts, lowered, words_on
from assay.verdict import Confidence, Place, State, not_enough_data
from assay.watch.ratio_table import ratio_lines
from assay.watch.report import evidence_of


def report(
    run: WatchedRun, settings: Mapping[str, Any], curves: Curves | None, rehearsal: Mapping[str, Any]
) -> dict[str, Any]:
    """{text, counts, code, findings}, as watch/report.py makes it."""
    evidence = replace(evidence_of(run), curves=curves)
    evidence = replace(evidence, notes=(*notes_on(rehearsal), *evidence.notes))
    illnesses = select(catalogue(), settings["chosen"], settings["ignored"])
    both = diagnose(evidence, illnesses)
    read = diagnose(Evidence(programs=evidence.programs), illnesses)
    seen = diagnose(replace(evidence, programs=()), illnesses)
    kinds: list[Kind] = [made["kind"] for made in rehearsal["replaced"]]
    autocast = any(value.context.autocast for value in run.graph.values)
    rounds = autocast or any(dtype.endswith("float16") for model in run.models for dtype in model.dtypes)
    words = tuple(
        join(*three, doubts(three[0].code, kinds, autocast=autocast, rounds=rounds))
        for three in zip(both.words, read.words, seen.words, strict=True)
    )
    words = lowered(words, root_causes(words))
    diagnosis = with_edits(Diagnosis(words, root_causes(words), both.notes), evidence.programs)
    result = replace(Report.of(run.script, evidence, diagnosis), rehearsal=rehearsal)
    text = in_form(result, settings)
    if settings["how"] == "full":
        text = "\n".join([text, "", *ratio_lines(run)])
    return packed(result, text, settings)


def in_form(result: Report, settings: Mapping[str, Any]) -> str:
    how, width, colour = settings["how"], settings["width"], settings["colour"]
    return write([result], how, width=width, colour=colour, all_passes=settings["all_passes"])


def packed(result: Report, text: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "text": text,
        "counts": result.counts,
        "code": exit_code([result], settings["fail_on"] or "never"),
        "findings": [
            [word.code, word.confidence.value, word.verdict.message]
            for word in result.diagnosis.findings
            if word.confidence is not Confidence.POSSIBLE
        ],
    }


def join(both: Word, read: Word, seen: Word, doubted: Sequence[Kind]) -> Word:
    """Of the same illness: the word on text and run, on the text alone, on the run alone."""
    is_read, is_seen = (word.verdict.state is State.FINDING for word in (read, seen))
    if doubted and (is_seen or seen.verdict.state is State.HEALTHY):
        if is_read:
            return replace(read, seen_in="text")
        if read.verdict.state is State.HEALTHY:
            return read
        reason = f"values of its own: in a rehearsal {words_on(doubted)} are replaced"
        return replace(both, verdict=not_enough_data(reason), source="", batches=0)
    if is_read and not is_seen and _contradicts(seen, read):
        place = read.verdict.places[0]
        message = f"{seen.verdict.message}; line {place.line} looked otherwise, and the rehearsal contradicts it"
        return replace(seen, verdict=replace(seen.verdict, message=message))
    return both


def _contradicts(seen: Word, read: Word) -> bool:
    """Whether the numbers were found healthy at the very line that the text is suspected of."""
    if seen.verdict.state is not State.HEALTHY or not read.verdict.places:
        return False
    suspected = read.verdict.found_at or read.verdict.places[:1]
    return all(any(_is_same(place, other) for other in seen.verdict.places) for place in suspected)


def _is_same(one: Place, other: Place) -> bool:
    return (
        one.file == other.file
        and one.line <= max(other.line, other.end_line)
        and other.line <= max(one.line, one.end_line)
    )


def notes_on(rehearsal: Mapping[str, Any]) -> list[str]:
    """What the reader must know of how it ran, before the findings."""
    made_rewards = [made for made in rehearsal["replaced"] if made["kind"] == "rewards"]
    lines = [f"rewards are not the script's: {made['what']}: {made['by']}" for made in made_rewards]
    if "first step" not in rehearsal["seconds"]:
        before = rehearsal["steps_before_sampling"]
        seen = f"made {before} optimizer steps and sampled nothing" if before else "never reached an optimizer step"
        lines.append(f"the rehearsal {seen}: no finding here says nothing about the update")
    if rehearsal["arguments"]:
        lines.append(f"rehearsed with made arguments: {' '.join(rehearsal['arguments'])}")
    for obstacle in rehearsal["obstacles"]:
        where = f"{obstacle['file']}:{obstacle['line']}: " if obstacle["file"] else ""
        lines.append(f"the rehearsal could not go on as the script would: {where}{obstacle['what']}")
    return lines
