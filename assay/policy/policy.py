"""What the rest of the house knows of a policy: a model that is sampled from and trained.

causal.py is the only one today: it continues a prompt. The next one fills masked positions of a fixed text: the text is
its prompt, the fill its completion; `packing` lays out the text and points `predictors_BT` at the masked positions
themselves, and `logprobs` is asked for these alone. Which policy a run has is decided in load.py.

Shape legend: B completions, T completion tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from assay.calibration import Tally
from assay.policy.codec import Codec
from assay.policy.plain import Plain, Support
from assay.types import ModelInputs, Problem, Prompt, Sample


class Packing(Protocol):
    """How a policy lays out samples for its forward pass. Cutting a step into passes is the trainer's part."""

    @property
    def shares_prompts(self) -> bool:
        """Whether completions of one prompt can share a row; then they are worth keeping together."""

    @property
    def pads(self) -> bool:
        """Whether the rows of a pass are computed padded to the longest."""

    @property
    def device(self) -> torch.device: ...

    def rows(self, samples: Sequence[Sample]) -> list[list[int]]:
        """Which of the samples, by number, stand in each row. The samples keep their order."""

    def row_tokens(self, samples: Sequence[Sample]) -> int:
        """Tokens of a row that holds these samples."""

    def inputs(self, samples: Sequence[Sample]) -> ModelInputs:
        """The inputs of one pass; completion b is that of sample b."""


class GivenTokens(Protocol):
    """What one forward pass was given, for whoever checks it."""

    def sequence(self, number: int) -> tuple[list[int], list[int]]:
        """(ids, positions) of all that the last token of completion `number` sees, itself included."""


class Policy(Protocol):
    @property
    def model(self) -> nn.Module:
        """Holds the weights; those that require a gradient are trained."""

    @property
    def adapter(self) -> Any:
        """peft's wrapper around the model if low-rank adapters are trained, else None."""

    @property
    def without_adapter(self) -> bool:
        """Whether this is the reference of a policy with adapters: the same model, adapters switched off."""

    @property
    def codec(self) -> Codec: ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that end a completion."""

    @property
    def temperature(self) -> float:
        """Divides the logits, in sampling and training alike."""

    @property
    def device(self) -> torch.device: ...

    @property
    def context(self) -> int | None:
        """How many tokens prompt and completion may have together; None if the model does not say."""

    @property
    def onlookers(self) -> list[Callable[[GivenTokens], None]]:
        """Called with what a pass is given, where it does not go through the model's own `forward` and its hooks."""

    def prompt(self, problem: Problem, max_tokens: int) -> Prompt:
        """Tokenizes a problem; raises PromptRefused if it leaves no room for `max_tokens` of completion."""

    def packing(self, *, share_prompts: bool) -> Packing:
        """How this policy lays out its passes; with `share_prompts`, a prompt is computed once where possible."""

    def prepare(self, batches: Iterable[ModelInputs]) -> None:
        """Brings to the device what `logprobs` needs for these, before the first of them is computed."""

    def logprobs(self, inputs: ModelInputs, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """(logprobs_BT, entropy_BT) of the completion tokens at the sampling temperature, in float32; 0 at padding.
        Without `entropy_gradient` the entropy keeps no graph."""

    def plain_logprobs(
        self,
        prompt_tokens: Sequence[int],
        tokens: Sequence[int],
        support: Support | None = None,
        tally: Tally | None = None,
    ) -> Plain:
        """The oracle that checks `logprobs`: the log-probs of one completion by the simplest pass through the model."""

    def frozen_copy(self, *, keep_adapter: bool = False) -> Policy:
        """The reference: the same numbers for ever, without gradients. Under adapters it is the model without them;
        with `keep_adapter` (a run that goes on with another run's adapter), the model with the adapter as it is now."""

    def check_shortcuts(self, prompt: Prompt, max_tokens: int) -> Policy:
        """The policy after a check of its shortcuts at the length of a real prompt and completion: what gives other
        numbers there is not used."""
