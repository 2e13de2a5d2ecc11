"""The contenders of `python -m benchmarks.model` on a tiny model: each does the work it is timed for, and the same."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from assay.config import ConfigError
from assay.engine.shared_weights import SharedWeightsEngine
from assay.policy.causal import CausalPolicy
from assay.policy.codec import TokenizerCodec
from assay.policy.probe import examine_policy
from benchmarks.model import by_assay, by_generate
from benchmarks.model.benchmark import run_benchmark
from benchmarks.model.floors import rollout_operations, update_operations
from benchmarks.model.options import Options
from benchmarks.model.prepare import load_model, prepare, sizes_of, tokenizer_of, weights_sum
from benchmarks.model.reading import PeerChoice, differences
from benchmarks.model.shapes import SHAPES
from benchmarks.model.workload import Job, Workload

SMALL = Workload(prompts=2, group_size=4, prompt_tokens=12, new_tokens=8)
needs_trl = pytest.mark.skipif(importlib.util.find_spec("trl") is None, reason="needs TRL")


@pytest.fixture(autouse=True)
def as_it_was():
    """A contender sets torch up for itself; in the tests' own process that is taken back."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(strict)


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return prepare("tiny", "cpu", "float32", 1, tmp_path_factory.mktemp("model"), SMALL)


def silent():
    """Nobody watches."""


@pytest.mark.thorough
def test_a_whole_benchmark(tmp_path, capsys, warm_python, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(warm_python))
    path = tmp_path / "bench.json"
    options = Options(
        "tiny", SMALL, ("rollout",), timed=1, repeats=1, peer_caches=("dynamic",), threads=1, json_path=path
    )
    assert run_benchmark(options) == 0
    printed, document = capsys.readouterr(), json.loads(path.read_text())
    assert document["order"] == ["assay", "generate"]
    assert list(document["summaries"]) == ["rollout"]
    for reading in (reading for run in document["turns"] for reading in run["readings"]):
        assert len(reading["iterations"]) == 2
        assert (reading["work"]["shortest"], reading["work"]["longest"]) == (8, 8)
        assert all(one["seconds"] > 0 and one["cpu_seconds"] > 0 for one in reading["iterations"])
    for one in document["summaries"]["rollout"].values():
        assert 0 < one["of_floor"] < 1
        assert 1e8 < one["process_bytes"] < 4e9
    (ratio,) = document["ratios"]["rollout"]["generate"]
    assert ratio["wall"] > 0
    assert document["unequal_work"] == []
    assert document["command"] == options.command
    assert "new tokens/s" in printed.out
    titles = [line.split(":")[0] for line in printed.err.splitlines() if not line.startswith("assay: ")]
    assert titles == ["preparing tiny", "run 1 of 2", "run 2 of 2"]
    for run in document["turns"]:
        spent = {name: run["seconds"][name] for name in ("imports", "model", "iterations")}
        assert min(spent.values()) > 0
        assert sum(spent.values()) < run["seconds"]["whole"]
    assert document["machine"]["directory"] == ""


def test_ours_generates_what_was_asked_and_learns_from_it(machine):
    jobs = [Job(one, SMALL, warmup=1, timed=1) for one in ("rollout", "update", "step")]
    readings = list(by_assay.measure(jobs, machine, 1, None, silent))
    assert differences(readings) == []
    assert [reading.work.updates for reading in readings] == [0, 2, 2]
    assert [reading.work.rows for reading in readings] == [8, 8, 8]
    assert [bool(reading.work.completions_sha256) for reading in readings] == [False, True, False]
    assert len({reading.work.prompts_sha256 for reading in readings}) == 1


def test_the_update_of_ours_moves_the_weights(machine):
    policy = examine_policy(CausalPolicy(load_model(machine).eval(), TokenizerCodec(tokenizer_of(256)), (0,), 1.0))
    config = by_assay.settings_of(machine, SMALL, 1)
    contender = by_assay.Contender(Job("update", SMALL, 1, 1), machine, policy, SharedWeightsEngine(policy), config)
    before = [parameter.detach().clone() for parameter in contender.policy.model.parameters()]
    contender.iteration(0)
    after = contender.policy.model.parameters()
    assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate_does_the_same_work_as_ours(machine, cache):
    job = Job("rollout", SMALL, warmup=1, timed=1)
    ours = by_assay.measure([job], machine, 1, None, silent)
    assert differences([*ours, *by_generate.measure([job], machine, 1, PeerChoice(cache), silent)]) == []


@needs_trl
@pytest.mark.parametrize("measurement", ["update", "step"])
def test_trl_does_the_same_work_as_ours(machine, measurement):
    from benchmarks.model import by_trl

    job = Job(measurement, SMALL, warmup=1, timed=1)
    theirs = list(by_trl.measure([job], machine, 1, PeerChoice(batch=4), silent))
    assert differences([*by_assay.measure([job], machine, 1, None, silent), *theirs]) == []
    assert all(min(one.seconds, one.cpu_seconds) > 0 for reading in theirs for one in reading.iterations)
    if measurement == "step":
        step, rollout = theirs
        assert rollout.job.measurement == "rollout"
        pairs = zip(rollout.iterations, step.iterations, strict=True)
        assert all(inside.seconds == whole.generated_seconds < whole.seconds for inside, whole in pairs)


@needs_trl
def test_trl_gets_its_fastest_settings(machine, tmp_path):
    from trl import GRPOConfig

    from benchmarks.model import by_trl

    choice = PeerChoice("static", batch=4)
    args = GRPOConfig(**by_trl.settings_of(Job("step", SMALL, 1, 2), machine, choice, str(tmp_path)))
    assert (args.generation_batch_size, args.per_device_train_batch_size) == (8, 4)
    assert args.gradient_accumulation_steps == args.steps_per_generation == 2  # one optimizer step a rollout batch
    assert (args.bf16, args.gradient_checkpointing, args.optim) == (False, False, "adamw_torch_fused")
    assert (args.max_steps, args.num_iterations, args.beta) == (3, 1, 0.0)
    assert args.cache_implementation == "static"


@needs_trl
def test_a_batch_that_was_chosen_for_another_size_is_cut_to_this_one(machine):
    from benchmarks.model import by_trl

    fewer = replace(SMALL, group_size=2)  # 4 rows
    (reading,) = by_trl.measure_one(Job("update", fewer, 1, 1), machine, PeerChoice(batch=8), silent)
    assert reading.choice.batch == 4
    assert differences([reading]) == []


def test_a_completion_that_ends_early_is_noticed(machine):
    """An end token that the model can sample: what all contenders are told would then not hold."""
    known = replace(machine, sizes=replace(machine.sizes, vocabulary=255))
    longer = replace(SMALL, new_tokens=150)
    job = Job("rollout", longer, warmup=1, timed=1)
    (generated,) = by_generate.measure([job], known, 1, PeerChoice(), silent)
    (ours,) = by_assay.measure([job], known, 1, None, silent)
    for reading in (generated, ours):
        assert reading.work.shortest < 150
        assert "instead of 150" in differences([reading])[0]


def test_the_tokenizer_gives_every_prompt_back_as_it_was():
    tokenizer = tokenizer_of(300)
    tokens = [7, 299, 10, 1, 100]
    assert tokenizer(" ".join(map(str, tokens)))["input_ids"] == tokens
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id) == (0, 300)


def test_no_contender_is_told_an_end_token_that_could_be_sampled(machine):
    suggested = load_model(machine).generation_config
    assert (suggested.eos_token_id, suggested.pad_token_id) == (256, 0)  # the vocabulary ends with 255


def test_sizes_are_those_of_the_model(machine):
    model = AutoModelForCausalLM.from_pretrained(machine.directory)
    assert machine.sizes.body + machine.sizes.head == sum(parameter.numel() for parameter in model.parameters())
    assert machine.sizes.head == 256 * 32
    assert (machine.sizes.layers, machine.sizes.kv_heads, machine.sizes.head_size) == (2, 2, 8)


def test_floors_count_the_operations_that_the_model_makes(machine):
    """Of one prompt and one completion nothing can be shared, so torch's own count must agree. Norms are weights, but
    no matrix products; of attention torch counts the whole square of 20 x 20, of which 210 are seen."""
    alone = Workload(prompts=1, group_size=1, prompt_tokens=12, new_tokens=8)
    model = AutoModelForCausalLM.from_pretrained(machine.directory, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter:
        states = model.model(torch.ones(1, 20, dtype=torch.int64), use_cache=False).last_hidden_state
        model.lm_head(states[:, 11:19]).sum().backward()
    counted = counter.get_flop_counts()["Global"]
    attention = sum(count for operation, count in counted.items() if "bmm" in str(operation))
    products = sum(counted.values()) - attention
    flat = replace(machine.sizes, layers=0)
    assert products == update_operations(replace(flat, body=flat.body - 5 * 32), alone)
    ours = update_operations(machine.sizes, alone) - update_operations(flat, alone)
    assert ours / attention == pytest.approx(210 / 400, rel=0.01)
    assert rollout_operations(machine.sizes, alone) < update_operations(machine.sizes, alone) / 3


@pytest.mark.parametrize(("shape", "millions"), [("135m", 134.5), ("0.5b", 494.0), ("1.5b", 1543.7)])
def test_shapes_have_the_size_of_the_models_they_stand_for(shape, millions, tmp_path):
    from transformers import AutoConfig

    settings = dict(SHAPES[shape])
    AutoConfig.for_model(settings.pop("model_type"), **settings).save_pretrained(tmp_path)
    sizes = sizes_of(tmp_path, torch.bfloat16)
    assert (sizes.body + sizes.head) / 1e6 == pytest.approx(millions, abs=0.1)


def test_the_sum_of_weights_tells_models_apart_and_not_dtypes(machine):
    model = load_model(machine)
    whole = weights_sum(model)
    assert weights_sum(model.double()) == pytest.approx(whole, rel=1e-12)
    with torch.no_grad():
        next(model.parameters())[0, 0] += 0.1
    assert abs(weights_sum(model) - whole) > 1e-6 * whole


PEAKS = """
import torch
from benchmarks.model.device import forget_peak, peak

device = torch.device("cpu")
large = torch.ones(100_000_000)
high = peak(device).process
del large
forget_peak(device)
print(high - peak(device).process)
"""


def test_a_peak_begins_anew(warm_python):
    """In a process of its own, as a run is: this one has had higher peaks."""
    told = subprocess.run([warm_python, "-c", PEAKS], capture_output=True, text=True, check=True)
    assert int(told.stdout) > 300e6


def test_sequences_longer_than_the_context_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="500 \\+ 100 = 600 tokens, but the model's context is 512"):
        prepare("tiny", "cpu", "float32", 1, tmp_path, Workload(1, 2, 500, 100))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--device cuda, but torch sees no GPU"):
        prepare("tiny", "cuda", "auto", 1, tmp_path, SMALL)
