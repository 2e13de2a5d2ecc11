"""The model card of an export, and that an occupied target is refused before anything is loaded."""

import pytest
from fixtures.child_process import run_child
from fixtures.fake_records import fake_record

from assay import config as configuration
from assay.config import load
from assay.record import RunDirectory
from assay.train.evaluate.model_card import model_card

ENVIRONMENT = {"python": "3.11.7", "packages": {"torch": "2.13.0", "assay": "0.1.0", "peft": None}}
SCORES = {"prompts": 32, "k": 4, "reward_greedy_std_error": 0.06, "pass_at_1": 0.25, "pass_at_k": 0.5}


def a_run(path, *overrides, evaluations=()):
    config = load(None, overrides)
    run = RunDirectory.create(path, configuration.to_toml(config, meanings=False), ENVIRONMENT)
    run.append_step(fake_record())
    for step, reward in evaluations:
        run.append_evaluation({"step": step, **SCORES, "reward_greedy": reward, "reward_sampled": reward / 2})
    return path, config


def test_a_card_says_what_was_trained_from_what_and_how_well_it_does(tmp_path):
    settings = ["model.path=owner/name", "optimizer.learning_rate=1e-5", "task.name=rows.jsonl", "loss.kl_coef=0.04"]
    rewards = ['reward.functions=["mine.py:style", "exact"]', "reward.weights=[0.5, 1.0]"]
    run, config = a_run(tmp_path / "run", *settings, *rewards, evaluations=[(0, 0.04), (10, 0.5), (20, 0.8)])
    card = model_card(run, config, step=20, merge=False)
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: text-generation\nbase_model: owner/name\n")
    for line in (
        "| base model | `owner/name` |",
        "| trained | all weights |",
        "| task | `rows.jsonl` |",
        "| reward | 0.5 x `style`, 1 x `exact` |",
        "| objective | dapo, KL coefficient 0.04, learning rate 1e-05 |",
        "| steps | 20, each of 8 prompts x 8 answers of up to 256 tokens |",
        "|  | before training | after step 20 |",
        "| reward, greedy answer | 0.040 +- 0.060 | 0.800 +- 0.060 |",
        'model = AutoModelForCausalLM.from_pretrained("path/to/this/directory")',
        "python 3.11.7, assay 0.1.0, torch 2.13.0",
    ):
        assert line in card.splitlines(), line
    assert str(tmp_path) not in card


def test_a_card_of_an_earlier_checkpoint_has_the_scores_up_to_it(tmp_path):
    run, config = a_run(tmp_path / "run", evaluations=[(0, 0.04), (10, 0.5), (20, 0.8)])
    assert "after step 10" in model_card(run, config, step=15, merge=False)
    assert "0.800" not in model_card(run, config, step=15, merge=False)
    run, config = a_run(tmp_path / "other", "evaluate.prompts=0")
    assert "It was not evaluated." in model_card(run, config, step=15, merge=False)


def test_the_card_of_an_adapter_says_how_it_meets_its_base(tmp_path):
    lora = ["model.lora_rank=8", "model.path=smollm2"]
    run, config = a_run(tmp_path / "run", *lora)
    adapter, merged = (model_card(run, config, step=1, merge=merge) for merge in (False, True))
    assert "library_name: peft" in adapter
    assert "PeftModel.from_pretrained(base" in adapter
    assert "`assay export RUN --merge` writes full weights" in adapter  # smollm2 is not a directory
    assert "library_name: transformers" in merged
    assert "LoRA adapters of rank 8, added into the weights" in merged
    assert "PeftModel" not in merged


def test_a_name_cannot_break_out_of_its_cell(tmp_path):
    run, config = a_run(tmp_path / "run", "task.name=a`|b\\n# c.jsonl")
    (row,) = [line for line in model_card(run, config, step=1, merge=False).splitlines() if line.startswith("| task")]
    assert row == "| task | `a'\\|b\\n# c.jsonl` |"


@pytest.mark.parametrize("arguments", [["run", "--out", "taken"], ["nowhere", "--out", "free"]])
def test_an_export_that_cannot_be_made_is_refused_before_torch_is_imported(tmp_path, monkeypatch, arguments):
    a_run(tmp_path / "run")
    (tmp_path / "taken").mkdir()
    monkeypatch.chdir(tmp_path)
    code = (
        "import sys; from typer.testing import CliRunner; from assay.cli import app;"
        "done = CliRunner().invoke(app, ['export', *sys.argv[1:]]);"
        "print(done.exit_code, 'torch' in sys.modules, done.output.strip())"
    )
    said = run_child(code, *arguments)
    assert said.startswith("2 False assay: ")
    assert "exists already" in said or "does not exist; give the directory" in said
    assert list((tmp_path / "taken").iterdir()) == []
