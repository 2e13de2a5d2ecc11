"""A GenerationConfig that is given to the model for all its draws: what it says of sampling counts (SAMP02, SAMP04)."""

import pytest
from doctor.illnesses.read_script import codes_in, edit_script

from assay.doctor.examples.scripts import GENERATE

CALL = "**prompts, do_sample=True, temperature=0.7, top_k=0, top_p=1.0, max_new_tokens=64"
MADE = 'model = AutoModelForCausalLM.from_pretrained("tiny")\n'
CODES = ("SAMP01", "SAMP02", "SAMP03", "SAMP04")
PLAIN = "do_sample=True, temperature=0.7, top_k=0, top_p=1.0, max_new_tokens=64"
SOUND = {
    "all is said": (f"model.generation_config = GenerationConfig({PLAIN})", "**prompts"),
    "a penalty of one": (f"model.generation_config = GenerationConfig({PLAIN}, repetition_penalty=1.0)", "**prompts"),
    "one after the other": (
        "model.generation_config = GenerationConfig(do_sample=True, top_k=5)\n"
        f"model.generation_config = GenerationConfig({PLAIN})",
        "**prompts",
    ),
    "the call says otherwise": (
        f"model.generation_config = GenerationConfig({PLAIN}, repetition_penalty=1.3)",
        "**prompts, repetition_penalty=1.0",
    ),
    "of another model": (
        'judge = AutoModelForCausalLM.from_pretrained("judge")\njudge.generation_config = GenerationConfig(top_k=5)',
        CALL,
    ),
}
FAULTY = {
    "a penalty": (
        f"model.generation_config = GenerationConfig({PLAIN}, repetition_penalty=1.3)",
        "**prompts",
        {"SAMP02"},
    ),
    "a cut": (
        "model.generation_config = GenerationConfig(do_sample=True, temperature=0.7, top_k=5, top_p=1.0)",
        "**prompts",
        {"SAMP02"},
    ),
    "the likeliest token": (
        "model.generation_config = GenerationConfig(do_sample=False, max_new_tokens=64)",
        "**prompts",
        {"SAMP04"},
    ),
    "another temperature": (
        "model.generation_config = GenerationConfig(do_sample=True, temperature=1.2, top_k=0, top_p=1.0)",
        "**prompts",
        {"SAMP01"},
    ),
}


def found(config, call, folder):
    text = edit_script(
        GENERATE, (MADE, f"{MADE}{config}\n"), (CALL, call), ("import AutoModel", "import GenerationConfig, AutoModel")
    )
    return codes_in(text, folder, CODES)


@pytest.mark.parametrize("form", SOUND)
def test_a_config_of_the_model_that_samples_plainly_is_left_alone(form, tmp_path):
    assert found(*SOUND[form], tmp_path) == set()


@pytest.mark.parametrize("form", FAULTY)
def test_a_config_of_the_model_that_changes_the_draw_is_found(form, tmp_path):
    config, call, codes = FAULTY[form]
    assert found(config, call, tmp_path) == codes
