"""Opened --> one HTML file that needs nothing else: no network, no server, no other file.

Texts of a model are hostile. What Python writes is escaped by markup.py; what the script shows comes as JSON and is
only ever set as text. Beside that a policy in the page allows its own style and script by their hashes, and nothing
else: no network, no other script, no handler in an attribute.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path
from statistics import fmean
from typing import Any

from assay import __version__
from assay.machine.terminal import human_count, human_seconds, number, plural
from assay.report import chart as drawing
from assay.report.chart import Chart, finite
from assay.report.curves import charts_of, domain, marks_of, time_chart
from assay.report.groups import CHANNELS, DERIVED, Stored, stored_completions
from assay.report.markup import Markup, element, join, script_json
from assay.report.opened import Opened
from assay.report.parts import (
    curves_section,
    empty,
    lengths_section,
    ratio_section,
    section,
    setup_section,
    signal_section,
    time_section,
)
from assay.report.pieces import Pieces, pieces_of
from assay.report.sampled_steps import best_reward, sampled_steps
from assay.report.series import Stretches
from assay.report.verdict import headline, verdict_section

FEW = 5  # steps whose mean reward stands for an end of the run
NO_TOKENIZER = "No tokenizer was found beside the record: tokens are cut by characters, or shown as ids."
NAVIGATION = {
    "verdict": "Verdict",
    "curves": "Curves",
    "time": "Time",
    "signal": "Signal",
    "groups": "Groups",
    "ratio": "Log-probs",
    "lengths": "Lengths",
    "setup": "Setup",
}


def page_of(run: Opened, *, against: Opened | None = None, tokenizer: Path | None = None, live: bool = False) -> str:
    sampled = sampled_steps(run.path, run.evidence, best_reward(run.evidence, run.rows))
    charts, marks = charts_of(run, sampled), marks_of(run)
    ends = domain(charts)
    pieces = pieces_of(run.path, run.config, tokenizer)
    stored = stored_completions(run.evidence.batches, run.report.diagnosis, pieces)
    parts = [
        verdict_section(run),
        curves_section(charts, ends, marks, Stretches.of(run.curves.steps).longest),
        time_section(run.curves),
        signal_section(run.curves),
        groups_section(stored, pieces),
        ratio_section(run.evidence.batches),
        lengths_section(sampled),
        setup_section(run, against),
    ]
    timed = [_alone(time_chart(run.curves))] if run.curves.timings else []
    data = {
        "charts": [drawing.points(chart, ends) for chart in charts] + timed,
        "sources": stored.sources,
        "completions": stored.completions,
        "prompts": stored.prompts,
        "channels": {**CHANNELS, **DERIVED},
        "svg_style": drawing.STYLE,
        "live": live,
        "version": version_of(run),
    }
    body = join(_head(run), navigation(NAVIGATION), element("main", parts, id="main"))
    return document(f"{run.name}: report of Assay", body, data, live=live)


def document(title: str, body: Markup, data: dict[str, Any], *, live: bool = False) -> str:
    """The whole file around a body; `data` is what its script reads."""
    style, script = asset("page.css"), asset("page.js")
    allowed = {
        "default-src": "'none'",
        "style-src": f"'sha256-{_hash(style)}'",
        "script-src": f"'sha256-{_hash(script)}'",
        "img-src": "data:",
        "connect-src": "'self'" if live else "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    policy = "; ".join(f"{name} {value}" for name, value in allowed.items())
    head = join(
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="referrer", content="no-referrer"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("link", rel="icon", href="data:,"),
        element("style", Markup(style)),
    )
    payload = element("script", Markup(script_json(data)), type="application/json", id="data")
    words = "This page loads nothing and sends nothing. It may hold prompts and completions."
    foot = element("footer", element("p", f"Written by Assay {__version__}. {words}"))
    script_part = element("script", Markup(script))
    whole = element("html", element("head", head), element("body", body, foot, payload, script_part), lang="en")
    return f"<!doctype html>\n{whole}\n"


def navigation(names: dict[str, str]) -> Markup:
    links = [element("a", words, href=f"#{key}") for key, words in names.items()]
    keys = element("button", "Keys", type="button", id="keys-button", hidden=True)
    return element("nav", element("div", links, class_="links"), keys, aria_label="Parts of the page")


def groups_section(stored: Stored, pieces: Pieces) -> Markup:
    """Filled by the script: what a model wrote is never part of the markup."""
    if not stored.sources:
        return section(
            "groups", "Groups and tokens", empty("No tokens are recorded, so there are no completions to show.")
        )
    source = (
        f"Token texts are those of {pieces.source}." if pieces.source else "No tokenizer was found beside the record."
    )
    return section(
        "groups",
        "Groups and tokens",
        element("noscript", element("p", "Completions are shown by a script, which is switched off.")),
        element("div", id="groups-controls", class_="controls"),
        element("div", id="groups-table", class_="scroll"),
        element("div", id="group", class_="group", tabindex=-1),
        [element("p", sentence, class_="quiet small") for sentence in (*stored.left_out, source)],
        hint="A row per prompt, a cell per completion: its colour is the advantage. Open a row to read its completions "
        "side by side, token by token.",
    )


def _head(run: Opened) -> Markup:
    grave, sentence = headline(run.report)
    facts = [element("div", element("dt", name), element("dd", value)) for name, value in facts_of(run).items()]
    return element(
        "header",
        element("p", "assay report", class_="brand"),
        element("h1", run.name),
        element("p", element("a", sentence, href="#verdict"), class_=f"pill {grave}", id="pill"),
        element("dl", facts, id="facts"),
    )


def facts_of(run: Opened) -> dict[str, str]:
    """A line of facts; only those that are known."""
    facts = {"state": _state(run)}
    planned = run.steps_planned
    if run.rows:
        facts["steps"] = f"{run.steps_done:,} of {planned:,}" if planned else f"{run.steps_done:,}"
    if run.config is not None:
        config = run.config
        facts |= {"task": config.task.name, "model": Path(config.model.path).name or config.model.path}
        facts |= {"objective": config.loss.objective, "seed": str(config.run.seed)}
    parameters = run.curves.settings.get("parameters")
    if parameters:
        facts["parameters"] = human_count(int(parameters))
    seconds = sum(float(row.get("seconds") or 0.0) for row in run.curves.timings)
    if seconds:
        facts["training"] = human_seconds(seconds)
    tokens = sum(int(row.get("tokens_generated") or 0) for row in run.rows)
    if tokens:
        facts["tokens"] = human_count(tokens)
    facts |= _ends_of(run)
    version = (run.environment or {}).get("packages", {})
    if isinstance(version, dict) and version.get("assay"):
        facts["Assay"] = str(version["assay"])
    return facts


def _ends_of(run: Opened) -> dict[str, str]:
    """Where the reward and the held-out score began, and where they are."""
    facts = {}
    rewards = finite([row.get("reward_mean") for row in run.rows])
    if rewards:
        few = min(FEW, len(rewards))
        facts["reward"] = f"{number(fmean(rewards[:few]))} \u2192 {number(fmean(rewards[-few:]))}"
    scores = [row for row in run.curves.evaluations if row.get("reward_sampled") is not None]
    if scores:
        error = scores[-1].get("reward_sampled_std_error")
        last = number(scores[-1]["reward_sampled"]) + (f" \u00b1 {number(error)}" if error is not None else "")
        first = f"{number(scores[0]['reward_sampled'])} \u2192 " if len(scores) > 1 else ""
        facts["held-out"] = first + last
    return facts


def _state(run: Opened) -> str:
    kinds = [event.get("kind") for event in run.curves.events]
    ends = [kind for kind in kinds if kind in ("start", "resume", "finished", "failed", "stopped")]
    resumed = sum(kind == "resume" for kind in kinds)
    how = f", resumed {plural(resumed, 'time')}" if resumed else ""
    if not ends:
        return "a record"
    return (str(ends[-1]) if ends[-1] in ("finished", "failed", "stopped") else "going on, or killed") + how


def version_of(run: Opened) -> str:
    """Changes whenever there is more to show."""
    return (
        f"{len(run.rows)}.{len(run.curves.evaluations)}.{len(run.curves.events)}.{len(run.report.diagnosis.findings)}"
    )


def _alone(chart: Chart) -> dict[str, Any]:
    """Of a chart whose axis is its own."""
    return drawing.points(chart, drawing.domain_of(series for _, series in chart.series))


def asset(name: str) -> str:
    return (files("assay.report") / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
