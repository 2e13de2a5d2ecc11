"""The doctor's word as a part of the page: findings first, then what was found healthy, then what was not looked at."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from assay.doctor.diagnosis import Word
from assay.doctor.report import Report
from assay.doctor.report.frame import diff, frame
from assay.machine.terminal import plural, quote
from assay.record.batch import Batch
from assay.report.markup import Markup, element, join
from assay.report.opened import Opened
from assay.verdict import Fact, State

MOST_EXAMPLES = 3
Sources = Mapping[str, Batch]  # by what a word names
_CAPITALS = {"kl": "KL", "eos": "EOS", "bos": "BOS", "ppo": "PPO", "lora": "LoRA"}
# code or family of an illness -> the chart in which one sees it, by its key and its title
SEEN_IN = {
    "MET01": ("entropy", "Entropy"), "MET02": ("kl", "KL"), "MET03": ("length", "Length and truncation"),
    "MET05": ("gradient", "Gradient norm"), "MET": ("reward", "Reward"), "ADV09": ("groups", "Groups"),
    "SAMP": ("mismatch", "Sampler against trainer"), "SYNC": ("mismatch", "Sampler against trainer"),
    "CLIP": ("clip", "Clipped tokens"), "RAT": ("clip", "Clipped tokens"), "KL": ("kl", "KL"), "LOSS": ("loss", "Loss"),
    "NUM": ("loss", "Loss"), "OPT": ("gradient", "Gradient norm"), "REW": ("reward", "Reward"),
    "PERF": ("speed", "Tokens per second"),
}  # fmt: skip


def verdict_section(run: Opened) -> Markup:
    """Below a page's own headline."""
    sources = {batch.source: batch for batch in run.evidence.batches}
    body = _body(run.report, sources, has_curves=bool(run.rows))
    inner = join(element("h2", "Verdict", id="verdict-title"), body, _reported(run))
    return element("section", inner, id="verdict", class_="block", aria_labelledby="verdict-title")


def verdict(report: Report) -> Markup:
    """With a headline of its own."""
    return join(_headline(*headline(report)), _body(report, {}, has_curves=False))


def _body(report: Report, sources: Sources, *, has_curves: bool) -> Markup:
    if report.failure:
        return element("p", report.failure)
    found = report.roots
    return join(
        element("p", f"Looked at: {report.looked_at}. {report.counts}.", class_="quiet"),
        _notes(report),
        [_finding(report, word, sources.get(word.source), has_curves) for word in found],
        _worth_knowing(report),
        _healthy(report),
        _not_judged(report),
    )


def headline(report: Report) -> tuple[str, str]:
    """How grave it is, and the sentence that says so."""
    if report.failure:
        return "unread", "Nothing could be read"
    found = report.roots
    if not found:
        healthy = len(report.diagnosis.of(State.HEALTHY))
        if not healthy:
            return "unread", "Nothing here could be judged"
        if report.diagnosis.of(State.CRASHED):
            return "unread", "No finding, but some checks broke"
        return "healthy", f"No findings; {plural(healthy, 'check')} found their part healthy"
    first = found[0]
    others = f", and {plural(len(found) - 1, 'more finding')}" if len(found) > 1 else ""
    grave = first.severity.value if first.level != "note" else "note"
    return grave, f"{_words(first.illness.name)}: {first.severity}, {first.confidence}{others}"


def _words(name: str) -> str:
    """
    >>> _words("kl_sign"), _words("eos_untrained")
    ('KL sign', 'EOS untrained')
    """
    text = " ".join(_CAPITALS.get(word, word) for word in name.split("_"))
    return text[:1].upper() + text[1:]


def _headline(grave: str, sentence: str) -> Markup:
    return element("h2", element("span", sentence), class_=f"headline {grave}")


def _notes(report: Report) -> Markup | None:
    notes = report.diagnosis.notes
    if not notes:
        return None
    return element("ul", [element("li", note) for note in notes], class_="notes", aria_label="About the record")


def _finding(report: Report, word: Word, batch: Batch | None, has_curves: bool) -> Markup:
    verdict = word.verdict
    chips = [
        element("span", word.code, class_="code"),
        element("span", str(word.severity), class_=f"chip {word.severity.value}"),
        element("span", str(word.confidence), class_=f"chip {word.confidence.value}"),
    ]
    followers = report.diagnosis.consequences(word.code)
    return element(
        "article",
        element("h3", _words(word.illness.name), " ", chips),
        element("p", verdict.message, class_="message"),
        element("ul", [_fact(fact, word.source, batch) for fact in verdict.facts], class_="facts")
        if verdict.facts
        else None,
        [element("p", example, class_="example") for example in verdict.examples[:MOST_EXAMPLES]],
        _place_frame(report, word) if verdict.places else None,
        _curve(word) if has_curves else None,
        element("p", element("b", "Fix. "), word.fix, class_="fix"),
        _followers(followers) if followers else None,
        _explanation(word),
        class_=f"finding {word.severity.value} {word.confidence.value}",
        id=f"finding-{word.code}",
    )


def _curve(word: Word) -> Markup | None:
    chart = SEEN_IN.get(word.code, SEEN_IN.get(word.illness.family))
    if chart is None:
        return None
    key, title = chart
    return element("p", "Its curve: ", element("a", title, href=f"#chart-{key}"), class_="small")


def _fact(fact: Fact, source: str, batch: Batch | None) -> Markup:
    """With the prompt that it is about, and a button that leads to the tokens it names."""
    if fact.step is None and fact.row is None:
        return element("li", str(fact))
    where = {"data_step": fact.step, "data_row": fact.row, "data_token": fact.token, "data_source": source or None}
    words = "show this completion" if fact.token is None else "show this token"
    button = element("button", words, type="button", class_="jump", hidden=True, **where)
    return element("li", str(fact), _prompt(fact, batch), " ", button)


def _prompt(fact: Fact, batch: Batch | None) -> str:
    texts = () if batch is None else batch.texts.get("prompt", ())
    return f", prompt {quote(texts[fact.row])}" if fact.row is not None and 0 <= fact.row < len(texts) else ""


def _reported(run: Opened) -> Markup | None:
    """What the doctor found while the run was made, and the record no longer shows: it keeps few updates."""
    known = {word.code for word in run.report.diagnosis.findings}
    rows = [row for row in run.reported if row.get("code") not in known]
    if not rows:
        return None
    listed = [
        element(
            "li",
            element("span", row.get("code"), class_="code"),
            f" {_words(str(row.get('name')))} ({row.get('severity')}, {row.get('confidence')})",
            f" at step {row.get('step')}: ",
            row.get("message"),
            element("p", element("b", "Fix. "), row.get("fix")),
        )
        for row in rows
    ]
    return join(element("h3", "Reported while the run was made"), element("ul", listed))


def _place_frame(report: Report, word: Word) -> Markup:
    place = word.verdict.places[0]
    lines = frame(place, report.lines)
    edit = diff(word.verdict.edit, report.lines) if word.verdict.edit is not None else []
    return join(
        element("p", element("code", f"{place}"), " ", place.text, class_="place"),
        element("pre", "\n".join(lines)) if lines else None,
        element("pre", "\n".join(edit), class_="diff") if edit else None,
    )


def _followers(followers: Sequence[Word]) -> Markup:
    listed = [element("li", *_in_words(word)) for word in followers]
    return join(element("p", "Follows from it:", class_="follows"), element("ul", listed, class_="facts"))


def _in_words(word: Word) -> tuple[object, ...]:
    return element("span", word.code, class_="code"), " ", _words(word.illness.name), ": ", word.verdict.message


def _explanation(word: Word) -> Markup:
    """What the catalogue says of the illness, for a reader who has the page alone."""
    parts: list[Markup] = []
    for heading, text in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", word.illness.explanation, re.MULTILINE | re.DOTALL):
        parts.append(element("h4", heading))
        parts += [
            element("pre", block.strip("\n")) if block.startswith("    ") else element("p", " ".join(block.split()))
            for block in re.split(r"\n\s*\n", text.strip("\n"))
            if block.strip()
        ]
    return element("details", element("summary", f"About {word.code}"), parts, class_="about")


def _worth_knowing(report: Report) -> Markup | None:
    if not report.notable:
        return None
    listed = [
        element(
            "li",
            element("span", word.code, class_="code"),
            " ",
            word.verdict.message,
            element("ul", [element("li", str(fact)) for fact in word.verdict.facts], class_="facts"),
        )
        for word in report.notable
    ]
    return element("details", element("summary", "Worth knowing"), element("ul", listed))


def _healthy(report: Report) -> Markup | None:
    words = report.diagnosis.of(State.HEALTHY)
    if not words:
        return None
    rows = [element("li", *_in_words(word)) for word in words]
    return element("details", element("summary", f"Found healthy: {plural(len(words), 'check')}"), element("ul", rows))


def _not_judged(report: Report) -> Markup | None:
    """What lacked data, what did not apply, what broke."""
    missing = report.missing()
    beside, crashed = report.diagnosis.of(State.NOT_APPLICABLE), report.diagnosis.of(State.CRASHED)
    count = len(report.diagnosis.of(State.NOT_ENOUGH_DATA)) + len(beside) + len(crashed)
    if not count:
        return None
    rows = [
        *(element("li", element("b", "broke: "), word.code, " ", word.verdict.message) for word in crashed),
        *(
            element("li", element("b", name), " was not recorded: ", ", ".join(codes))
            for name, codes in missing.items()
        ),
        *(element("li", word.code, " does not apply: ", word.verdict.message) for word in beside),
    ]
    return element("details", element("summary", f"Not judged: {plural(count, 'check')}"), element("ul", rows))
