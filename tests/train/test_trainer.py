"""GRPOTrainer.train and what users hand in: prompts, rewards, settings, models."""

import math
import random
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from fixtures.small_models import (
    EOS,
    PROMPTS,
    bigram,
    llama,
    recurrent,
    share_of_good,
    weights_of,
)
from torch import nn

import assay
from assay import GRPOTrainer
from assay.policy.codec import PromptRefused
from assay.policy.embedded import tokenizer
from assay.train.failure import RunFailed

# ---------------------------------------------------------------- training on many prompts


def test_a_pass_answers_every_prompt_once_in_an_order_of_its_own():
    seen = []

    def reward_fn(prompts, completions):
        seen.append([prompt[0] for prompt in prompts[::2]])
        return [random.Random(str(completion)).random() for completion in completions]

    trainer = bigram(reward_fn=reward_fn, group_size=2, prompts_per_step=2)
    history = trainer.train([[token] for token in range(1, 6)], steps=6)
    assert [len(batch) for batch in seen] == [2, 2, 1, 2, 2, 1]
    first, second = ([token for batch in batches for token in batch] for batches in (seen[:3], seen[3:]))
    assert sorted(first) == sorted(second) == [1, 2, 3, 4, 5]
    assert first != second
    assert [stats["step"] for stats in history] == [0, 1, 2, 3, 4, 5]
    assert [stats["step"] for stats in trainer.train([[1]])] == [6]  # goes on where it was; fewer than prompts_per_step


def test_training_shows_its_progress(capsys):
    bigram().train(PROMPTS, steps=2)
    shown = capsys.readouterr().err
    assert all(words in shown for words in ("step=1/2", "step=2/2", "reward="))


@pytest.mark.parametrize(
    ("prompts", "sentence"),
    [
        ([], "the list of prompts is empty; there is nothing to answer"),
        ([[1], []], "prompt 1 is empty; a policy cannot continue nothing"),
        ([[1], "abc"], "prompt 1 is a text, but there is no tokenizer; pass tokenizer= or token ids"),
        ("abc", "the prompts are a str; pass a list of texts or of lists of token ids"),
        (torch.ones(2, 2), "the prompts are a Tensor; pass a list of texts or of lists of token ids"),
        ([1, 2], "prompt 0 is 1; a prompt is a text, a list of token ids without padding, or a list of chat"),
        ([[{"role": "user"}]], r"prompt 0 is the list \[{'role': 'user'}\]; .* each with 'role' and 'content'"),
        ([[1, 7]], "prompt 0 holds token 7, but the model knows tokens 0 to 6; is this the model's own tokenizer"),
    ],
)
def test_prompts_that_cannot_be_answered_are_refused(prompts, sentence):
    trainer = bigram()
    for verb in (lambda: trainer.train_step(prompts, 0), lambda: trainer.train(prompts)):
        with pytest.raises((ValueError, TypeError), match=f"^{sentence}"):
            verb()


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused_by_its_number():
    model = llama(context=16)
    trainer = GRPOTrainer(model, share_of_good, max_tokens=6)
    trainer.train_step([[1] * 10], 0)
    with pytest.raises(PromptRefused, match=r"^prompt '1' has 11 tokens and may get 6 more, but .* context is 16"):
        trainer.train_step([[1], [1] * 11], 1)


def test_training_for_no_step_is_refused():
    with pytest.raises(ValueError, match=r"^steps = 0 trains nothing; give 1 or more"):
        bigram().train(PROMPTS, steps=0)


# ---------------------------------------------------------------- rewards


def test_with_a_tokenizer_rewards_see_texts():
    words, seen = tokenizer(), []

    def reward_fn(prompts, completions):
        seen.append((prompts, completions))
        return [len(completion) for completion in completions]

    model = llama(vocabulary=len(words))
    trainer = GRPOTrainer(
        model, reward_fn, torch.optim.SGD(model.parameters(), lr=0.1), group_size=8, tokenizer=words, max_tokens=12
    )
    assert trainer.policy.eos_ids[0] == words.eos_token_id
    trainer.train_step(["312>", words.encode("45>")], 0)
    ((prompts, completions),) = seen
    assert prompts == ["312>"] * 8 + ["45>"] * 8
    assert all(isinstance(completion, str) and "<eos>" not in completion for completion in completions)
    assert len(set(map(len, completions))) > 1  # some ended before the limit: their end token is no text


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        ([0.0] * 7, "reward_fn returned 7 rewards for 8 completions; return one for each, in their order"),
        ([0.0] * 3 + [math.nan] + [0.0] * 4, "reward_fn: reward 3 is nan; it must be a finite number"),
        (torch.tensor([0.0] * 7 + [math.inf]), "reward_fn: reward 7 is inf; it must be a finite number"),
        ([10**400] + [0.0] * 7, "reward_fn: reward 0 is 1000.*; it must be a finite number"),
        (["1.0"] * 8, r"reward_fn: reward 0 is the str '1\.0'; it must be a finite number \(or None if it could not"),
        (torch.zeros(2, 4), r"reward_fn: reward 0 is the list \[0\.0, 0\.0, 0\.0, 0\.0\]; it must be a finite number"),
        (None, "reward_fn: None is not a list, array or tensor of rewards, one for each completion"),
        (0.5, "reward_fn: 0.5 is not a list, array or tensor of rewards"),
        ("12345678", "reward_fn: the str '12345678' is not a list, array or tensor of rewards"),
    ],
)
def test_what_is_no_reward_is_refused_and_nothing_is_learned(returned, sentence):
    trainer = bigram(reward_fn=lambda prompts, completions: returned)
    before = weights_of(trainer.model)
    with pytest.raises((ValueError, TypeError), match=f"^{sentence}"):
        trainer.train_step([[1], [3]], 0)
    assert torch.equal(before["weight"], trainer.model.weight)


def test_a_quarter_of_the_completions_may_be_unscored_and_is_not_trained_as_a_zero():
    def reward_fn(missing):
        return lambda prompts, completions: [None] * missing + [float(row) for row in range(8 - missing)]

    stats = bigram(reward_fn=reward_fn(2)).train_step([[1], [3]], 0)
    assert (stats["rollouts_unscored"], stats["reward_mean"]) == (2, 2.5)
    with pytest.raises(RunFailed, match=r"^reward_fn returned None for 3 of 8 .*first of them is 0\), more than 25%"):
        bigram(reward_fn=reward_fn(3)).train_step([[1], [3]], 0)


@pytest.mark.parametrize("error", [KeyError("answer"), TimeoutError("judge"), SystemExit(3)])
def test_what_a_reward_raises_is_raised(error):
    def reward_fn(prompts, completions):
        raise error

    with pytest.raises(type(error)) as raised:
        bigram(reward_fn=reward_fn).train_step([[1], [3]], 0)
    assert raised.value is error
    assert "raised by reward_fn, called for 8 completions; no update was made" in raised.value.__notes__


def test_a_reward_that_never_returns_is_an_error():
    hang = threading.Event()
    trainer = bigram(reward_fn=lambda prompts, completions: hang.wait(10), reward_timeout=0.05)
    try:
        with pytest.raises(
            TimeoutError, match=r"^reward_fn did not return within reward_timeout = 0\.05 seconds for 8"
        ):
            trainer.train_step([[1], [3]], 0)
    finally:
        hang.set()


# ---------------------------------------------------------------- construction


def test_settings_are_refused_in_the_words_of_the_constructor():
    for settings, sentence in (
        ({"clip_range": (-0.1, 0.2)}, r"clip_range\[0\] = -0\.1 is below its minimum 0"),
        ({"clip_range": (0.1, 0.2, 0.3)}, r"clip_range = \(0\.1, 0\.2, 0\.3\) is neither one number nor \(low, high\)"),
        ({"group_size": 4.0}, r"group_size = 4\.0 must be a whole number, not float"),
        ({"minibatches": 5}, "prompts_per_step x group_size = 32 rows cannot be cut evenly into minibatches = 5"),
        ({"microbatches": 64}, "prompts_per_step x group_size = 32 rows are fewer than minibatches x microbatches ="),
        ({"temperature": 0}, r"temperature = 0\.0 is below its minimum 0\.001"),
        ({"std": "samples"}, "std = 'samples' is not one of sample, population, none; did you mean 'sample'"),
        ({"objective": "ppo"}, "objective = 'ppo' is not one of .*grpo.*dapo"),
        ({"learning_rate": 0.1}, r"learning_rate = 0\.1 would be ignored: the optimizer has its own; set it there"),
    ):
        with pytest.raises(ValueError, match=f"^{sentence}"):
            bigram(**settings)


def test_models_and_functions_of_the_wrong_kind_are_refused():
    model = nn.Embedding(7, 7)
    with pytest.raises(TypeError, match=r"^model is a str; pass the torch module itself"):
        GRPOTrainer("some/model", share_of_good)
    with pytest.raises(TypeError, match=r"^reward_fn is a float; pass a function of"):
        GRPOTrainer(model, [1.0], eos_id=EOS)
    with pytest.raises(TypeError, match=r"^optimizer is a float; pass a torch optimizer, or None for AdamW"):
        GRPOTrainer(model, share_of_good, 0.1, eos_id=EOS)
    other = torch.optim.SGD(nn.Embedding(7, 7).parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"^the optimizer does not hold 1 of the model's 1 trainable tensors"):
        GRPOTrainer(model, share_of_good, other, eos_id=EOS)


def test_a_model_must_say_where_a_completion_ends():
    with pytest.raises(ValueError, match=r"^the model's config names no end token; pass eos_id="):
        GRPOTrainer(nn.Embedding(7, 7), share_of_good).train([[1]])
    with pytest.raises(ValueError, match=r"^eos_id = 7 can never be sampled: the model knows tokens 0 to 6"):
        GRPOTrainer(nn.Embedding(7, 7), share_of_good, eos_id=7)
    several = llama()
    several.config.eos_token_id = [0, 1]
    assert set(GRPOTrainer(several, share_of_good).policy.eos_ids) == {0, 1}
    assert GRPOTrainer(several, share_of_good, eos_id=1).policy.eos_ids == (1,)


class Pair(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids), None


def test_a_model_that_does_not_map_ids_to_logits_of_the_next_token_is_refused():
    with pytest.raises(ValueError, match=r"^for token ids \[2, 2\] the model returned a tuple; it must return logits"):
        GRPOTrainer(Pair(7, 7), share_of_good, eos_id=EOS)
    with pytest.raises(
        ValueError, match=r"^for token ids \[2, 2\] the model returned \[2, 14\]; it must return logits"
    ):
        GRPOTrainer(nn.Sequential(nn.Embedding(7, 7), nn.Flatten()), share_of_good, eos_id=EOS)
    sees_ahead = recurrent()
    sees_ahead.memory = nn.GRU(16, 8, batch_first=True, bidirectional=True)
    with pytest.raises(ValueError, match=r"^the model is not causal: its output at one token depends on the next one"):
        GRPOTrainer(sees_ahead, share_of_good, eos_id=EOS)
    broken = nn.Embedding(7, 7)
    broken.weight.data[0, 3] = math.nan
    with pytest.raises(ValueError, match=r"^the model's logits are not finite before any training"):
        GRPOTrainer(broken, share_of_good, eos_id=EOS)


# ---------------------------------------------------------------- the package


def test_importing_the_package_does_not_import_torch():
    code = "import assay, sys; print(assay.__version__, 'GRPOTrainer' in dir(assay), 'torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.split() == [assay.__version__, "True", "False"]
    with pytest.raises(AttributeError, match=r"^module 'assay' has no attribute 'GRPOTrainr'$"):
        assay.GRPOTrainr  # noqa: B018


def test_the_example_learns(capsys):
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "trainer.py"), run_name="__main__")
    before, after = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()[-2:])
    assert before < 0.3 < 0.9 < after
