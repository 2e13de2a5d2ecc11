"""Text to tokens: one begin token, no end token, the model's own chat template, and refusals in a sentence."""

import pytest
from fixtures.compared import byte_tokenizer
from fixtures.tiny import tiny_policy
from tokenizers.processors import TemplateProcessing
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from assay.policy.causal import CausalPolicy
from assay.policy.codec import PromptRefused, TokenizerCodec, end_tokens
from assay.policy.embedded import tokenizer
from assay.policy.probe import examine_policy, vocabulary_of
from assay.types import Problem

BOS = 257
CHATML = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WITHOUT_PROMPT = "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<eos>{% endfor %}"
MISTRAL = (
    "{{ '<bos>' }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
    "{% endif %}{% if message['role'] == 'user' %}[INST] {{ message['content'] }} [/INST]"
    "{% else %} {{ message['content'] }}<eos>{% endif %}{% endfor %}"
)
QUESTION = ({"role": "user", "content": "1+1?"},)


def beginning(single="<bos> $A", template=None):
    """A byte tokenizer with a begin token, which it puts before a text as `single` says."""
    words = byte_tokenizer()
    words.add_special_tokens({"bos_token": "<bos>"})
    assert words.bos_token_id == BOS
    if single:
        words.backend_tokenizer.post_processor = TemplateProcessing(
            single=single, special_tokens=[("<bos>", BOS), ("<eos>", words.eos_token_id)]
        )
    words.chat_template = template
    return words


@pytest.mark.parametrize("single", ["<bos> $A", "<bos> $A <eos>"])
def test_a_text_begins_with_one_begin_token_and_has_no_end_token(single):
    words = beginning(single)
    codec = TokenizerCodec(words)
    assert words.encode("ab")[0] == BOS  # the tokenizer itself does it
    assert codec.encode("ab") == [BOS, 97, 98]
    assert codec.encode("<bos>ab") == [BOS, 97, 98]
    assert codec.encode("") == [BOS]


def test_a_tokenizer_that_adds_no_begin_token_gets_none():
    assert TokenizerCodec(beginning("")).encode("ab") == [97, 98]
    assert TokenizerCodec(beginning("$A <eos>")).encode("ab") == [97, 98]
    assert TokenizerCodec(byte_tokenizer()).encode("ab") == [97, 98]


@pytest.mark.parametrize("single", ["<bos> $A", "<bos> $A <eos>", ""])
def test_a_conversation_has_the_begin_token_of_its_template_and_no_other(single):
    with_begin = TokenizerCodec(beginning(single, "{{ '<bos>' }}" + CHATML)).chat(QUESTION)
    assert with_begin.count(BOS) == 1
    assert with_begin[0] == BOS
    assert TokenizerCodec(beginning(single, CHATML)).chat(QUESTION).count(BOS) == 0


def test_a_conversation_ends_with_the_generation_prompt():
    codec = TokenizerCodec(beginning(template=CHATML))
    assert codec.decode(codec.chat(QUESTION)) == "<|user|>1+1?<eos><|assistant|>"
    turns = (*QUESTION, {"role": "assistant", "content": "3"}, {"role": "user", "content": "sure?"})
    assert codec.decode(codec.chat(turns)) == "<|user|>1+1?<eos><|assistant|>3<eos><|user|>sure?<eos><|assistant|>"


def test_a_template_without_a_generation_prompt_is_refused_in_a_sentence():
    with pytest.raises(PromptRefused) as caught:
        TokenizerCodec(beginning(template=WITHOUT_PROMPT)).chat(QUESTION)
    sentence = str(caught.value)
    assert "adds no generation prompt" in sentence
    assert "'<|assistant|>'" in sentence  # what the model would have to write itself
    assert "\n" not in sentence


def test_a_template_that_needs_no_generation_prompt_passes():
    codec = TokenizerCodec(beginning(template=MISTRAL))
    assert codec.decode(codec.chat(QUESTION)) == "<bos>[INST] 1+1? [/INST]"


def test_a_conversation_that_the_template_refuses_is_refused_in_its_words():
    codec = TokenizerCodec(beginning(template=MISTRAL))
    with pytest.raises(PromptRefused, match="refuses the conversation: roles must alternate"):
        codec.chat((*QUESTION, *QUESTION))


def test_a_template_that_wants_a_system_message_first_is_used_with_one_and_refuses_in_a_sentence_without():
    wants = "{% if messages[0]['role'] != 'system' %}{{ raise_exception('a system message, please') }}{% endif %}"
    codec = TokenizerCodec(beginning(template=wants + CHATML))
    system = {"role": "system", "content": "Be brief."}
    assert codec.decode(codec.chat((system, *QUESTION))).endswith("<|assistant|>")
    with pytest.raises(PromptRefused, match="a system message, please"):
        codec.chat(QUESTION)


def test_a_tokenizer_without_a_template_poses_no_conversation():
    with pytest.raises(PromptRefused, match="the tokenizer has no chat template"):
        TokenizerCodec(beginning()).chat(QUESTION)


def test_a_policy_puts_messages_through_the_template_and_continues_plain_text_as_it_is():
    policy = tiny_policy()
    codec = TokenizerCodec(beginning(template=CHATML))
    policy = CausalPolicy(policy.model, codec, policy.eos_ids, 1.0)
    chat = policy.prompt(Problem("c", "9", "2", QUESTION[:1], {"hint": 1}), max_tokens=1)
    assert codec.decode(chat.tokens) == "<|user|>1+1?<eos><|assistant|>"
    assert (chat.text, chat.answer, chat.fields) == ("9", "2", {"hint": 1})
    assert policy.prompt(Problem("t", "9", "2"), max_tokens=1).tokens == (BOS, 57)


def test_the_end_tokens_of_tokenizer_and_model_all_end_an_answer():
    model, words = tiny_policy().model, tokenizer()
    assert end_tokens(model, words) == (1,)
    model.generation_config = GenerationConfig(eos_token_id=[7, 5])
    assert end_tokens(model, words) == (1, 7, 5)
    words.eos_token = None
    assert end_tokens(model, words) == (7, 5)
    assert end_tokens(object(), object()) == ()


def test_the_end_token_that_a_config_class_assumes_counts_only_if_no_other_is_named():
    model, words = LlamaForCausalLM(LlamaConfig(vocab_size=9, hidden_size=8, num_attention_heads=1)), tokenizer()
    assert model.config.eos_token_id == model.generation_config.eos_token_id == 2  # nobody said so
    assert end_tokens(model, words) == (1,)
    assert end_tokens(model, words, stated={"eos_token_id": [2, 1]}) == (1, 2)  # now its file says so
    words.eos_token = None
    assert end_tokens(model, words) == (2,)
    assert end_tokens(model, None) == (2,)


@pytest.mark.parametrize("end", [13, -1])
def test_an_end_token_beyond_the_vocabulary_is_refused(end):
    policy = tiny_policy()
    policy = CausalPolicy(policy.model, policy.codec, (1, end), 1.0)
    with pytest.raises(ValueError, match=f"eos_id = {end} can never be sampled: the model knows tokens 0 to 12"):
        examine_policy(policy)
    assert vocabulary_of(tiny_policy()) == 13


def test_a_checker_sees_special_tokens_in_an_answer():
    words = byte_tokenizer()
    assert TokenizerCodec(words).decode([97, words.eos_token_id, 98]) == "a<eos>b"
