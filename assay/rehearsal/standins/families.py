"""Families of public models: what their tokenizers, chat templates, generation settings and weights are like.

These are facts about the real checkpoints. A stand-in of a name has them, and a size of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

_CHATML = (
    "{%- if messages[0]['role'] != 'system' and default_system %}"
    "{{ '<|im_start|>system\\n' + default_system + '<|im_end|>\\n' }}{%- endif %}"
    "{%- for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{%- endif %}"
    "{%- endif %}"
)
_LLAMA3 = (
    "{{ bos_token }}{%- for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim }}"
    "{{ '<|eot_id|>' }}"
    "{%- endfor %}{%- if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)
_ZEPHYR = (
    "{%- for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token + '\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{%- endif %}"
)
_INST = (
    "{{ bos_token }}{%- for message in messages %}{%- if message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] + eos_token }}{%- else %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{%- endif %}"
    "{%- endfor %}"
)
_GEMMA = (
    "{{ bos_token }}{%- for message in messages %}{{ '<start_of_turn>' + "
    "('model' if message['role'] == 'assistant' else message['role']) + '\\n' + message['content'] | trim + "
    "'<end_of_turn>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{%- endif %}"
)
_BAR = "\uff5c"
_BEGIN, _END = f"<{_BAR}begin\u2581of\u2581sentence{_BAR}>", f"<{_BAR}end\u2581of\u2581sentence{_BAR}>"
_USER, _ASSISTANT = f"<{_BAR}User{_BAR}>", f"<{_BAR}Assistant{_BAR}>"
_DEEPSEEK = (
    "{{ bos_token }}{%- for message in messages %}{%- if message['role'] == 'user' %}"
    f"{{{{ '{_USER}' + message['content'] }}}}"
    "{%- elif message['role'] == 'assistant' %}"
    f"{{{{ '{_ASSISTANT}' + message['content'] + eos_token }}}}"
    "{%- else %}{{ message['content'] }}{%- endif %}{%- endfor %}"
    f"{{%- if add_generation_prompt %}}{{{{ '{_ASSISTANT}<think>\\n' }}}}{{%- endif %}}"
)
_PHI = (
    "{%- for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + '<|end|>\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{%- endif %}"
)


@dataclass(frozen=True)
class Tokens:
    """Special tokens of a tokenizer."""

    special: tuple[str, ...]
    eos: str
    bos: str | None = None
    pad: str | None = None
    unk: str | None = None
    template: str | None = None
    adds_bos: bool = False
    adds_eos: bool = False
    words: tuple[str, ...] = ()  # tokens of their own that are text


@dataclass(frozen=True)
class Family:
    model_type: str  # as transformers calls it
    tokens: Tokens
    dtype: str = "bfloat16"  # of the stored weights
    is_tied: bool = False
    has_padded_vocabulary: bool = False  # the model has more rows than the tokenizer has tokens
    generation: dict[str, Any] = field(default_factory=dict)
    ends: tuple[str, ...] = ()  # tokens that end a completion, if there are several
    labels: int = 0  # of a classifier or a reward model; 0: it writes text
    is_chat: bool = False

    @property
    def key(self) -> str:
        return (
            "-".join(
                (self.model_type, self.tokens.eos.strip("<|>/_[]").replace(_BAR, "").encode("ascii", "ignore").decode())
            )
            + f"-{self.tokens.pad is not None:d}{self.is_chat:d}{self.labels}"
        )


_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_QWEN_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
_THINK = ("<think>", "</think>")


def _chatml(default_system: str) -> str:
    return "{%- set default_system = '" + default_system + "' %}" + _CHATML


def _qwen(name: str, is_chat: bool) -> Family:
    is_third = re.search(r"qwen-?_?3", name) is not None
    is_chat = is_chat or (is_third and "base" not in name)
    tokens = Tokens(
        special=_IM,
        eos="<|im_end|>" if is_chat else "<|endoftext|>",
        pad="<|endoftext|>",
        template=_chatml("" if is_third else _QWEN_SYSTEM if "2.5" in name else "You are a helpful assistant."),
        words=_THINK if is_third else (),
    )
    settings: dict[str, Any] = {"do_sample": True, "top_k": 20}
    settings |= {"temperature": 0.6, "top_p": 0.95} if is_third else {"temperature": 0.7, "top_p": 0.8}
    settings |= {} if is_third else {"repetition_penalty": 1.1 if "coder" in name else 1.05}
    return Family(
        "qwen3" if is_third else "qwen2", tokens, is_tied=True, has_padded_vocabulary=True, is_chat=is_chat,
        generation=settings if is_chat else {"do_sample": False, "max_new_tokens": 2048},
        ends=("<|im_end|>", "<|endoftext|>") if is_chat else (),
    )  # fmt: skip


_OF_OTHERS = re.compile(r"(?!meta-llama/|\.)[\w.-]+/[\w.-]+")  # trained in batches after its release: it can be padded


def _llama3(name: str, is_chat: bool) -> Family:
    special = (
        "<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>", "<|start_header_id|>",
        "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>",
    )  # fmt: skip
    tokens = Tokens(
        special=special,
        eos="<|eot_id|>" if is_chat else "<|end_of_text|>",
        bos="<|begin_of_text|>",
        pad="<|finetune_right_pad_id|>" if _OF_OTHERS.fullmatch(name) else None,
        template=_LLAMA3 if is_chat else None,
        adds_bos=True,
    )
    return Family(
        "llama", tokens, is_tied="3.2" in name, is_chat=is_chat,
        generation={"do_sample": True, "temperature": 0.6, "top_p": 0.9},
        ends=("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>") if is_chat else (),
    )  # fmt: skip


def _sentencepiece(template: str | None, pad: str | None) -> Tokens:
    return Tokens(("<unk>", "<s>", "</s>"), "</s>", "<s>", pad, "<unk>", template, adds_bos=True)


def _llama2(name: str, is_chat: bool) -> Family:
    is_tiny = "tinyllama" in name
    template = (_ZEPHYR if is_tiny else _INST) if is_chat else None
    tokens = _sentencepiece(template, "</s>" if is_tiny and is_chat else None)
    settings = {} if is_tiny else {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
    return Family("llama", tokens, dtype="bfloat16" if is_tiny else "float16", is_chat=is_chat, generation=settings)


def _mistral(name: str, is_chat: bool) -> Family:
    is_zephyr = "zephyr" in name
    tokens = _sentencepiece(_ZEPHYR if is_zephyr else _INST if is_chat else None, "</s>" if is_zephyr else None)
    return Family("mistral", tokens, is_chat=is_chat or is_zephyr)


def _gemma(name: str, is_chat: bool) -> Family:
    special = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
    tokens = Tokens(special, "<eos>", "<bos>", "<pad>", "<unk>", _GEMMA if is_chat else None, adds_bos=True)
    version = re.search(r"gemma-?_?([23])", name)
    model_type = {"2": "gemma2", "3": "gemma3_text"}.get(version.group(1) if version else "", "gemma")
    settings = {"do_sample": True, "top_k": 64, "top_p": 0.95} if model_type == "gemma3_text" else {}
    ends = ("<eos>", "<end_of_turn>") if is_chat else ()
    return Family(model_type, tokens, is_tied=True, is_chat=is_chat, generation=settings, ends=ends)


def _deepseek(name: str, is_chat: bool) -> Family:
    tokens = Tokens((_BEGIN, _END, _USER, _ASSISTANT), _END, _BEGIN, _END, None, _DEEPSEEK, adds_bos=True, words=_THINK)
    settings = {"do_sample": True, "temperature": 0.6, "top_p": 0.95}
    return Family("llama" if "llama" in name else "qwen2", tokens, is_chat=True, generation=settings)


def _smollm(name: str, is_chat: bool) -> Family:
    end = "<|im_end|>" if is_chat else "<|endoftext|>"
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    tokens = Tokens(
        special=_IM,
        eos=end,
        bos="<|im_start|>" if is_chat else end,
        pad=end if is_chat else None,
        unk="<|endoftext|>",
        template=_chatml(system) if is_chat else None,
    )
    return Family("llama", tokens, is_tied=True, is_chat=is_chat)


def _gpt2(name: str, is_chat: bool) -> Family:
    end = "<|endoftext|>"
    return Family("gpt2", Tokens((end,), end, end, None, end), dtype="float32", is_tied=True)


def _neox(name: str, is_chat: bool) -> Family:
    end = "<|endoftext|>"
    tokens = Tokens((end, "<|padding|>"), end, end, None, end)
    return Family("gpt_neox", tokens, dtype="float16", has_padded_vocabulary=True)


def _opt(name: str, is_chat: bool) -> Family:
    tokens = Tokens(("<s>", "<pad>", "</s>", "<unk>"), "</s>", "</s>", "<pad>", "</s>", adds_bos=True)
    return Family("opt", tokens, dtype="float16", is_tied=True)


def _phi(name: str, is_chat: bool) -> Family:
    end = "<|endoftext|>"
    if re.search(r"phi-?_?[34]", name):
        special = (end, "<|end|>", "<|user|>", "<|assistant|>", "<|system|>")
        return Family(
            "phi3", Tokens(special, end, "<s>", end, None, _PHI, words=("<s>",)), is_chat=True, ends=(end, "<|end|>")
        )
    return Family("phi", Tokens((end,), end, end, None, end), dtype="float16", has_padded_vocabulary=True)


def _bert(name: str, is_chat: bool) -> Family:
    model_type = next(
        (
            kind
            for part, kind in (
                ("deberta", "deberta-v2"), ("distilbert", "distilbert"), ("modernbert", "modernbert"),
                ("roberta", "roberta"), ("electra", "electra"),
            )
            if part in name
        ),
        "bert",
    )  # fmt: skip
    special = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
    tokens = Tokens(special, "[SEP]", "[CLS]", "[PAD]", "[UNK]", adds_bos=True, adds_eos=True)
    return Family(model_type, tokens, dtype="float32", labels=2)


_BY_NAME = (
    (r"deepseek", _deepseek),
    (r"qwen|qwq", _qwen),
    (r"smollm", _smollm),
    (r"tinyllama|llama-?_?2|vicuna|alpaca", _llama2),
    (r"llama", _llama3),
    (r"mistral|zephyr|mixtral", _mistral),
    (r"gemma", _gemma),
    (r"pythia|neox|dolly", _neox),
    (r"(^|[/_-])opt-", _opt),
    (r"(^|[/_-])phi", _phi),
    (r"bert|electra", _bert),
    (r"gpt", _gpt2),
)
_CHAT = re.compile(r"instruct|chat|[-_]it\b|distill|[-_]sft|[-_]dpo|assistant|zephyr")
_REWARD = re.compile(r"reward|[-_]rm\b|^rm[-_/]|preference|armo")
_CLASSIFIER = re.compile(r"sentiment|classif|toxic|emotion|hate")


def family_of(name: str) -> Family:
    """Of a model by its name or the path of its folder: the last part decides, then the whole; else Qwen 2.5."""
    name = name.lower().replace("\\", "/").rstrip("/")
    is_chat = _CHAT.search(name) is not None
    made = next(
        (make for part in (name.rsplit("/", 1)[-1], name) for pattern, make in _BY_NAME if re.search(pattern, part)),
        None,
    )
    family = _qwen("qwen2.5", is_chat) if made is None else made(name, is_chat)
    if _REWARD.search(name):
        return replace(family, labels=1)
    if _CLASSIFIER.search(name):
        return replace(family, labels=2)
    return family


def is_known(name: str) -> bool:
    """Whether a family is recognised by its name."""
    return any(re.search(pattern, name.lower()) for pattern, _ in _BY_NAME)
