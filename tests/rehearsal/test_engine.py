"""The stand-in of vLLM, held against plain softmax of the same weights."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from assay.rehearsal import checkpoint
from assay.rehearsal.problems import Formats
from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.engine import Engine, SamplingParams
from assay.rehearsal.standins.families import family_of

PROMPTS = ["What is 2 + 3?", "Tom has 1 apples and gets 2 more. How many apples does Tom have now?"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A checkpoint that was not trained: what is tested does not depend on what it says."""
    made = tmp_path_factory.mktemp("checkpoint") / "Qwen2.5-0.5B-Instruct"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "_UPDATES", 2)
        state = torch.random.get_rng_state()
        checkpoint.write(family_of("Qwen/Qwen2.5-0.5B-Instruct"), Formats(), made)
        torch.random.set_rng_state(state)
    return str(made)


@pytest.fixture
def stage(tmp_path):
    return Stage(script=tmp_path / "script.py", folder=tmp_path, home=tmp_path)


@pytest.fixture
def engine(stage, folder):
    return Engine(stage, folder, dtype="float32")


def plain_logprobs(model, prompt_ids, completion_ids):
    """[T, V], row by row and without a cache."""
    with torch.no_grad():
        logits_SV = model(input_ids=torch.tensor([[*prompt_ids, *completion_ids]])).logits[0].float()
    return torch.log_softmax(logits_SV, dim=-1)[len(prompt_ids) - 1 : -1]


def test_logprobs_are_those_of_the_plain_distribution_whatever_the_temperature(engine, folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    asked = SamplingParams(n=2, temperature=0.5, top_p=0.8, logprobs=1, max_tokens=6)
    for output in engine.generate(PROMPTS, asked):
        for answer in output.outputs:
            expected_TV = plain_logprobs(model, output.prompt_token_ids, answer.token_ids)
            given = [step[token].logprob for step, token in zip(answer.logprobs, answer.token_ids, strict=True)]
            expected = [float(row_V[token]) for row_V, token in zip(expected_TV, answer.token_ids, strict=True)]
            assert given == pytest.approx(expected, abs=2e-4)
            assert answer.cumulative_logprob == pytest.approx(sum(expected), abs=1e-3)


def test_logprobs_of_the_prompt_start_with_none(engine, folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    (output,) = engine.generate(PROMPTS[0], SamplingParams(prompt_logprobs=0, max_tokens=1))
    ids = output.prompt_token_ids
    expected_PV = plain_logprobs(model, ids[:1], ids[1:])
    assert output.prompt_logprobs[0] is None
    for place, token in enumerate(ids[1:]):
        given = output.prompt_logprobs[place + 1][token].logprob
        assert given == pytest.approx(float(expected_PV[place, token]), abs=2e-4)


def test_greedy_sampling_takes_the_most_likely_token(engine, folder):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    (output,) = engine.generate([PROMPTS[0]], SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
    tokens = list(output.outputs[0].token_ids)
    assert tokens == plain_logprobs(model, output.prompt_token_ids, tokens).argmax(-1).tolist()
    assert output.outputs[0].finish_reason == "length"


def test_sixteen_tokens_unless_asked_and_few_however_many_are_asked(engine, stage):
    settings = {"ignore_eos": True}
    assert len(engine.generate(PROMPTS[0], SamplingParams(**settings))[0].outputs[0].token_ids) == 16
    asked = SamplingParams(max_tokens=2048, **settings)
    assert len(engine.generate(PROMPTS[0], asked)[0].outputs[0].token_ids) == stage.most_tokens
    assert [made.what for made in stage.replacements if made.kind == "sizes"] == ["2048 new tokens"]


def test_weights_are_stale_until_they_are_published(engine, folder):
    policy = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    greedy = SamplingParams(temperature=0, max_tokens=4, logprobs=0, ignore_eos=True)
    before = engine.generate(PROMPTS[0], greedy)[0].outputs[0]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(-0.7)
    stale = engine.generate(PROMPTS[0], greedy)[0].outputs[0]
    assert stale.cumulative_logprob == before.cumulative_logprob
    runner = engine.llm_engine.model_executor.driver_worker.model_runner
    assert len(runner.model.load_weights(policy.state_dict().items())) == len(policy.state_dict())
    (output,) = engine.generate(PROMPTS[0], greedy)
    fresh = output.outputs[0]
    assert list(fresh.token_ids) != list(before.token_ids)
    expected_TV = plain_logprobs(policy.eval(), output.prompt_token_ids, fresh.token_ids)
    expected = sum(float(row_V[token]) for row_V, token in zip(expected_TV, fresh.token_ids, strict=True))
    assert fresh.cumulative_logprob == pytest.approx(expected, abs=1e-3)


def test_stop_texts_end_an_answer_and_are_cut_off(engine):
    free = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    whole = engine.generate(PROMPTS[0], free)[0].outputs[0]
    tokenizer = engine.get_tokenizer()
    stop = tokenizer.decode([whole.token_ids[2]])
    stopped = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, stop=[stop])
    cut = engine.generate(PROMPTS[0], stopped)[0].outputs[0]
    assert stop not in cut.text
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert list(cut.token_ids) == list(whole.token_ids[: len(cut.token_ids)])


def test_without_settings_the_generation_config_of_the_model_decides(engine, folder):
    stored = json.loads((Path(folder) / "generation_config.json").read_text())
    found = engine.get_default_sampling_params()
    assert (found.temperature, found.top_p, found.top_k) == (stored["temperature"], stored["top_p"], stored["top_k"])
    assert (SamplingParams().temperature, SamplingParams().top_p, SamplingParams().top_k) == (1.0, 1.0, 0)


def test_a_chat_is_rendered_with_the_template_and_without_a_second_start(engine):
    messages = [{"role": "user", "content": "What is 2 + 3?"}]
    (output,) = engine.chat(messages, SamplingParams(max_tokens=1))
    assert output.prompt.endswith("<|im_start|>user\nWhat is 2 + 3?<|im_end|>\n<|im_start|>assistant\n")
    assert engine.get_tokenizer().decode(output.prompt_token_ids) == output.prompt


def test_a_worker_calls_the_methods_of_the_scripts_extension(stage, folder):
    class Extension:
        def set_all(self, number):
            with torch.no_grad():
                for parameter in self.model_runner.model.parameters():
                    parameter.fill_(number)
            return number

    engine = Engine(stage, folder, dtype="float32", worker_extension_cls=Extension)
    assert engine.collective_rpc("set_all", args=(0.0,)) == [0.0]
    (output,) = engine.generate(PROMPTS[0], SamplingParams(max_tokens=1, logprobs=0))
    (step,) = output.outputs[0].logprobs
    size = engine.model.config.vocab_size
    assert next(iter(step.values())).logprob == pytest.approx(-float(torch.tensor(size).log()), abs=1e-4)
