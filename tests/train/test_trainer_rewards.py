"""What reaches the reward functions of GRPOTrainer: columns, chat messages, several functions; held-out evaluation."""

import pytest
import torch
from fixtures.small_models import EOS, GOOD, bigram, llama, share_of_good
from torch import nn

from assay import GRPOTrainer
from assay.policy.embedded import tokenizer

ROWS = [{"prompt": [1, 3], "answer": 2, "level": "a"}, {"prompt": [5], "answer": 4, "level": "b"}]


def test_columns_beside_the_prompts_reach_the_function_that_asks_for_them():
    seen = []

    def reward_fn(prompts, completions, answer):
        seen.append((prompts, answer))
        return [completion.count(one) for completion, one in zip(completions, answer, strict=True)]

    def everything(prompts, completions, **columns):
        seen.append(columns)
        return [0.0] * len(prompts)

    trainer = bigram(reward_fn=[reward_fn, everything], group_size=2)
    trainer.train_step(ROWS, 0)
    assert seen[0] == ([[1, 3], [1, 3], [5], [5]], [2, 2, 4, 4])
    assert seen[1] == {"answer": [2, 2, 4, 4], "level": ["a", "a", "b", "b"]}


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([{"prompt": [1], "answer": 2, "answers": 2}], "no reward function takes 'answers'; add it to the function's"),
        ([{"prompt": [1]}], "reward_fn asks for 'answer', which stands beside no prompt; add the column"),
        ([{"question": [1]}], "row 0 has no 'prompt'; it holds 'question'"),
        ([{"prompt": [1], "answer": 2}, {"prompt": [1]}], "column 'answer' stands beside some prompts only; prompt 1"),
        ({"prompt": [[1]]}, "the prompts are a dict; pass a list"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows, sentence):
    def reward_fn(prompts, completions, answer):
        return [0.0] * len(prompts)

    with pytest.raises((ValueError, TypeError), match=f"^{sentence}"):
        bigram(reward_fn=reward_fn).train(rows)


def test_several_rewards_are_summed_by_their_weights():
    def short(prompts, completions):
        return [-len(completion) for completion in completions]

    trainer = bigram(reward_fn=[share_of_good, short], reward_weights=[1.0, 0.25])
    stats = trainer.train_step([[1]], 0)
    assert stats["reward_mean"] == pytest.approx(
        stats["reward_share_of_good_mean"] + 0.25 * stats["reward_short_mean"], abs=1e-9
    )
    assert stats["reward_short_mean"] == pytest.approx(-stats["length_mean"])


@pytest.mark.parametrize(
    ("given", "weights", "sentence"),
    [
        ([], None, "reward_fn is an empty list"),
        ([share_of_good, 3], None, "reward_fn is a int; pass a function"),
        ([share_of_good, share_of_good], None, "two reward functions are called 'share_of_good'"),
        (lambda completions, **columns: [], None, r"<lambda>\(completions, \*\*columns\) cannot be called"),
        (share_of_good, [1.0, 2.0], "reward_weights holds 2 weights for 1 reward functions"),
    ],
)
def test_reward_functions_that_do_not_fit_are_refused(given, weights, sentence):
    with pytest.raises((ValueError, TypeError), match=f"^{sentence}"):
        bigram(reward_fn=given, reward_weights=weights)


def test_chat_messages_are_posed_by_the_template_and_shown_as_they_were_given():
    words = tokenizer()
    words.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    seen = []

    def reward_fn(prompts, completions):
        seen.append(prompts)
        return [len(completion) for completion in completions]

    model = llama(vocabulary=len(words))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = GRPOTrainer(model, reward_fn, optimizer, group_size=2, tokenizer=words, max_tokens=4)
    messages = [{"role": "user", "content": "312"}]
    trainer.train_step([messages], 0)
    assert seen == [[messages, messages]]
    with pytest.raises(TypeError, match=r"^there is no tokenizer, so there is no chat template"):
        bigram().train_step([messages], 0)


def test_an_evaluation_trains_nothing_and_sees_what_training_did():
    torch.manual_seed(0)
    model = nn.Embedding(7, 7)
    trainer = GRPOTrainer(
        model, share_of_good, torch.optim.SGD(model.parameters(), lr=4.0), group_size=16, eos_id=EOS, max_tokens=4
    )
    before = model.weight.detach().clone()
    first = trainer.evaluate([[1], [3]], samples=8)
    assert torch.equal(model.weight, before)
    assert trainer.evaluate([[1], [3]], samples=8) == first
    assert (first["prompts"], first["samples"]) == (2, 8)
    steps = []
    trainer.train([[1], [3]], steps=30, on_step=lambda stats: steps.append(stats["step"]))
    assert steps == list(range(30))
    last = trainer.evaluate([[1], [3]], samples=8)
    assert last["reward_sampled"] > first["reward_sampled"] + 0.3
    assert model.weight[1].argmax() == GOOD
    with pytest.raises(ValueError, match=r"^samples = 0 is below its minimum 1"):
        trainer.evaluate([[1]], samples=0)
