"""Models by name: a small checkpoint of the same family, which the real from_pretrained loads."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from assay.rehearsal import checkpoint
from assay.rehearsal.problems import Formats, formats_of
from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.families import family_of
from assay.rehearsal.standins.generation import cut
from assay.rehearsal.standins.models import constants_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "model_type", "end", "pad", "labels"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2", "<|im_end|>", "<|endoftext|>", 0),
        ("Qwen/Qwen2.5-1.5B", "qwen2", "<|endoftext|>", "<|endoftext|>", 0),
        ("Qwen/Qwen3-0.6B", "qwen3", "<|im_end|>", "<|endoftext|>", 0),
        ("meta-llama/Llama-3.2-1B-Instruct", "llama", "<|eot_id|>", None, 0),
        ("unsloth/Llama-3.2-1B", "llama", "<|end_of_text|>", "<|finetune_right_pad_id|>", 0),
        ("mistralai/Mistral-7B-Instruct-v0.2", "mistral", "</s>", None, 0),
        ("google/gemma-2-2b-it", "gemma2", "<eos>", "<pad>", 0),
        ("openai-community/gpt2", "gpt2", "<|endoftext|>", None, 0),
        ("EleutherAI/pythia-1b-deduped", "gpt_neox", "<|endoftext|>", None, 0),
        ("facebook/opt-350m", "opt", "</s>", "<pad>", 0),
        ("microsoft/phi-2", "phi", "<|endoftext|>", None, 0),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "llama", "<|im_end|>", "<|im_end|>", 0),
        ("lvwerra/distilbert-imdb", "distilbert", "[SEP]", "[PAD]", 2),
        ("OpenAssistant/reward-model-deberta-v3-large-v2", "deberta-v2", "[SEP]", "[PAD]", 1),
        ("./checkpoints/step_100", "qwen2", "<|endoftext|>", "<|endoftext|>", 0),
        ("/home/me/models/Qwen2___5-0___5B-Instruct", "qwen2", "<|im_end|>", "<|endoftext|>", 0),
    ],
)
def test_a_name_has_the_tokens_of_its_family(name, model_type, end, pad, labels):
    family = family_of(name)
    assert (family.model_type, family.tokens.eos, family.tokens.pad, family.labels) == (model_type, end, pad, labels)


class Config:
    def __init__(self, **settings):
        self.max_new_tokens = self.max_length = self.min_new_tokens = None
        self.__dict__.update(settings)


@pytest.mark.parametrize(
    ("own", "settings", "models", "expected"),
    [
        (None, {"max_new_tokens": 512}, Config(), {"max_new_tokens": 24}),
        (None, {"max_new_tokens": 8}, Config(), {"max_new_tokens": 8}),
        (None, {"max_length": 612}, Config(), {"max_new_tokens": 24}),
        (None, {"max_length": 110}, Config(), {"max_length": 110}),
        (None, {}, Config(max_new_tokens=2048), {"max_new_tokens": 24}),
        (None, {}, Config(max_length=20), {}),
        (Config(max_new_tokens=300), {}, Config(), {"max_new_tokens": 24}),
        (None, {"max_new_tokens": 512, "min_new_tokens": 512}, Config(), {"max_new_tokens": 24, "min_new_tokens": 24}),
    ],
)
def test_a_completion_is_cut_wherever_its_length_was_given(own, settings, models, expected, tmp_path):
    stage = Stage(script=tmp_path / "script.py", folder=tmp_path, home=tmp_path, most_tokens=24)
    config, made = cut(own, settings, models, 100, stage)
    assert made == expected
    if own is not None:
        assert (config.max_new_tokens, own.max_new_tokens) == (None, 300)  # the script's own stays as it was
    assert bool(stage.replacements) == (made != settings)


SCRIPT = """
import json, torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

torch.manual_seed(0)
before = torch.random.get_rng_state()
name = "Qwen/Qwen2.5-0.5B-Instruct"
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16, device_map="auto",
                                             attn_implementation="flash_attention_2")
after = torch.random.get_rng_state()
plain = AutoModelForCausalLM.from_pretrained("./models/Qwen2.5-0.5B-Instruct")
text = "Tom has 3 apples and gets 2 more.\\n<answer>5</answer> \\u00e4"
chat = tokenizer.apply_chat_template([{"role": "user", "content": "What is 2 + 3?"}], add_generation_prompt=True)
ids = tokenizer("What is 2 + 3?", return_tensors="pt")
torch.manual_seed(1)
out = model.generate(**ids, max_new_tokens=400, do_sample=True, pad_token_id=tokenizer.pad_token_id)
config = GenerationConfig.from_pretrained(name)
effective = []
prepare = model._prepare_generation_config
def remember(*args, **settings):
    prepared = prepare(*args, **settings)
    effective.append([prepared[0].temperature, prepared[0].top_k, prepared[0].top_p])
    return prepared
model._prepare_generation_config = remember
model.generate(**ids, max_new_tokens=1, do_sample=True, temperature=0.9)
model.generate(**ids, generation_config=GenerationConfig(max_new_tokens=1, do_sample=True, temperature=0.9))
print("RESULT" + json.dumps({
    "round trip": tokenizer.decode(tokenizer(text)["input_ids"]) == text,
    "dtypes": [str(model.dtype), str(plain.dtype)],
    "chat": tokenizer.decode(chat) if isinstance(chat, list) else str(type(chat)),
    "made": out.shape[1] - ids["input_ids"].shape[1],
    "generation": [config.temperature, config.top_p, config.top_k, config.repetition_penalty],
    "effective": effective,
    "same state": bool((before == after).all()),
    "rows": AutoConfig.from_pretrained(name).vocab_size - len(tokenizer),
    "encoded": len(tokenizer.batch_encode_plus(["a", "b"])["input_ids"]),
}))
"""

DRIVER = """
import sys
from pathlib import Path
from assay.rehearsal.stage import Stage
from assay.rehearsal.standins import generation, models
script, home = Path(sys.argv[1]), Path(sys.argv[2])
stage = Stage(script=script, folder=script.parent, home=home)
models.install(stage)
generation.install(stage)
stage.open()
code = compile(script.read_text(), str(script), "exec")
getattr(__import__("builtins"), "exec")(code, {"__name__": "__main__"})
print("REPLACED" + ",".join(sorted({made.kind for made in stage.replacements})))
"""


def test_a_script_loads_its_model_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "_UPDATES", 2)
    cache = tmp_path / "cache"
    name = "Qwen/Qwen2.5-0.5B-Instruct"
    monkeypatch.setattr(  # in this process, which has imported what it takes
        checkpoint,
        "_make_in_own_process",
        lambda name, formats, folder: checkpoint.write(family_of(name), formats, folder),
    )
    formats = formats_of(constants_of(iter([ast.parse(SCRIPT)])))
    assert (formats.thinking, formats.answer) == ((), ("answer",))
    folder = checkpoint.checkpoint_of(name, formats, cache / "assay" / "rehearsal")
    stored = json.loads((folder / "config.json").read_text())
    assert (stored["torch_dtype"], stored["model_type"]) == ("bfloat16", "qwen2")
    script = tmp_path / "work" / "script.py"
    script.parent.mkdir()
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(script), str(tmp_path / "home")],
        env={"PATH": "", "XDG_CACHE_HOME": str(cache), "HOME": str(tmp_path), "PYTHONPATH": str(ROOT),
             "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True, cwd=script.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    found = json.loads(next(line for line in lines if line.startswith("RESULT")).removeprefix("RESULT"))
    assert found["round trip"]
    assert found["dtypes"] == ["torch.bfloat16", "torch.float32"]
    assert found["chat"].endswith("<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n")
    assert 1 <= found["made"] <= 24
    assert found["generation"] == [0.7, 0.8, 20, 1.05]
    assert found["effective"] == [[0.9, 20, 0.8], [0.9, 50, 1.0]]  # as transformers 4 has it
    assert found["same state"]
    assert found["rows"] > 0
    assert found["encoded"] == 2
    assert "REPLACEDdevice,sizes,weights" in lines


def test_a_maker_answers_from_outside_and_reports_what_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(name, formats, folder):
        if "broken" in name:
            raise RuntimeError("no such thing")
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps([name, formats.answer]))

    monkeypatch.setattr(checkpoint, "_make_in_own_process", make)
    home = tmp_path / "home"
    with checkpoint.Maker(home):
        folder = checkpoint.get("gpt2", Formats(answer=("a",)), home)
        assert json.loads((folder / "config.json").read_text()) == ["gpt2", ["a"]]
        assert folder.is_relative_to(tmp_path / "cache")
        assert checkpoint.get("gpt2", Formats(answer=("a",)), home) == folder
        with pytest.raises(RuntimeError, match="no such thing"):
            checkpoint.get("broken/opt-1b", Formats(), home)
