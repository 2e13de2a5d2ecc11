"""A causal language model as a policy: token ids -> log-probs of the sampled tokens. Works with any Hugging Face
causal LM, and with any torch module that maps ids_BL to logits_BLV.

Shape legend: B rows, L prompt + completion tokens, T completion tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from assay.grpo import token_entropy, token_logprobs
from assay.types import Microbatch, Prompt


class Codec(Protocol):
    """Text <-> tokens. Completions are only ever decoded, for scorers and readers; never re-encoded."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, tokens: Sequence[int]) -> str: ...


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]: ...
    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str: ...


@dataclass(frozen=True, slots=True)
class TokenizerCodec:
    tokenizer: Tokenizer

    def encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)  # a checker must see all of it


@dataclass(frozen=True, slots=True)
class CausalPolicy:
    """A model, its text codec and its end token. `temperature` divides the logits, in sampling and training alike.

    The model stays in eval mode throughout: dropout would make `new` differ from `old` with equal weights.
    """

    model: nn.Module
    codec: Codec
    eos_id: int
    temperature: float

    def __post_init__(self) -> None:
        self.model.eval()

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def context(self) -> int | None:
        """How many tokens prompt and completion may have together; None if the model does not say."""
        return getattr(getattr(self.model, "config", None), "max_position_embeddings", None)

    @property
    def has_cache(self) -> bool:
        """Whether the model is known to speak Hugging Face's past_key_values."""
        config = getattr(self.model, "config", None)
        return bool(getattr(config, "use_cache", False))

    def logits(self, ids_BL: Tensor) -> Tensor:
        """logits_BLV of rows padded on the right; a causal model needs no attention mask for that."""
        output = self.model(ids_BL, use_cache=False) if self.has_cache else self.model(ids_BL)
        return output if isinstance(output, Tensor) else output.logits

    def logprobs(self, batch: Microbatch, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """(logprobs_BT, entropy_BT) of the completion tokens at the sampling temperature, in float32.

        An entropy that is only looked at keeps no graph: it would hold a second copy of the logits."""
        logits_BLV = self.logits(batch.ids_BL)
        index_BTV = batch.positions_BT.unsqueeze(2).expand(-1, -1, logits_BLV.shape[2])
        logits_BTV = logits_BLV.gather(1, index_BTV)
        return (
            token_logprobs(logits_BTV, batch.targets_BT, self.temperature),
            token_entropy(logits_BTV if entropy_gradient else logits_BTV.detach(), self.temperature),
        )

    def prompt(self, id: str, text: str, answer: str, max_tokens: int) -> Prompt:
        """Tokenizes a problem; refuses one that leaves no room for `max_tokens` of completion."""
        tokens = tuple(self.codec.encode(text))
        check_room(id, len(tokens), max_tokens, self.context)
        return Prompt(id=id, text=text, tokens=tokens, answer=answer)


class PromptTooLong(ValueError):
    pass


def check_room(prompt_id: str, prompt_tokens: int, max_tokens: int, context: int | None) -> None:
    if context is not None and prompt_tokens + max_tokens > context:
        raise PromptTooLong(
            f"prompt {prompt_id!r} has {prompt_tokens} tokens and may get {max_tokens} more, but the model's context "
            f"is {context}; shorten the prompt or lower max_tokens"
        )
