"""A small sound model directory, and a way to load what was made of it."""

import json
import shutil

import torch
from fixtures.compared import byte_tokenizer
from fixtures.family_models import model_of
from transformers import GenerationConfig

from assay.config import ConfigError, load
from assay.policy.load import load_policy

CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<eos>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
VOCABULARY, EOS = 260, 256


def write_model(directory, kind="llama", **saving):
    model = model_of(kind, torch.float32, vocab_size=VOCABULARY, eos_token_id=EOS, bos_token_id=None, pad_token_id=None)
    model.generation_config = GenerationConfig(eos_token_id=EOS)
    model.save_pretrained(directory, **saving)
    words = byte_tokenizer()
    words.chat_template = CHAT
    words.save_pretrained(directory)
    return directory


def copy_of(directory, target):
    shutil.copytree(directory, target)
    return target


def change(file, **fields):
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


def loaded(path, *overrides, say=lambda sentence: None):
    settings = [f"model.path={path}", "run.device=cpu", *overrides]
    return load_policy(load(None, settings), lambda done, total: None, say)


def one_sentence(error):
    text = str(error)
    assert "\n" not in text
    assert len(text) < 900
    return text


def refusal(path, *overrides):
    """The sentence with which a directory is refused; any other error than ConfigError fails the test."""
    try:
        loaded(path, *overrides)
    except ConfigError as error:
        return one_sentence(error)
    raise AssertionError(f"{path} was loaded")
