"""`python -m benchmarks.model`: its arithmetic by hand, its tables. Contenders and refusals have files of their own."""

import io
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from assay.config import ConfigError
from benchmarks.command import alternating
from benchmarks.model.benchmark import contenders_of, run_benchmark
from benchmarks.model.floors import (
    Limits,
    Sizes,
    decode_bytes,
    described,
    floor_seconds,
    rollout_operations,
    update_operations,
)
from benchmarks.model.options import Options, words
from benchmarks.model.reading import (
    Iteration,
    Machine,
    Memory,
    PeerChoice,
    Reading,
    Work,
    differences,
    ratios,
    read_readings,
    summarise,
    write_readings,
)
from benchmarks.model.scaling_plot import draw
from benchmarks.model.table import along, print_document, print_scaling
from benchmarks.model.workers import fastest
from benchmarks.model.workload import (
    Job,
    Workload,
    checksum,
    completions_of,
    points,
    prompts_of,
    reward_of,
)

ROOT = Path(__file__).parents[2]
SMALL = Workload(prompts=2, group_size=3, prompt_tokens=4, new_tokens=5)
SIZES = Sizes(
    body=100, head=20, layers=2, heads=4, kv_heads=2, head_size=3, vocabulary=10, context=64, bytes_a_number=2
)
MACHINE = Machine("cpu", "a cpu", "float32", "", SIZES, Limits(1000.0, 10_000.0), -1, threads=2)
WORK = Work("prompts", "", rows=6, shortest=5, longest=5, updates=0, weights=7.0)


def reading(contender="assay", seconds=(9.0, 2.0, 4.0), measurement="rollout", work=WORK, choice=None, **sizes):
    job = Job(measurement, replace(SMALL, **sizes), warmup=1, timed=len(seconds) - 1)
    times = tuple(Iteration(one, one / 2) for one in seconds)
    return Reading(contender, job, times, work, Memory(1000, 50, 60), choice)


def test_a_rollout_reads_all_weights_for_every_token_and_the_cache_of_what_came_before():
    # a token's cache: keys and values x 2 layers x 2 heads x 3 numbers x 2 bytes = 48 bytes
    assert SIZES.cache_bytes_a_token == 48
    # 5 passes over 120 weights of 2 bytes. Passes 2 to 5 read 2 prompts of 4 tokens, and of 6 rows 1 + 2 + 3 + 4 own
    assert decode_bytes(SIZES, SMALL, shared_prompts=True) == 5 * 240 + 48 * (4 * 2 * 4 + 6 * 10)
    assert decode_bytes(SIZES, SMALL, shared_prompts=False) == 5 * 240 + 48 * (4 * 6 * 4 + 6 * 10)


def test_one_new_token_reads_no_cache():
    assert decode_bytes(SIZES, replace(SMALL, new_tokens=1), shared_prompts=True) == 240


def test_a_rollout_computes_prompts_once_and_no_row_beyond_its_last_token():
    # through the body: 2 prompts of 4, 6 rows of 4 more (the fifth is sampled, not computed); logits for 30 tokens
    linear = 2 * (100 * (8 + 24) + 20 * 30)
    # a query and a key it sees: two products of 3 numbers in 4 heads of 2 layers = 2 * 2 * 24 operations
    seen = 2 * (1 + 2 + 3 + 4) + 6 * (4 * 4 + 1 + 2 + 3 + 4)
    assert rollout_operations(SIZES, SMALL) == linear + 96 * seen


def test_an_update_costs_three_forward_passes_over_all_tokens():
    linear = 6 * (100 * (8 + 30) + 20 * 30)
    seen = 2 * (1 + 2 + 3 + 4) + 6 * (4 * 5 + 1 + 2 + 3 + 4 + 5)
    assert update_operations(SIZES, SMALL) == linear + 3 * 96 * seen


def test_the_floor_of_a_rollout_is_the_slower_of_bandwidth_and_arithmetic_and_a_step_is_both_stages():
    wide, fast = Limits(1e12, 10_000.0), Limits(1000.0, 1e12)
    assert floor_seconds("rollout", SIZES, SMALL, wide) == rollout_operations(SIZES, SMALL) / 10_000.0
    assert floor_seconds("rollout", SIZES, SMALL, fast) == decode_bytes(SIZES, SMALL, shared_prompts=True) / 1000.0
    stages = [floor_seconds(stage, SIZES, SMALL, fast) for stage in ("rollout", "update")]
    assert floor_seconds("step", SIZES, SMALL, fast) == sum(stages)
    assert floor_seconds("update", SIZES, SMALL, wide) == update_operations(SIZES, SMALL) / 10_000.0


def test_a_summary_takes_medians_over_the_warm_iterations_of_all_runs():
    summary = summarise([reading(seconds=(9.0, 2.0, 4.0)), reading(seconds=(7.0, 3.0, 12.0))], MACHINE)
    assert (summary.seconds, summary.cpu_seconds) == (3.5, 1.75)  # of 2, 3, 4 and 12
    assert (summary.fastest, summary.slowest) == (2.0, 12.0)
    assert summary.cold_seconds == 8.0
    assert summary.tokens_per_second == 30 / 3.5
    assert summary.of_floor == pytest.approx(floor_seconds("rollout", SIZES, SMALL, MACHINE.limits) / 3.5)
    assert (summary.process_bytes, summary.allocated_bytes, summary.reserved_bytes) == (1000, 50, 60)


def test_ratios_compare_the_runs_of_one_repeat():
    ours = [reading(seconds=(9.0, 2.0)), reading(seconds=(9.0, 4.0))]
    peer = [reading("trl", seconds=(9.0, 6.0)), reading("trl", seconds=(9.0, 4.0))]
    assert ratios(ours, peer) == [{"wall": 3.0, "cpu": 3.0}, {"wall": 1.0, "cpu": 1.0}]


def test_equal_work_has_no_differences():
    learned = replace(WORK, completions_sha256="given", updates=3)
    update = [reading(name, measurement="update", work=learned) for name in ("assay", "trl")]
    assert differences([reading(), reading("generate", seconds=(1.0, 99.0, 1.0)), *update]) == []


@pytest.mark.parametrize(
    ("changes", "words_of_it"),
    [
        ({"shortest": 4}, "4 to 5 tokens instead of 5"),
        ({"longest": 6}, "5 to 6 tokens instead of 5"),
        ({"rows": 5}, "5 completions instead of 6"),
        ({"prompts_sha256": "others"}, "other prompts than assay"),
        ({"completions_sha256": "others"}, "other completions than assay"),
        ({"updates": 1}, "1 optimizer steps"),
        ({"weights": 7.1}, "not the same model"),
    ],
)
def test_work_that_is_not_the_same_is_told(changes, words_of_it):
    (sentence,) = differences([reading(), reading("generate", work=replace(WORK, **changes))])
    assert words_of_it in sentence


def test_work_is_compared_within_a_measurement_not_with_the_first_one():
    learned = replace(WORK, completions_sha256="given", updates=3)
    other = replace(learned, completions_sha256="others")
    readings = [
        reading(),
        *(reading(name, measurement="update", work=one) for name, one in (("assay", learned), ("trl", other))),
    ]
    (sentence,) = differences(readings)
    assert "trl, update was given other completions" in sentence


def test_an_update_that_was_left_out_is_told():
    skipped = replace(WORK, updates=2)
    (sentence,) = differences([reading(measurement="step", work=skipped)])
    assert "2 optimizer steps in 3 iterations" in sentence


def test_readings_survive_their_file(tmp_path):
    readings = [reading(), reading("trl", choice=PeerChoice("static", 4, checkpointing=True))]
    write_readings(tmp_path / "readings.json", readings)
    assert read_readings(tmp_path / "readings.json") == readings
    assert read_readings(tmp_path / "none.json") == []


def test_a_peer_runs_with_the_batch_of_its_fastest_update_and_the_cache_of_its_fastest_rollout():
    tried = [
        reading("trl", (9.0, 5.0), "update", choice=PeerChoice(batch=8)),
        reading("trl", (9.0, 3.0), "update", choice=PeerChoice(batch=4, checkpointing=True)),
        reading("trl", (9.0, 4.0), "update", choice=PeerChoice(batch=2)),
        reading("trl", (9.0, 2.0), "rollout", choice=PeerChoice("dynamic", 4)),
        reading("trl", (9.0, 1.0), "rollout", choice=PeerChoice("static", 4)),
        reading("trl", (9.0, 0.5), "step", choice=PeerChoice("dynamic", 4)),
    ]
    assert fastest(tried, PeerChoice(), MACHINE) == PeerChoice("static", 4, checkpointing=True)
    assert fastest([], PeerChoice("static", 16), MACHINE) == PeerChoice("static", 16)


def test_one_thread_of_a_cpu_is_judged_by_the_seconds_of_the_process_itself():
    busy = replace(reading(choice=PeerChoice("dynamic")), iterations=(Iteration(9.0, 9.0), Iteration(8.0, 2.0)))
    idle = replace(reading(choice=PeerChoice("static")), iterations=(Iteration(9.0, 9.0), Iteration(3.0, 3.0)))
    alone = replace(MACHINE, threads=1)
    assert fastest([busy, idle], PeerChoice(), alone).cache == "dynamic"
    assert fastest([busy, idle], PeerChoice(), MACHINE).cache == "static"
    assert fastest([busy, idle], PeerChoice(), replace(alone, device="cuda")).cache == "static"
    floor = floor_seconds("rollout", SIZES, SMALL, MACHINE.limits)
    assert summarise([busy], alone).of_floor == floor / 2.0
    assert summarise([busy], MACHINE).of_floor == floor / 8.0


def test_prompts_and_completions_are_the_same_for_all_and_others_in_every_iteration():
    assert prompts_of(SMALL, 10, 0) == prompts_of(SMALL, 10, 0)
    assert prompts_of(SMALL, 10, 0) != prompts_of(SMALL, 10, 1)
    assert [len(group) for group in completions_of(SMALL, 10, 0)] == [3, 3]
    drawn = [token for tokens in prompts_of(replace(SMALL, prompt_tokens=200), 10, 0) for token in tokens]
    assert set(drawn) == set(range(1, 10))  # the padding token is no part of a prompt
    assert checksum([(1, 2), (3,)]) != checksum([(1,), (2, 3)])


def test_the_reward_differs_within_a_group():
    assert reward_of((1, 2, 3)) == 6 / 10_007
    group = completions_of(replace(SMALL, group_size=8), 1000, 0)[0]
    assert len({reward_of(tokens) for tokens in group}) > 1


def test_scaling_moves_one_size_at_a_time_and_never_below_what_makes_sense():
    grown = points(Workload(prompts=8, group_size=4, prompt_tokens=64, new_tokens=2))
    assert [one.group_size for one in grown["group_size"]] == [2, 4, 8]  # a group of 1 has nothing to compare
    assert [one.new_tokens for one in grown["new_tokens"]] == [1, 2, 4]
    assert [one.prompt_tokens for one in grown["prompt_tokens"]] == [16, 32, 64, 128]
    assert {(one.prompts, one.group_size, one.new_tokens) for one in grown["prompt_tokens"]} == {(8, 4, 2)}


def test_every_second_repeat_starts_with_the_other_one():
    assert alternating(["assay", "trl", "generate"], 3) == [
        "assay", "trl", "generate", "generate", "trl", "assay", "assay", "trl", "generate",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("measurements", "scale_peers", "names"),
    [
        (("rollout",), False, ["assay", "generate"]),
        (("update", "step"), False, ["assay", "trl"]),
        (("scaling",), False, ["assay"]),
        (("scaling",), True, ["assay", "trl", "generate"]),
        (("rollout", "update", "step"), False, ["assay", "trl", "generate"]),
    ],
)
def test_who_runs(measurements, scale_peers, names, monkeypatch):
    monkeypatch.setattr("benchmarks.model.benchmark.missing_peer", lambda: "")
    options = Options("tiny", SMALL, measurements, scale_peers=scale_peers)
    assert contenders_of(options, MACHINE) == (names, [])


def test_on_bfloat16_trl_runs_with_its_default_precision_too(monkeypatch):
    monkeypatch.setattr("benchmarks.model.benchmark.missing_peer", lambda: "")
    names, _ = contenders_of(Options("tiny", SMALL), replace(MACHINE, dtype="bfloat16"))
    assert names == ["assay", "trl", "trl-autocast", "generate"]
    with pytest.raises(ConfigError, match="is about bfloat16"):
        contenders_of(Options("tiny", SMALL, contenders=("trl-autocast",)), MACHINE)


def test_without_trl_the_others_run_and_the_way_to_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "trl", None)
    names, (sentence,) = contenders_of(Options("tiny", SMALL), MACHINE)
    assert names == ["assay", "generate"]
    assert "pip install 'assay[trl]'" in sentence


def test_lists_are_put_into_order():
    assert words("--measure", "step,rollout", ("rollout", "update", "step")) == ("rollout", "step")


def test_the_command_can_be_typed_again():
    options = Options("135m", SMALL, contenders=("assay", "trl"), peer_batch=6, peer_caches=("static",), warmup=3)
    assert options.command.startswith(
        "python -m benchmarks.model 135m --measure rollout,update,step --prompts 2 --group-size 3"
    )
    assert options.command.endswith("--contenders assay,trl --peer-batch 6 --peer-cache static --warmup 3")


def test_the_parent_needs_no_torch():
    code = "import sys, benchmarks.model.benchmark; print([name for name in ('torch', 'trl') if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert shown.stdout.strip() == "[]"


def test_a_worker_that_fails_ends_the_benchmark_with_its_last_words(monkeypatch, capsys, tmp_path):
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho no memory left >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    assert run_benchmark(Options("tiny", SMALL, json_path=tmp_path / "bench.json")) == 1
    shown = capsys.readouterr().err
    assert "preparing tiny" in shown
    assert "no memory left" in shown
    assert not (tmp_path / "bench.json").exists()


def document(unequal=(), scaling=()):
    names = {"assay": (2.0, 2.0), "trl": (6.0, 6.0), "generate": (3.0, 3.0)}
    summaries = {
        "rollout": {
            name: asdict(summarise([reading(name, (9.0, *seconds))], MACHINE)) for name, seconds in names.items()
        }
    }
    return {
        "complete": True, "order": ["assay", "trl", "generate"], "turns": [],
        "date": "2026-11-15T00:00:00", "command": "python -m benchmarks.model tiny", "model": "tiny",
        "machine": asdict(MACHINE), "workload": asdict(SMALL),
        "environment": {"threads": 1, "packages": {"trl": "1.16.0", "torch": "2", "transformers": "5"}},
        "load_average": {"before": 0.0, "after": 0.0}, "floors": described(SIZES, SMALL, MACHINE.limits),
        "choices": {"trl": asdict(PeerChoice("dynamic", 6)), "generate": asdict(PeerChoice("static"))},
        "notes": [], "unequal_work": list(unequal), "summaries": summaries, "ratios": {}, "scaling": list(scaling),
    }  # fmt: skip


def printed(function, *arguments):
    console = Console(file=io.StringIO(), width=140)
    function(console, *arguments)
    return console.file.getvalue()


def test_the_table_shows_how_many_times_ours_the_others_take():
    shown = printed(print_document, document())
    (row,) = [line for line in shown.splitlines() if line.startswith("  seconds / assay's")]
    assert row.split()[3:] == ["1.00", "3.00", "1.50"]
    assert "trl ran with 6 rows per device, the dynamic cache, without gradient checkpointing" in shown
    assert "generate ran with the static cache" in shown


def test_unequal_work_is_told_and_not_compared():
    shown = printed(print_document, document(unequal=["not the same work: lengths"]))
    assert "not the same work: lengths" in shown
    assert "/ assay's" not in shown


def grown(name, seconds, **sizes):
    one = reading(name, (9.0, seconds), "step", **sizes)
    return {
        "contender": name,
        "measurement": "step",
        "workload": asdict(one.job.workload),
        **asdict(summarise([one], MACHINE)),
    }


def test_scaling_is_shown_axis_by_axis_and_drawn(tmp_path):
    rows = [grown("assay", 1.0), grown("assay", 2.0, new_tokens=10), grown("assay", 4.0, prompt_tokens=8)]
    assert [row["seconds"] for row in along(rows, asdict(SMALL), "new_tokens")] == [1.0, 2.0]
    shown = printed(print_scaling, document(scaling=rows))
    lines = [line.split() for line in shown.splitlines()]
    assert ["10", "2", "30"] in lines  # ten new tokens in each of 6 rows in 2 seconds
    assert ["8", "4", "8"] in lines
    pytest.importorskip("matplotlib")
    draw(tmp_path / "growth.svg", document(scaling=rows))
    assert "prompt tokens" in (tmp_path / "growth.svg").read_text()
