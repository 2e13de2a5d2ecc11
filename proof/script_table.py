"""What was seen in scripts --> a table, its bars, and every miss by name."""

from __future__ import annotations

from collections.abc import Sequence

from proof.of_scripts import SOURCE_BAR, WATCH_BAR, Seen

_BARS = {"source": SOURCE_BAR, "run": 0.0, "watch": WATCH_BAR}  # the run alone has no bar of its own


def planted(seen: Sequence[Seen], how: str) -> list[Seen]:
    return [one for one in seen if one.how == how and one.specimen.code and one.counts]


def silent(seen: Sequence[Seen], how: str) -> list[Seen]:
    return [one for one in seen if one.how == how and not one.specimen.code]


def breaches(seen: Sequence[Seen]) -> list[str]:
    """Every bar that is missed, as a sentence."""
    found: list[str] = []
    for how, bar in _BARS.items():
        ours = planted(seen, how)
        share = sum(one.is_named for one in ours) / max(len(ours), 1)
        if ours and share < bar:
            found.append(f"{how}: {share:.1%} of {len(ours)} planted faults are named, the bar is {bar:.0%}")
        for one in silent(seen, how):
            if one.findings:
                codes = ", ".join(code for code, _ in one.findings)
                found.append(f"{how}: {one.specimen.script}, {one.specimen.form}: {codes} is a false alarm")
            elif one.error:
                found.append(f"{how}: {one.specimen.script}, {one.specimen.form}: {one.error}")
    return found


def summary(seen: Sequence[Seen], *, misses: bool) -> str:
    lines: list[str] = []
    for how in _BARS:
        ours, others = planted(seen, how), silent(seen, how)
        if not ours and not others:
            continue
        named, first = sum(one.is_named for one in ours), sum(one.is_first for one in ours)
        alarms = sum(bool(one.findings) for one in others)
        lines.append(
            f"{how}: {named} of {len(ours)} planted faults named ({named / max(len(ours), 1):.1%}), {first} of them "
            f"first; {alarms} false alarms on {len(others)} clean scripts and variants"
        )
        if misses:
            lines += [f"  missed  {_line(one)}" for one in ours if not one.is_named]
    return "\n".join([*lines, *(f"  below the bar: {sentence}" for sentence in breaches(seen))])


def page(seen: Sequence[Seen]) -> str:
    codes = sorted({one.specimen.code for one in seen if one.specimen.code})
    lines = [
        "| code | planted | source names | the run names | watch names |",
        "|---|---|---|---|---|",
    ]
    for code in codes:
        plants = {(one.specimen.script, one.specimen.form) for one in seen if one.specimen.code == code}
        cells = []
        for how in _BARS:
            ours = [one for one in planted(seen, how) if one.specimen.code == code]
            cells.append(f"{sum(one.is_named for one in ours)}/{len(ours)}" if ours else "-")
        lines.append(f"| {code} | {len(plants)} | {' | '.join(cells)} |")
    for how in _BARS:
        missed = [one for one in planted(seen, how) if not one.is_named]
        if missed:
            lines += ["", f"Missed by {how}:", "", *(f"- {_line(one)}" for one in missed)]
    return "\n".join([summary(seen, misses=False), "", *lines]) + "\n"


def _line(one: Seen) -> str:
    instead = ", ".join(f"{code} {sure}" for code, sure in one.findings) or one.error or "nothing"
    return f"{one.specimen.code} in {one.specimen.script}: {one.specimen.form} (found: {instead})"
