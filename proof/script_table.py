"""What was seen in scripts --> a table, its bars, and every miss by name."""

from __future__ import annotations

from collections.abc import Sequence

from proof.of_scripts import SOURCE_BAR, WATCH_BAR, Seen

_BARS = {"source": SOURCE_BAR, "run": 0.0, "watch": WATCH_BAR}  # the run alone has no bar of its own


def planted(seen: Sequence[Seen], how: str) -> list[Seen]:
    return [result for result in seen if result.how == how and result.specimen.code and result.counts]


def silent(seen: Sequence[Seen], how: str) -> list[Seen]:
    return [result for result in seen if result.how == how and not result.specimen.code]


def breaches(seen: Sequence[Seen]) -> list[str]:
    """Every bar that is missed, as a sentence."""
    found: list[str] = []
    for how, bar in _BARS.items():
        ours = planted(seen, how)
        share = sum(result.is_named for result in ours) / max(len(ours), 1)
        if ours and share < bar:
            found.append(f"{how}: {share:.1%} of {len(ours)} planted faults are named, the bar is {bar:.0%}")
        for result in silent(seen, how):
            if result.findings:
                codes = ", ".join(code for code, _ in result.findings)
                found.append(f"{how}: {result.specimen.script}, {result.specimen.form}: {codes} is a false alarm")
            elif result.error:
                found.append(f"{how}: {result.specimen.script}, {result.specimen.form}: {result.error}")
    return found


def summary(seen: Sequence[Seen], *, misses: bool) -> str:
    lines: list[str] = []
    for how in _BARS:
        ours, others = planted(seen, how), silent(seen, how)
        if not ours and not others:
            continue
        named, first = sum(result.is_named for result in ours), sum(result.is_first for result in ours)
        alarms = sum(bool(result.findings) for result in others)
        lines.append(
            f"{how}: {named} of {len(ours)} planted faults named ({named / max(len(ours), 1):.1%}), {first} of them "
            f"first; {alarms} false alarms on {len(others)} clean scripts and variants"
        )
        if misses:
            lines += [f"  missed  {_line(result)}" for result in ours if not result.is_named]
    return "\n".join([*lines, *(f"  below the bar: {sentence}" for sentence in breaches(seen))])


def page(seen: Sequence[Seen]) -> str:
    codes = sorted({result.specimen.code for result in seen if result.specimen.code})
    lines = [
        "| code | planted | source names | the run names | watch names |",
        "|---|---|---|---|---|",
    ]
    for code in codes:
        plants = {(result.specimen.script, result.specimen.form) for result in seen if result.specimen.code == code}
        cells = []
        for how in _BARS:
            ours = [result for result in planted(seen, how) if result.specimen.code == code]
            cells.append(f"{sum(result.is_named for result in ours)}/{len(ours)}" if ours else "-")
        lines.append(f"| {code} | {len(plants)} | {' | '.join(cells)} |")
    for how in _BARS:
        missed = [result for result in planted(seen, how) if not result.is_named]
        if missed:
            lines += ["", f"Missed by {how}:", "", *(f"- {_line(result)}" for result in missed)]
    return "\n".join([summary(seen, misses=False), "", *lines]) + "\n"


def _line(result: Seen) -> str:
    instead = ", ".join(f"{code} {sure}" for code, sure in result.findings) or result.error or "nothing"
    return f"{result.specimen.code} in {result.specimen.script}: {result.specimen.form} (found: {instead})"
