"""Text <-> tokens. Completions are only ever decoded, for scorers and readers; never re-encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from assay.foreign.faults import reason, translate_faults
from assay.foreign.template import TemplateFault, TemplateLimit, render_chat

Messages = Sequence[Mapping[str, str]]


class Codec(Protocol):
    def encode(self, text: str) -> list[int]: ...

    def chat(self, messages: Messages) -> list[int]:
        """A conversation in the model's own template, up to where the model's answer begins."""

    def decode(self, tokens: Sequence[int]) -> str: ...


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str: ...


class PromptRefused(ValueError):
    """A problem that cannot be put before the policy."""


class PromptTooLong(PromptRefused):
    """It leaves no room for an answer."""


def check_room(prompt_id: str, prompt_tokens: int, max_tokens: int, context: int | None) -> None:
    if context is not None and prompt_tokens + max_tokens > context:
        raise PromptTooLong(
            f"prompt {prompt_id!r} has {prompt_tokens} tokens and may get {max_tokens} more, but the model's context "
            f"is {context}; shorten the prompt or lower rollout.max_tokens"
        )


@dataclass(frozen=True, slots=True)
class TokenizerCodec:
    tokenizer: Tokenizer

    def encode(self, text: str) -> list[int]:
        """The text's tokens, after the begin token if the tokenizer begins every text with one. An end token that it
        would add is left out: the text is to be continued."""
        plain = self._tokens(text, add_special_tokens=False)
        begin = getattr(self.tokenizer, "bos_token_id", None)
        if begin is None or plain[:1] == [begin]:  # a text out of a chat template may hold it already
            return plain
        begins = self._tokens(text, add_special_tokens=True)[:1] == [begin]
        return [begin, *plain] if begins else plain

    def chat(self, messages: Messages) -> list[int]:
        tokenizer: Any = self.tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise PromptRefused(
                "the tokenizer has no chat template, so it cannot pose a conversation; use a chat model (model.path = "
                "'smollm2' is one), or pose the task as plain text: task.options.chat = false for rows of a file, "
                "task.options.style for other tasks (assay tasks NAME lists its values)"
            )
        check_chat_template(tokenizer)
        try:
            text = render_chat(tokenizer, messages, add_generation_prompt=True)
        except TemplateFault as fault:
            raise PromptRefused(f"the model's chat template {fault}") from fault
        return self._tokens(text, add_special_tokens=False)

    def _tokens(self, text: str, *, add_special_tokens: bool) -> list[int]:
        with translate_faults(lambda error: f"the tokenizer fails on a prompt: {reason(error)}", PromptRefused):
            return list(self.tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)  # a checker must see all of it


@lru_cache(maxsize=8)
def check_chat_template(tokenizer: Any) -> None:
    """Refuses a template after which the model would have to write the header of its own turn.

    Some templates (Mistral's) need no generation prompt: the answer follows the question at once. Others end a message
    and begin the next with a header; without a generation prompt that header would be left to the model.
    """
    question = [{"role": "user", "content": "Assay?"}]
    answered = [*question, {"role": "assistant", "content": "Answer!"}]
    try:
        asked, asked_plain, whole = (
            render_chat(tokenizer, conversation, add_generation_prompt=wanted)
            for conversation, wanted in ((question, True), (question, False), (answered, False))
        )
    except TemplateLimit as limit:
        raise PromptRefused(f"the model's chat template {limit}") from limit
    except TemplateFault:  # it wants another conversation than this one (a system message first): nothing is known
        return
    if asked != asked_plain:
        return
    header = whole[len(asked) :].partition("Answer!")[0].strip() if whole.startswith(asked) else ""
    if header:
        raise PromptRefused(
            f"the chat template adds no generation prompt: the model would have to write {header!r} itself before it "
            "answers; add `{% if add_generation_prompt %}` to the template"
        )


def end_tokens(model: Any, tokenizer: Any, stated: Any = None) -> tuple[int, ...]:
    """Every token that ends an answer: the tokenizer's, those of the model's generation config, and those that the
    model's config states (`stated`, as its file has it). Only if nobody names one does the model's config object count:
    what a file does not say it fills with the default of its class, which may be any token."""
    suggested = getattr(model, "generation_config", None)
    is_copy = getattr(suggested, "_from_model_config", False)  # made up by transformers, out of the config
    named = [*_ids(tokenizer), *([] if is_copy else _ids(suggested)), *_ids(stated)]
    return tuple(dict.fromkeys(named or _ids(getattr(model, "config", None))))


def _ids(source: Any) -> list[int]:
    named = source.get("eos_token_id") if isinstance(source, dict) else getattr(source, "eos_token_id", None)
    return [token for token in (named if isinstance(named, list | tuple) else [named]) if isinstance(token, int)]
