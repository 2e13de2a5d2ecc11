"""Exported weights, loaded again by transformers and PEFT; and the policy of a run, loaded from its checkpoints."""

import errno
import json
import shutil
from dataclasses import replace

import pytest
import torch
from fixtures.tiny import tiny_policy
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from assay import config as configuration
from assay.config import Config, ConfigError
from assay.config.sections import ModelConfig
from assay.policy.load import load_policy
from assay.record import RunDirectory, RunError
from assay.train.evaluate.export import export_run, export_weights
from assay.train.evaluate.saved_policy import open_saved
from assay.train.run import checkpoint
from assay.train.run.saved_weights import fingerprint_of_frozen, put_weights

IDS = torch.tensor([[2, 3, 4, 12, 5, 6], [7, 7, 12, 2, 1, 0]])


def quiet(*_):
    pass


@pytest.fixture(scope="module", autouse=True)
def _surroundings():
    """One thread; threads and kernels put back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)


def config_of(**model):
    return Config(model=ModelConfig(path="embedded", warm_steps=2, **model))


def shaken(policy, seed=0):
    """The policy after some training: every trainable weight moved."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in policy.model.parameters():
            if weight.requires_grad:
                weight.add_(0.05 * torch.randn(weight.shape).to(weight.dtype))
    return policy


def logits(model):
    with torch.no_grad():
        return model(IDS, use_cache=False).logits


def loaded(directory, dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).eval()


def state_of(policy):
    return {name: tensor.clone() for name, tensor in policy.model.state_dict().items()}


def assert_same_state(left, right):
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_an_exported_policy_gives_the_same_logits_bit_for_bit(tmp_path):
    policy = shaken(load_policy(config_of(), quiet))
    export_weights(policy, tmp_path / "out", merge=False, source="embedded")
    assert torch.equal(logits(loaded(tmp_path / "out")), logits(policy.model))
    assert {path.name for path in tmp_path.iterdir()} == {"out"}
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json"} <= names


def test_weights_are_exported_in_the_compute_dtype(tmp_path):
    policy = shaken(load_policy(config_of(dtype="bfloat16"), quiet))
    export_weights(policy, tmp_path / "out", merge=False, source="embedded")
    assert json.loads((tmp_path / "out/config.json").read_text())["dtype"] == "bfloat16"
    assert_same_state(loaded(tmp_path / "out", "auto").state_dict(), state_of(policy))


def test_the_tokenizer_keeps_its_chat_template_and_its_tokens(tmp_path):
    policy = load_policy(config_of(), quiet)
    policy.codec.tokenizer.chat_template = "{{ messages[0]['content'] }}>"
    export_weights(policy, tmp_path / "out", merge=False, source="embedded")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.chat_template == "{{ messages[0]['content'] }}>"
    assert tokenizer.encode("417>") == policy.codec.tokenizer.encode("417>")


def test_a_merged_adapter_gives_the_logits_of_the_policy_and_leaves_the_policy_as_it_was(tmp_path):
    plain = load_policy(config_of(), quiet)
    policy = shaken(load_policy(config_of(lora_rank=4), quiet))
    before, gradients = state_of(policy), [weight.requires_grad for weight in policy.model.parameters()]
    wanted = logits(policy.model)
    export_weights(policy, tmp_path / "out", merge=True, source="embedded")
    merged = loaded(tmp_path / "out")
    torch.testing.assert_close(logits(merged), wanted, rtol=0, atol=1e-5)
    assert (logits(merged) - logits(plain.model)).abs().max() > 1e-2
    assert merged.state_dict().keys() == plain.model.state_dict().keys()
    assert_same_state(state_of(policy), before)
    assert [weight.requires_grad for weight in policy.model.parameters()] == gradients
    assert torch.equal(logits(policy.model), wanted)


def test_an_adapter_alone_is_saved_the_peft_way_and_names_its_base_model(tmp_path):
    base = tmp_path / "base"
    export_weights(load_policy(config_of(), quiet), base, merge=False, source="embedded")
    config = Config(model=ModelConfig(path=str(base), lora_rank=4))
    policy = shaken(load_policy(config, quiet))
    export_weights(policy, tmp_path / "adapter", merge=False, source=base)
    names = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json"} <= names
    assert "model.safetensors" not in names
    settings = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str(base)
    again = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval()
    assert torch.equal(logits(again), logits(policy.model))


def test_an_adapter_config_is_the_same_in_every_process(tmp_path):
    """PEFT keeps the names of modules in a set, whose order is another one in every process."""
    policy = shaken(load_policy(config_of(lora_rank=2), quiet))
    before = policy.adapter.peft_config["default"].target_modules
    export_weights(policy, tmp_path / "adapter", merge=False, source="embedded")
    text = (tmp_path / "adapter/adapter_config.json").read_text()
    settings = json.loads(text)
    assert len(before) > 6
    assert settings["target_modules"] == sorted(before)
    assert text == json.dumps(settings, indent=2, sort_keys=True)
    assert policy.adapter.peft_config["default"].target_modules is before
    assert isinstance(before, set)


@pytest.mark.parametrize("source", ["owner/name", "smollm2", "embedded", "/models/mine.gguf"])
def test_an_adapter_names_its_base_as_the_user_did_and_no_cache_of_this_machine(tmp_path, source):
    policy = load_policy(config_of(lora_rank=2), quiet)
    before = policy.adapter.peft_config["default"].base_model_name_or_path
    export_weights(policy, tmp_path / "adapter", merge=False, source=source)
    settings = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == source
    assert not [file.name for file in (tmp_path / "adapter").iterdir() if b"assay" in file.read_bytes()]
    assert policy.adapter.peft_config["default"].base_model_name_or_path == before


def test_an_existing_target_is_refused_and_left_alone(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="out exists already"):
        export_weights(load_policy(config_of(), quiet), tmp_path / "out", merge=False, source="embedded")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_target_that_appears_while_the_weights_are_written_is_left_alone(tmp_path, monkeypatch):
    policy = load_policy(config_of(), quiet)
    save = policy.codec.tokenizer.save_pretrained

    def meanwhile(directory):
        save(directory)
        (tmp_path / "out").mkdir()
        (tmp_path / "out/mine.txt").write_text("mine")

    monkeypatch.setattr(policy.codec.tokenizer, "save_pretrained", meanwhile)
    with pytest.raises(ConfigError, match="out exists already"):
        export_weights(policy, tmp_path / "out", merge=False, source="embedded")
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == {"out", "out/mine.txt"}


def test_an_export_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    policy = load_policy(config_of(), quiet)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(policy.codec.tokenizer, "save_pretrained", full)
    with pytest.raises(RunError, match=r"out could not be written: No space left on device; free some disk space"):
        export_weights(policy, tmp_path / "out", merge=False, source="embedded")
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- from a run


def a_run(path, config, *policies):
    """A run directory with one checkpoint a policy: update-00000002 after step 1, update-00000004 after step 2, ..."""
    run = RunDirectory.create(path, configuration.to_toml(config, meanings=False), {})
    for number, policy in enumerate(policies, start=1):
        weights = policy.model.state_dict()
        if policy.adapter is not None:
            weights = {name: weight for name, weight in weights.items() if "lora_" in name}
        name = f"update-{2 * number:08d}"
        state = {"place": {"step": number}, "frozen": fingerprint_of_frozen(policy.model)}
        checkpoint.save(run.path / "checkpoints", name, {"weights": weights}, state, keep=9)
    return path


def everything_in(path):
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in path.rglob("*") if file.is_file()}


def test_the_newest_checkpoint_of_a_run_is_its_policy(tmp_path):
    config = config_of()
    first, second = (shaken(load_policy(config, quiet), seed) for seed in (1, 2))
    run = a_run(tmp_path / "run", config, first, second)
    before = everything_in(run)
    newest = open_saved(run, config, None, quiet, pytest.fail)
    assert (newest.step, newest.name) == (2, "update-00000004")
    assert_same_state(state_of(newest.policy), state_of(second))
    named = open_saved(run, config, "update-00000002", quiet, pytest.fail)
    assert (named.step, named.name) == (1, "update-00000002")
    assert_same_state(state_of(named.policy), state_of(first))
    assert everything_in(run) == before


def test_a_damaged_checkpoint_is_passed_over_aloud_and_refused_by_name(tmp_path):
    config = config_of()
    first = shaken(load_policy(config, quiet), 1)
    run = a_run(tmp_path / "run", config, first, shaken(load_policy(config, quiet), 2))
    (run / "checkpoints/update-00000004/weights.safetensors").write_bytes(b"x")
    heard = []
    assert open_saved(run, config, None, quiet, heard.append).name == "update-00000002"
    assert len(heard) == 1
    assert "update-00000004 is damaged" in heard[0]
    with pytest.raises(RunError, match=r"checkpoint update-00000004 is damaged: weights\.safetensors has 1 of"):
        open_saved(run, config, "update-00000004", quiet, pytest.fail)


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(tmp_path):
    config = config_of()
    run = a_run(tmp_path / "run", config, load_policy(config, quiet))
    for name in ("update-9", "../checkpoints/update-00000002", ""):
        with pytest.raises(RunError, match="it holds update-00000002"):
            open_saved(run, config, name, quiet, pytest.fail)
    with pytest.raises(RunError, match="final does not exist: the run is not finished"):
        open_saved(run, config, "final", quiet, pytest.fail)


def test_the_checkpoint_of_a_lora_run_holds_the_adapter_alone_and_is_enough(tmp_path):
    config = config_of(lora_rank=4)
    policy = shaken(load_policy(config, quiet))
    run = a_run(tmp_path / "run", config, policy)
    again = open_saved(run, config, None, quiet, pytest.fail).policy
    assert_same_state(state_of(again), state_of(policy))
    for merge in (True, False):
        shutil.rmtree(run / "final", ignore_errors=True)
        export_weights(policy, run / "final", merge=merge, source="embedded")
        final = open_saved(run, config, "final", quiet, pytest.fail)
        torch.testing.assert_close(logits(final.policy.model), logits(policy.model), rtol=0, atol=1e-5)
        assert (final.policy.adapter is None) == merge


def test_weights_that_do_not_fit_are_refused():
    policy = load_policy(config_of(lora_rank=2), quiet)
    weights = {name: weight for name, weight in state_of(policy).items() if "lora_" in name}
    name = min(weights)
    with pytest.raises(RunError, match=f"here do not fit.*it lacks {name};"):
        put_weights(policy, {key: weight for key, weight in weights.items() if key != name}, "here")
    with pytest.raises(RunError, match="the model has no stranger;"):
        put_weights(policy, {**weights, "stranger": torch.zeros(1)}, "here")
    with pytest.raises(RunError, match=rf"{name} has shape \[1\] instead of"):
        put_weights(policy, {**weights, name: torch.zeros(1)}, "here")


def test_a_run_is_exported_from_its_checkpoint(tmp_path):
    config = config_of()
    policy = shaken(load_policy(config, quiet))
    run = a_run(tmp_path / "run", config, policy)
    how = {"merge": False, "name": None, "on_warm_step": quiet, "report": pytest.fail}
    export_run(run, tmp_path / "deep/out", **how)
    assert torch.equal(logits(loaded(tmp_path / "deep/out")), logits(policy.model))
    with pytest.raises(ConfigError, match="out exists already"):
        export_run(run, tmp_path / "deep/out", **how)
    with pytest.raises(RunError, match="is not a run directory"):
        export_run(tmp_path / "deep/out", tmp_path / "other", **how)


@pytest.mark.parametrize("inside", ["inside", "deep/er", "../link/inside", "checkpoints/../inside"])
def test_an_export_into_the_run_it_reads_is_refused(tmp_path, inside):
    run = a_run(tmp_path / "run", config_of(), load_policy(config_of(), quiet))
    (tmp_path / "link").symlink_to(run)
    before = everything_in(tmp_path)
    with pytest.raises(ConfigError, match=r"(inside|er) lies inside the run .*give a directory outside it"):
        export_run(run, run / inside, merge=False, name=None, on_warm_step=quiet, report=pytest.fail)
    assert everything_in(tmp_path) == before


def test_a_target_that_is_an_existing_directory_by_a_detour_is_refused(tmp_path):
    run = a_run(tmp_path / "run", config_of(), load_policy(config_of(), quiet))
    with pytest.raises(ConfigError, match=rf"^{tmp_path} exists already; give a directory that does not exist yet"):
        export_run(run, tmp_path / "sub/..", merge=False, name=None, on_warm_step=quiet, report=pytest.fail)
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def test_the_config_of_an_export_is_that_of_the_run(tmp_path):
    config = config_of(lora_rank=4)
    run = a_run(tmp_path / "run", config, shaken(load_policy(config, quiet)))
    plain = replace(config, model=replace(config.model, lora_rank=0))
    with pytest.raises(RunError, match="is not the one that update-00000002 was trained on"):
        open_saved(run, plain, None, quiet, pytest.fail)


def test_exported_files_are_as_readable_as_any_other(tmp_path):
    policy = tiny_policy()
    export_weights(policy, tmp_path / "out", merge=False, source="somewhere")
    (tmp_path / "other").write_text("")
    wanted = (tmp_path / "other").stat().st_mode
    assert {file.name: file.stat().st_mode for file in (tmp_path / "out").iterdir()} == {
        file.name: wanted for file in (tmp_path / "out").iterdir()
    }


def test_an_exported_model_ends_its_answers_with_the_same_tokens(tmp_path):
    """A config class assumes an end token where config.json names none; here the tokenizer names another one."""
    policy = tiny_policy()
    policy.model.save_pretrained(tmp_path / "model")
    policy.codec.tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").unlink()
    settings = json.loads((tmp_path / "model" / "config.json").read_text())
    del settings["eos_token_id"]
    (tmp_path / "model" / "config.json").write_text(json.dumps(settings))
    before = load_policy(Config(model=ModelConfig(path=str(tmp_path / "model"))), quiet)
    export_weights(before, tmp_path / "out", merge=False, source="x")
    after = load_policy(Config(model=ModelConfig(path=str(tmp_path / "out"))), quiet)
    assert before.eos_ids == after.eos_ids == (1,)
