"""A benchmark as it is printed: one table per measurement, the floors, what was chosen, and whatever is to be said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.model.workload import AXES, STEP, Workload

TITLES = {"rollout": "rollout", "update": "update (forward, backward, optimizer)", "step": "whole step"}


def print_document(console: Console, document: Mapping[str, Any]) -> None:
    workload = Workload(**document["workload"])
    for measurement, by_name in document["summaries"].items():
        console.print(_table(measurement, by_name, document))
        console.print()
    machine, packages = document["machine"], document["environment"]["packages"]
    limits, load = machine["limits"], document["load_average"]
    sizes = machine["sizes"]
    lines = [
        f"{document['model']}, {(sizes['body'] + sizes['head']) / 1e6:,.0f}M weights in {machine['dtype']}: {workload}",
        f"{document['date'][:10]}  {machine['device_name']}, threads: {document['environment']['threads']}  "
        f"torch {packages['torch']}, transformers {packages['transformers']}, TRL {packages['trl']}  "
        f"load {load['before']:.1f} -> {load['after']:.1f}",
        f"measured here: copies {limits['bytes_a_second'] / 1e9:,.0f} GB/s, matrix products "
        f"{limits['operations_a_second'] / 1e12:,.3g} TFLOP/s",
        *(
            f"floor of the {name}: {floor['seconds']:.4g} s, {floor['tokens_per_second']:,.0f} new tokens/s"
            for name, floor in document["floors"].items()
        ),
        *(f"{name} ran with {_chosen(name, choice)}" for name, choice in document["choices"].items()),
        *_ratio_lines(document["ratios"]),
        document["command"],
    ]
    console.print(Text("\n".join(lines)), soft_wrap=True)
    for sentence in (*_incomplete(document), *document["unequal_work"], *document["notes"]):
        console.print(Text(sentence, "bold yellow"), soft_wrap=True)


def _incomplete(document: Mapping[str, Any]) -> list[str]:
    if document["complete"]:
        return []
    names = [f"{run['name']}{'' if run['done'] else ' in part'}" for run in document["turns"] if run["readings"]]
    return [
        f"INCOMPLETE: measured were the runs {', '.join(names) or '(none)'}; the same command with the same --json "
        "file goes on"
    ]


def print_scaling(console: Console, document: Mapping[str, Any]) -> None:
    """How seconds grow along each axis, the other sizes as they were asked for."""
    base = document["workload"]
    names = list(dict.fromkeys(row["contender"] for row in document["scaling"]))
    for axis in AXES:
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        table.add_column(axis.replace("_", " "), justify="right")
        for name in names:
            what = "step" if name != "generate" else "rollout"
            table.add_column(f"{name}, {what}, s", justify="right")
            table.add_column("new tokens/s", justify="right")
        rows = along(document["scaling"], base, axis)
        for size in sorted({row["workload"][axis] for row in rows}):
            cells = []
            for name in names:
                found = [row for row in rows if row["contender"] == name and row["workload"][axis] == size]
                cells += [f"{found[0]['seconds']:.4g}", f"{found[0]['tokens_per_second']:,.0f}"] if found else ["", ""]
            table.add_row(str(size), *cells)
        console.print()
        console.print(table)


def along(rows: list[dict[str, Any]], base: Mapping[str, int], axis: str) -> list[dict[str, Any]]:
    """The rows that differ from the base along this axis alone, or not at all."""
    return [row for row in rows if {**row["workload"], axis: 0} == {**base, axis: 0}]


def _table(measurement: str, by_name: Mapping[str, Mapping[str, Any]], document: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column(TITLES[measurement], no_wrap=True)
    for name in by_name:
        table.add_column(_title(name, document), justify="right")
    ours = by_name.get("assay")
    compared = ours is not None and len(by_name) > 1 and not document["unequal_work"]

    forms = {
        "seconds, median of the warm": "{seconds:.4g}",
        "fastest, slowest": "{fastest:.4g}, {slowest:.4g}",
        "CPU seconds, median": "{cpu_seconds:.4g}",
        "the first one, cold": "{cold_seconds:.4g}",
        **({"of it generation, seconds": "{generated_seconds:.4g}"} if measurement == STEP else {}),
        "new tokens/s": "{tokens_per_second:,.0f}",
        "of the floor": "{of_floor:.1%}",
    }
    is_cpu = document["machine"]["device"] == "cpu"
    if is_cpu:
        forms["peak memory of the process, GB"] = "{process_gb:.2f}"
    else:
        forms["peak allocated on the GPU, GB"] = "{allocated_gb:.2f}"
        forms["peak reserved on the GPU, GB"] = "{reserved_gb:.2f}"
    if compared:
        forms["seconds / assay's"] = "{seconds_ratio:.2f}"
        if is_cpu:
            forms["CPU seconds / assay's"] = "{cpu_ratio:.2f}"
    values = [_in_units(summary, ours or summary) for summary in by_name.values()]
    for label, form in forms.items():
        table.add_row(f"  {label}", *(form.format(**own) for own in values))
    return table


def _in_units(summary: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    gigabytes = {f"{kind}_gb": summary[f"{kind}_bytes"] / 1e9 for kind in ("process", "allocated", "reserved")}
    ratios = {
        "seconds_ratio": summary["seconds"] / ours["seconds"],
        "cpu_ratio": summary["cpu_seconds"] / ours["cpu_seconds"],
    }
    return {**summary, **gigabytes, **ratios}


def _title(name: str, document: Mapping[str, Any]) -> str:
    version = document["environment"]["packages"]["trl"]
    return {
        "assay": "assay",
        "trl": f"TRL {version}",
        "trl-autocast": f"TRL {version} autocast",
        "generate": "generate",
    }[name]


def _chosen(name: str, choice: Mapping[str, Any]) -> str:
    cache = f"the {choice['cache']} cache"
    if name == "generate":
        return cache
    checkpointing = "with" if choice["checkpointing"] else "without"
    weights = ", float32 weights under autocast" if choice["autocast"] else ""
    return f"{choice['batch']} rows per device, {cache}, {checkpointing} gradient checkpointing{weights}"


def _ratio_lines(ratios: Mapping[str, Mapping[str, list[Mapping[str, float]]]]) -> list[str]:
    return [
        f"{TITLES[measurement]}, {name} / assay, by repeat: "
        + "; ".join(f"{ratio['wall']:.2f}, CPU {ratio['cpu']:.2f}" for ratio in by_repeat)
        for measurement, by_name in ratios.items()
        for name, by_repeat in by_name.items()
    ]
