"""Models that are exact up to a limit, and what is done about it."""

import json
import shutil

import pytest
import torch
import transformers
from fixtures.tiny import EOS_ID, prompt, sample, tiny_policy
from policy.test_lora import adapted, learner_of, logprobs, updates
from torch import nn

from assay.config import ConfigError, load
from assay.config.sections import RolloutConfig
from assay.policy.causal import CausalPolicy
from assay.policy.codec import PromptRefused, TokenizerCodec
from assay.policy.embedded import tokenizer
from assay.policy.load import load_policy
from assay.policy.probe import examine_policy
from assay.sampling import support
from assay.train.evaluate.export import export_weights
from assay.train.step.failed_rewards import FailedRewards
from assay.train.step.learner import Learner
from assay.train.step.score import score
from assay.types import Problem, Score


def policy_of(model):
    return examine_policy(CausalPolicy(model.eval(), TokenizerCodec(tokenizer()), (EOS_ID,), 1.0))


def gpt_neo(window):
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 128}
    kinds = {"attention_types": [[["global", "local"], 1]], "window_size": window}
    return transformers.GPTNeoForCausalLM(
        transformers.GPTNeoConfig(vocab_size=13, initializer_range=0.5, bos_token_id=None, **shape, **kinds)
    )


def test_a_window_that_a_short_look_cannot_see_is_seen_at_the_length_of_the_run():
    long, short = prompt(0, tuple(2 + place % 11 for place in range(30))), prompt(1, (2, 3, 4))
    policy = policy_of(gpt_neo(window=16))
    assert policy.abilities.sharing  # of eight tokens, all lie in the window
    assert policy.check_shortcuts(short, 4).abilities.sharing
    assert not policy.check_shortcuts(long, 20).abilities.sharing
    wide = policy_of(gpt_neo(window=100))
    assert wide.check_shortcuts(long, 20).abilities.sharing
    assert tiny_policy().check_shortcuts(prompt(0, (2,) * 8), 8).abilities.sharing


def test_long_rope_is_a_language_model_up_to_its_original_context():
    torch.manual_seed(0)
    factors = {"long_factor": [4.0] * 4, "short_factor": [1.0] * 4}
    config = transformers.Phi3Config(
        vocab_size=13,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        original_max_position_embeddings=20,
        rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, **factors},
        pad_token_id=0,
        eos_token_id=EOS_ID,
        bos_token_id=None,
    )
    policy = policy_of(transformers.Phi3ForCausalLM(config))
    assert policy.context == 20
    with pytest.raises(PromptRefused, match="the model's context is 20"):
        policy.prompt(Problem("p", "1" * 15, ""), max_tokens=6)
    assert tiny_policy().context == 32


class SeesItsLength(nn.Embedding):
    """Causal, but its numbers depend on how many tokens, padding included, a row has."""

    def forward(self, ids):
        return super().forward(ids) * ids.shape[1]


def test_a_model_whose_numbers_depend_on_padding_is_refused():
    with pytest.raises(ValueError, match="depends on the padding behind a sequence"):
        policy_of(SeesItsLength(13, 13))


def test_the_reference_of_an_adapted_head_is_the_model_without_any_adapter():
    policy = adapted(None, "model.lora_targets=q_proj,lm_head")
    before = logprobs(policy)
    learner = learner_of(policy)
    updates(learner, 4)
    assert (logprobs(policy) - before).abs().max() > 1e-2
    assert torch.equal(logprobs(learner.reference), before)


def test_every_module_named_for_an_adapter_must_be_there():
    with pytest.raises(ConfigError, match=r"model\.lora_targets names 'vproj', which fits no module"):
        adapted(None, "model.lora_targets=q_proj,vproj")
    adapted(None, "model.lora_targets=q_proj, v_proj")


@pytest.fixture
def directory(tmp_path):
    tiny_policy().model.save_pretrained(tmp_path / "model")
    tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_generation_config_that_transformers_would_not_save_does_not_lose_the_weights(directory, tmp_path):
    (directory / "generation_config.json").write_text(json.dumps({"temperature": 0.6}))
    said = []
    policy = load_policy(load(None, [f"model.path={directory}"]), lambda done, total: None, said.append)
    assert any("temperature = 0.6" in sentence for sentence in said)
    export_weights(policy, tmp_path / "out", merge=False, source="somewhere")
    assert json.loads((tmp_path / "out" / "generation_config.json").read_text())["temperature"] == 0.6


def test_a_missing_tokenizer_is_named(directory):
    (directory / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"has no tokenizer: tokenizer\.json is missing"):
        load_policy(load(None, [f"model.path={directory}"]), lambda done, total: None)


def test_a_cache_that_a_config_file_switches_off_is_used_all_the_same(directory):
    settings = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**settings, "use_cache": False}))
    said = []
    policy = load_policy(load(None, [f"model.path={directory}"]), lambda done, total: None, said.append)
    assert policy.abilities.cache
    assert said == []
    shutil.rmtree(directory)


def test_top_p_of_1_leaves_every_token_of_top_k_in():
    logits_1V = torch.tensor([[20.0, 1.0, 0.0, -1.0, -2.0]])  # in float32 the first has it all
    assert sorted(support(logits_1V, RolloutConfig(top_k=4))[0].tolist()) == [0, 1, 2, 3]
    assert set(support(logits_1V, RolloutConfig(top_k=4, top_p=0.999))[0].tolist()) == {0}


def test_the_bounds_of_top_p_and_min_p_by_hand():
    logits_1V = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    chosen = lambda **settings: set(support(logits_1V, RolloutConfig(top_k=4, **settings))[0].tolist())  # noqa: E731
    assert chosen(top_p=0.5) == {0}  # the first holds half already
    assert chosen(top_p=0.51) == {0, 1}
    assert chosen(min_p=0.5) == {0, 1}  # half of the likeliest is enough
    assert chosen(min_p=0.51) == {0}


def test_kl_in_the_reward_goes_to_its_own_rollout_when_a_prompt_comes_twice():
    policy = tiny_policy()
    learner = Learner(
        policy, tiny_policy(seed=1).frozen_copy(), load(None, ["loss.kl_coef=0.1"]).loss, load(None).optimizer, 1
    )
    samples = [
        sample(number, (2 + number, 3, 4), tokens, 0.0)
        for number, tokens in ((0, (5, 6)), (0, (7,)), (1, (8, 9)), (1, (3,)), (0, (10, 1)), (0, (4, 4)))
    ]
    groups = [samples[0:2], samples[2:4], samples[4:6]]

    class Flat:
        def score(self, asked, on_score):
            return [Score.of({"exact": 1.0}) for _ in asked]

    def kls(share):
        config = load(
            None, ["loss.kl_coef=0.1", "loss.kl_placement=reward", f"optimizer.share_prompts={str(share).lower()}"]
        )
        scored = score(
            [group[0].prompt for group in groups],
            [[one.rollout for one in group] for group in groups],
            config=config,
            reward=Flat(),
            learner=learner,
            failures=FailedRewards(config),
            on_scored=lambda done, total: None,
        )
        return [one.components["reference_kl"] for group in scored for one in group.scores]

    assert kls(True) == pytest.approx(kls(False), abs=1e-5)
    assert len({round(kl, 3) for kl in kls(False)}) == 6
