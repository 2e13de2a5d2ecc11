"""model.path = a run: the new run begins with exactly its policy, keeps what it needs of it, and records its source."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from fixtures.cases import thorough
from fixtures.commands import Trap, contents, rows, settings

from assay import config as configuration
from assay.policy.where import source_of
from assay.train.evaluate.saved_policy import open_saved
from assay.train.run.seed import inherit

IDS = torch.tensor([[2, 3, 4, 12, 5, 6], [7, 7, 12, 2, 1, 0]])
SHORT = {"run__steps": 2, "loss__kl_coef": 0.01, "evaluate__prompts": 16, "checkpoint__keep": 9}
LORA = {"model__lora_rank": 4, "model__lora_alpha": 8.0}


@pytest.fixture(scope="module", autouse=True)
def _surroundings():
    """Threads and kernels are put back."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def sources(assay_command, run_root):
    """Two finished runs: one that trained all weights, and one of adapters."""
    place = Path(tempfile.mkdtemp(dir=run_root))
    for name, changes in {"full": {}, "lora": LORA}.items():
        ended = assay_command.run("train", *settings(**SHORT, **changes), "--out", place / name)
        assert ended.code == 0, ended.stderr
    return place


def train(assay_command, run, **changes):
    ended = assay_command.run("train", *settings(**{**SHORT, **changes}), "--out", run)
    assert ended.code == 0, ended.stderr
    return ended


def policy_of(run, name=None):
    config = configuration.load(run / "config.toml")
    return open_saved(run, config, name, lambda done, total: None, lambda sentence: None).policy


def assert_same_run(run, straight):
    """To the last bit; but an adapter names the directory of its base model, which is the run's own."""
    got, wanted = contents(run), contents(straight)
    assert sorted(got) == sorted(wanted)
    assert [name for name in wanted if got[name] != wanted[name] and name != "final/adapter_config.json"] == []
    assert not list(run.glob(".*"))
    assert {path.name for path in (run / "seed").iterdir()} == {path.name for path in (straight / "seed").iterdir()}


def logits(policy):
    with torch.no_grad():
        return policy.logits(IDS)


def refused(assay_command, run, path, *words, **changes):
    ended = assay_command.run("train", *settings(**SHORT, model__path=path, **changes), "--out", run)
    assert ended.code == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.sentences) == 1
    assert [word for word in words if word not in ended.sentences[0]] == [], ended.sentences[0]
    assert not run.exists()


@pytest.mark.parametrize(
    ("name", "place", "changes"),
    [
        ("full", "checkpoints/update-00000008", {}),
        ("full", "final", LORA),
        ("lora", "", LORA),
        *thorough(("full", "", {}), ("full", "final", {}), ("full", "", LORA), ("lora", "final", LORA)),
    ],
)
def test_before_its_first_update_a_seeded_run_has_exactly_the_policy_of_its_source(
    assay_command, sources, run_path, name, place, changes
):
    said = train(assay_command, run_path, model__path=sources / name / place, **changes).stderr
    old, new = policy_of(sources / name), policy_of(run_path, "update-00000000")
    assert torch.equal(logits(old), logits(new))
    assert old.eos_ids == new.eos_ids
    # the same answers to the held-out problems, greedy and sampled
    last, first = rows(sources / name / "evaluations.jsonl")[-1], rows(run_path / "evaluations.jsonl")[0]
    assert {**last, "step": 0} == first
    assert not torch.equal(logits(new), logits(policy_of(run_path)))
    # where it is from
    source = rows(run_path / "events.jsonl")[0]
    assert source["kind"] == "seeded"
    assert source["step"] == 2
    assert source["source"] == configuration.load(run_path / "config.toml").model.path
    assert f"the policy begins as that of {source['source']}, after step 2" in said
    (weights,) = source["weights"].values()
    assert len(weights["sha256"]) == 64


def test_the_reference_is_the_seeded_model_with_its_adapter(assay_command, sources, run_path):
    """One update a step: the first is at the reference itself, where its KL is 0."""
    one = {"optimizer__epochs": 1, "optimizer__minibatches": 1, "loss__kl_coef": 0.1}
    train(assay_command, run_path, model__path=sources / "lora", **LORA, **one)
    first, second = rows(run_path / "metrics.jsonl")
    assert first["ref_kl"] == 0
    assert second["ref_kl"] > 0


@pytest.mark.parametrize("changes", [{}, {"model__lora_rank": 2}])
def test_an_adapter_of_other_settings_is_merged(assay_command, sources, run_path, changes):
    said = train(assay_command, run_path, model__path=sources / "lora", **changes).stderr
    assert "its adapter of rank 4, merged into its model: equal except for rounding" in said
    old, new = logits(policy_of(sources / "lora")), logits(policy_of(run_path, "update-00000000"))
    assert (old - new).abs().max() < 1e-5
    trained = policy_of(run_path).model.named_parameters()
    assert {("lora_" in name) for name, weight in trained if weight.requires_grad} == {bool(changes)}


@pytest.mark.parametrize("changes", [{}, LORA])
def test_a_seeded_run_needs_nothing_of_its_source_any_more(assay_command, sources, run_path, changes):
    source = run_path.parent / "source"
    shutil.copytree(sources / ("lora" if changes else "full"), source)
    changes = {**changes, "evaluate__prompts": 0}  # a longer run is not evaluated at the end of the shorter one
    train(assay_command, run_path, model__path=source, **changes)
    straight = run_path.with_name("straight")
    train(assay_command, straight, model__path=source, **{**changes, "run__steps": 3})
    source.rename(source.with_name("gone"))
    ended = assay_command.run("train", "--resume", run_path, "--set", "run.steps=3")
    assert ended.code == 0, ended.stderr
    assert_same_run(run_path, straight)
    before = logits(policy_of(run_path))
    assert torch.equal(before, logits(policy_of(run_path, "final")))
    assert assay_command.run("eval", run_path, "--prompts", "4").code == 0
    exported = run_path.with_name("exported")
    assert assay_command.run("export", run_path, "--out", exported, "--merge").code == 0
    # and it can seed another one
    train(assay_command, run_path.with_name("next"), model__path=run_path, **changes)
    assert torch.equal(before, logits(policy_of(run_path.with_name("next"), "update-00000000")))


@pytest.fixture(scope="module", params=["full", "lora"])
def seeded(request, assay_command, sources, run_root):
    """The settings of a seeded run, and the run that was never killed."""
    chosen = {"model__path": sources / request.param, **(LORA if request.param == "lora" else {})}
    straight = Path(tempfile.mkdtemp(dir=run_root)) / "straight"
    train(assay_command, straight, **chosen)
    return chosen, straight


@pytest.mark.parametrize(
    ("place", "number", "when"),
    [
        ("assay.train.run.seed:durable.sync_file", 2, "before"),
        ("assay.train.run.run:write_seed", 1, "after"),
        ("assay.train.step.learner:Learner.update", 3, "after"),
        *thorough(("assay.train.run.run:write_seed", 1, "before"), ("os:rename", 2, "before")),
    ],
)
def test_a_seeded_run_that_was_killed_resumes_to_the_same_bits(assay_command, seeded, run_path, place, number, when):
    chosen, straight = seeded
    trap = Trap(place, number, "KILL", when)
    ended = assay_command.run("train", *settings(**SHORT, **chosen), "--out", run_path, traps=[trap])
    assert ended.code == -9, ended.stderr
    ended = assay_command.run("train", "--resume", run_path)
    assert ended.code == 0, ended.stderr
    assert_same_run(run_path, straight)


def test_a_seed_that_changed_or_is_missing_is_refused_by_name(assay_command, sources, run_path):
    train(assay_command, run_path, model__path=sources / "full")
    weights = run_path / "seed" / "model.safetensors"
    whole = weights.read_bytes()
    assert assay_command.run("verify", run_path).code == 0
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "seed/model.safetensors does not match its checksum" in assay_command.run("verify", run_path).stdout
    for command in (("train", "--resume", run_path, "--set", "run.steps=3"), ("eval", run_path)):
        ended = assay_command.run(*command)
        assert ended.code == 2, ended.stderr
        assert f"{weights} has changed: it is the model that the run began with" in ended.sentences[0]
    weights.unlink()
    assert f"{weights} is missing" in assay_command.run("eval", run_path).sentences[0]
    (run_path / "seed" / "seed.json").write_text("[" * 100_000)
    assert "seed.json is damaged" in assay_command.run("eval", run_path).sentences[0]
    shutil.rmtree(run_path / "seed")
    assert f"{run_path / 'seed'} is missing" in assay_command.run("eval", run_path).sentences[0]


def test_a_source_that_cannot_seed_a_run_is_refused_before_anything_is_written(assay_command, sources, run_path):
    source = run_path.parent / "source"
    shutil.copytree(sources / "full", source)
    refused(assay_command, run_path, source / "checkpoints", "holds the checkpoints of a run; name one of them")
    refused(assay_command, run_path, source / "checkpoints" / "update-99", "holds no checkpoint 'update-99'")
    shutil.rmtree(source / "final")
    (source / "final").mkdir()
    refused(assay_command, run_path, source / "final", "no config.json in it")
    (source / "final").rmdir()
    refused(assay_command, run_path, source / "final", "does not exist: the run is not finished")
    for file in source.glob("checkpoints/*/weights.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    refused(assay_command, run_path, source, "holds no whole checkpoint")
    shutil.rmtree(source / "checkpoints")
    refused(assay_command, run_path, source, str(source), "holds no checkpoint")
    (source / "config.toml").write_text("[run\n")
    refused(assay_command, run_path, source, str(source / "config.toml"), "not valid TOML")
    (source / "config.toml").unlink()
    os.mkfifo(source / "config.toml")  # nobody waits for it
    refused(assay_command, run_path, source, str(source / "config.toml"), "not a regular file")
    refused(assay_command, run_path, sources / "lora", "leave model.dtype = 'auto'", **LORA, model__dtype="bfloat16")


def test_the_rewards_of_the_source_are_not_run(assay_command, sources, run_path):
    source = run_path.parent / "source"
    shutil.copytree(sources / "full", source)
    reward = run_path.parent / "reward.py"
    trace = f"open({str(run_path.parent / 'RAN')!r}, 'w')"
    reward.write_text(f"{trace}\ndef score(prompt, completion, answer):\n    return 1.0\n")
    text = (source / "config.toml").read_text()
    assert "functions = []" in text
    (source / "config.toml").write_text(
        text.replace("functions = []", f"functions = [{json.dumps(f'{reward}:score')}]")
    )
    train(assay_command, run_path, model__path=source)
    assert not (run_path.parent / "RAN").exists()


def test_only_the_places_of_a_run_are_runs(sources, tmp_path):
    run = sources / "full"
    assert source_of(str(run)).name is None
    assert source_of(str(run / "final")).name == "final"
    assert source_of(str(run / "checkpoints" / "update-00000008")).name == "update-00000008"
    assert [source_of(path) for path in ("embedded", "smollm2", "owner/name", str(tmp_path), "")] == [None] * 5
    assert source_of(str(run / "rollouts")) is None


def test_dtype_and_threads_that_are_left_open_are_those_of_the_source(sources, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "run.json").write_text((sources / "full" / "run.json").read_text())
    text = (sources / "full" / "config.toml").read_text()
    assert "threads = 1\n" in text
    text = text.replace("threads = 1\n", "threads = 3\n").replace('dtype = "float32"', 'dtype = "bfloat16"')
    (source / "config.toml").write_text(text)
    taken = inherit(configuration.load(None, [f"model.path={source}"]))
    assert (taken.run.threads, taken.model.dtype) == (3, "bfloat16")
    kept = inherit(configuration.load(None, [f"model.path={source}", "run.threads=2", "model.dtype=float32"]))
    assert (kept.run.threads, kept.model.dtype) == (2, "float32")
    assert inherit(configuration.load(None)) == configuration.load(None)


def test_a_run_of_the_embedded_model_has_its_defaults_and_other_runs_do_not(sources, tmp_path):
    for place in ("", "final", "checkpoints/update-00000008"):
        config = configuration.load(None, [f"model.path={sources / 'full' / place}"])
        assert config.optimizer.learning_rate == configuration.Config().optimizer.learning_rate
        assert config.rollout == configuration.Config().rollout
    run = tmp_path / "other"
    run.mkdir()
    (run / "run.json").write_text("{}")
    for text in ('[model]\npath = "smollm2"\n', f'[model]\npath = "{run}"\n', "[model\n", "[model]\n"):
        (run / "config.toml").write_text(text)  # of a real model, in a circle, damaged, without a model
        assert configuration.load(None, [f"model.path={run}"]).optimizer.learning_rate == "auto"
