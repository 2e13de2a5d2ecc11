"""A causal language model as a policy: token ids -> log-probs of the sampled tokens. Works with any Hugging Face
causal LM, and with any torch module that maps ids [B, L] to logits [B, L, V].

Shape legend: R rows of S tokens (see ModelInputs), B completions of T tokens, M completion tokens, m those of a chunk,
D hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from assay.calibration import Tally
from assay.grpo import restricted, token_entropy, token_logprobs
from assay.llama.family import Family, join_family
from assay.llama.forward import hidden_states
from assay.llama.head import token_numbers
from assay.llama.layout import layout_of, longest_sequence
from assay.policy.causal_packing import ROW_TOKENS, CausalPacking, Sharing
from assay.policy.codec import Codec, PromptRefused, check_room
from assay.policy.plain import Plain, Support, plain_logprobs
from assay.policy.policy import GivenTokens
from assay.types import ModelInputs, Problem, Prompt, Rollout, Sample, StopReason

CHUNK_NUMBERS = 2**24  # logits computed at a time: 64 MB in float32
LOW_PRECISION = 0.02  # of a mean log-prob, between two ways to compute it in bfloat16; a wrong scale of attention: 3 %


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a model was seen to do right; see probe.py. What it does not do is done another way, to the same numbers."""

    cache: bool = False  # decodes token by token with Hugging Face's cache, prompts padded on the left
    head: bool = False  # its logits are its output embedding of its last hidden state, and nothing else
    sharing: bool = False  # honours a mask under which several completions follow one prompt


@dataclass(frozen=True, slots=True)
class CausalPolicy:
    """A model, its text codec and its end tokens. `temperature` divides the logits, in sampling and training alike.

    The model is in eval mode throughout: dropout would make `new` differ from `old` with equal weights.
    """

    model: nn.Module
    codec: Codec
    eos_ids: tuple[int, ...]
    temperature: float
    abilities: Abilities = Abilities()
    adapter: Any = None  # peft's wrapper around the model, if low-rank adapters are trained
    without_adapter: bool = False  # the reference of a policy with adapters: the same model, adapters switched off
    checkpointing: bool = False  # of gradients: a layer is computed again in the backward pass
    family: Family | None = None  # the model read as one of the Llama family: computed packed; None: as it comes
    # called with what a packed pass is given
    onlookers: list[Callable[[GivenTokens], None]] = field(default_factory=list, compare=False, repr=False)
    # called once with what is computed in the slow way although the model is of the family
    say: Callable[[str], None] = field(default=lambda sentence: None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.model.training:
            raise ValueError("the model is in training mode; call model.eval(), or dropout makes new differ from old")
        if self.family is not None and self.family.embedding_VD is not self.model.get_input_embeddings().weight:  # type: ignore[operator]
            raise ValueError("the family was read from another model; see probe.with_family")

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def context(self) -> int | None:
        """How many tokens prompt and completion may have together; None if the model does not say.

        Some models compute other numbers for a token once its sequence, or one beside it, grows beyond a limit below
        their context (long RoPE, attention to a chosen few). Up to that limit they are causal language models."""
        config: Any = getattr(self.model, "config", None)
        if hasattr(config, "get_text_config"):
            config = config.get_text_config()
        limits = [getattr(config, name, None) for name in ("max_position_embeddings", "index_topk", "keep_window_size")]
        rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
        if isinstance(rope, dict) and rope.get("rope_type") == "longrope":
            limits.append(rope.get("original_max_position_embeddings"))
            limits.append(getattr(config, "original_max_position_embeddings", None))
        return min((limit for limit in limits if isinstance(limit, int)), default=None)

    def family_for(self, tokens: int) -> Family | None:
        """The family, unless a sequence of `tokens` is longer than its window of attention, which is reported."""
        family = self.family
        if family is None or family.longest is None or tokens <= family.longest:
            return family
        self.say(
            f"sequences of more than {family.longest} tokens, the window of attention of {type(self.model).__name__}, "
            "are decoded and trained by the portable path, slowly"
        )
        return None

    def logits(self, ids_BL: Tensor, **how: Any) -> Tensor:
        """logits_BLV of rows padded on the right; a causal model needs no attention mask for that."""
        if hasattr(getattr(self.model, "config", None), "use_cache"):
            how = {"use_cache": False, **how}
        output = self.model(ids_BL, **how)
        return output if isinstance(output, Tensor) else output.logits

    def next_logits(self, ids_BL: Tensor, **how: Any) -> tuple[Tensor, Any]:
        """(logits_BV after the last token, the model's cache)."""
        if not self.abilities.head:
            output = self.model(ids_BL, use_cache=True, **how)
            return output.logits[:, -1], output.past_key_values
        output = self.model.base_model(ids_BL, use_cache=True, **how)  # type: ignore[operator]
        return self._head(output.last_hidden_state[:, -1]), output.past_key_values

    def packing(self, *, share_prompts: bool) -> CausalPacking:
        sharing = Sharing.NEVER
        if share_prompts and self.family is not None:
            sharing = Sharing.ALWAYS
        elif share_prompts and self.abilities.sharing:
            sharing = Sharing.WHERE_IT_PAYS
        return CausalPacking(self.device, sharing, window=None if self.family is None else self.family.longest)

    def prepare(self, batches: Iterable[ModelInputs]) -> None:
        """All of them at once, before the first: a copy to the device waits for all work that it was given before, and
        meanwhile nothing more is handed to it."""
        for inputs in batches:
            layout = layout_of(inputs)
            if inputs.ids_RS.is_cuda:
                layout.packed.prepare()

    def logprobs(self, inputs: ModelInputs, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        """(logprobs_BT, entropy_BT), see Policy.

        Logits are made for completion tokens only, a chunk at a time, and made again in the backward pass: those of
        the whole vocabulary are never kept for a whole batch."""
        layout = layout_of(inputs)
        targets_M = inputs.targets_BT.flatten()[layout.places_M]
        support_MK = None if inputs.support_BTK is None else inputs.support_BTK.flatten(0, 1)[layout.places_M]
        family = self.family_for(longest_sequence(inputs))
        if family is not None:
            for look in self.onlookers:
                look(layout.packed)
            states_ND = hidden_states(family, layout.packed, checkpointing=self.checkpointing)
            numbers = token_numbers(
                states_ND[layout.predictors_M],
                family.head,
                targets_M,
                support_MK,
                temperature=self.temperature,
                entropy_gradient=entropy_gradient,
            )
        else:
            checkpoints = self.checkpointing and torch.is_grad_enabled()
            with self._adapter_off(), _checkpointing(self.model) if checkpoints else nullcontext():
                numbers = self._portable_numbers(inputs, targets_M, support_MK, entropy_gradient)
        empty = torch.zeros(inputs.targets_BT.numel(), dtype=torch.float32, device=inputs.targets_BT.device)
        logprobs_BT, entropy_BT = (
            empty.index_copy(0, layout.places_M, values_M).view_as(inputs.targets_BT) for values_M in numbers
        )
        return logprobs_BT, entropy_BT

    def plain_logprobs(
        self,
        prompt_tokens: Sequence[int],
        tokens: Sequence[int],
        support: Support | None = None,
        tally: Tally | None = None,
    ) -> Plain:
        how: dict[str, Any] = {"temperature": self.temperature, "support": support, "tally": tally}
        with self._adapter_off():
            return plain_logprobs(self.model, prompt_tokens, tokens, **how)

    def frozen_copy(self, *, keep_adapter: bool = False) -> CausalPolicy:
        if self.adapter is not None and not keep_adapter:
            family = None if self.family is None else self.family.without_adapters()
            return replace(self, without_adapter=True, family=family, onlookers=[])
        shared: list[Tensor] = []
        if keep_adapter:  # what is frozen already is shared, not copied
            frozen = (weight for weight in self.model.parameters() if not weight.requires_grad)
            shared = [*frozen, *self.model.buffers()]
        model = copy.deepcopy(self.model, {id(tensor): tensor for tensor in shared})
        model.requires_grad_(False)
        family = None if self.family is None else join_family(model)
        return replace(self, model=model, adapter=None, family=family, onlookers=[])

    def check_shortcuts(self, prompt: Prompt, max_tokens: int) -> CausalPolicy:
        """See Policy. A window of attention, for one, shows only beyond its size."""
        if self.family is None and not self.abilities.sharing:
            return self
        with torch.no_grad():
            length = max(min(max_tokens, (ROW_TOKENS - len(prompt.tokens)) // 2), 1)
            vocabulary = self.logits(torch.zeros(1, 1, dtype=torch.int64, device=self.device)).shape[2]
            source = torch.Generator().manual_seed(0)
            samples = [
                Sample(
                    prompt, Rollout(prompt.id, tuple(row), (0.0,) * length, StopReason.LENGTH, 0, ""), 0.0, in_loss=True
                )
                for row in torch.randint(vocabulary, (2, length), generator=source).tolist()
            ]
            alone, shared = (
                CausalPacking(self.device, sharing).inputs(samples) for sharing in (Sharing.NEVER, Sharing.ALWAYS)
            )
            portable = replace(self, family=None)
            alone_BT = portable.logprobs(alone)[0]

            def is_sound(policy: CausalPolicy) -> bool:
                off_BT = (alone_BT - policy.logprobs(shared)[0]).abs()
                if not any(parameter.dtype == torch.bfloat16 for parameter in self.model.parameters()):
                    return float(off_BT.max()) <= 1e-3
                # In bfloat16 single tokens are off by rounding alone; so is their mean where other kernels computed.
                # These tokens are drawn blindly, and unlikely ones are the most inexact: of SmolLM2's -14, 0.5 % on
                # average.
                bound = 0.05 if policy.family is None else LOW_PRECISION * float(alone_BT.abs().mean())
                return float(off_BT.mean()) <= bound

            family = self.family
            fits = family is not None and (family.longest is None or longest_sequence(shared) <= family.longest)
            if fits and not is_sound(self):
                family = None
                self.say(
                    f"{type(self.model).__name__} is decoded and trained by the portable path, slowly, because at the "
                    "length of a real prompt its numbers are not those of the Llama family"
                )
            shares = self.abilities.sharing and (family is not None or is_sound(portable))
        return replace(self, family=family, abilities=replace(self.abilities, sharing=shares))

    def _portable_numbers(
        self, inputs: ModelInputs, targets_M: Tensor, support_MK: Tensor | None, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        """(logprobs_M, entropy_M) of a model that is asked for its hidden states or logits, in padded rows."""
        predictors_M = inputs.predictors_BT.flatten()[layout_of(inputs).places_M]
        if self.abilities.head:
            output = self.model.base_model(inputs.ids_RS, use_cache=False, **self._layout(inputs))  # type: ignore[operator]
            states_MD = output.last_hidden_state.flatten(0, 1)[predictors_M]
            head: Callable[[Tensor], Tensor] = self._head
            width = self.model.get_output_embeddings().weight.shape[0]  # type: ignore[operator]
        else:
            states_MD = self.logits(inputs.ids_RS, **self._layout(inputs)).flatten(0, 1)[predictors_M]
            head, width = lambda logits_mV: logits_mV, states_MD.shape[1]

        def numbers(states_mD: Tensor, targets_m: Tensor, support_mK: Tensor | None) -> tuple[Tensor, Tensor]:
            logits_1mV = head(states_mD).unsqueeze(0)
            if support_mK is not None:
                logits_1mV = restricted(logits_1mV.float(), support_mK.unsqueeze(0))
            seen_1mV = logits_1mV if entropy_gradient else logits_1mV.detach()
            return (
                token_logprobs(logits_1mV, targets_m.unsqueeze(0), self.temperature).squeeze(0),
                token_entropy(seen_1mV, self.temperature).squeeze(0),
            )

        size = max(CHUNK_NUMBERS // width, 16)
        chunks = range(0, max(len(targets_M), 1), size)
        # a second computation of the logits in the backward pass is the price of not keeping them
        again = self.abilities.head and torch.is_grad_enabled() and len(chunks) > 1
        logprobs, entropies = [], []
        for first in chunks:
            part = slice(first, first + size)
            given = states_MD[part], targets_M[part], None if support_MK is None else support_MK[part]
            logprobs_m, entropy_m = checkpoint(numbers, *given, use_reentrant=False) if again else numbers(*given)
            logprobs.append(logprobs_m)
            entropies.append(entropy_m)
        return torch.cat(logprobs), torch.cat(entropies)

    def prompt(self, problem: Problem, max_tokens: int) -> Prompt:
        """Tokenizes a problem; refuses one that leaves no room for `max_tokens` of completion."""
        tokens = self.codec.chat(problem.messages) if problem.messages else self.codec.encode(problem.text)
        if not tokens:
            raise PromptRefused(f"prompt {problem.id!r} has no tokens; a policy cannot continue nothing")
        check_room(problem.id, len(tokens), max_tokens, self.context)
        return Prompt(problem.id, problem.text, tuple(tokens), problem.answer, problem.fields)

    def _head(self, states_ND: Tensor) -> Tensor:
        return self.model.get_output_embeddings()(states_ND)  # type: ignore[operator, no-any-return]

    def _layout(self, inputs: ModelInputs) -> dict[str, Tensor]:
        """The arguments that say which completions follow which prompt; none if a row is an ordinary sequence."""
        if inputs.branches_RS is None:
            return {}
        dtype = next(parameter.dtype for parameter in self.model.parameters() if parameter.is_floating_point())
        return {
            "attention_mask": branch_mask(inputs.branches_RS, dtype),
            "position_ids": inputs.positions_RS,
        }

    def _adapter_off(self) -> AbstractContextManager[Any]:
        return self.adapter.disable_adapter() if self.without_adapter else nullcontext()


def branch_mask(branches_RS: Tensor, dtype: torch.dtype) -> Tensor:
    """The additive attention mask [R, 1, S, S]: a token sees the prompt (branch 0) and its own branch, up to itself."""
    size = branches_RS.shape[1]
    seen_RSS = (branches_RS.unsqueeze(1) == branches_RS.unsqueeze(2)) | (branches_RS.unsqueeze(1) == 0)
    seen_RSS = seen_RSS & torch.ones(size, size, dtype=torch.bool, device=branches_RS.device).tril()
    mask_RSS = torch.zeros(seen_RSS.shape, dtype=dtype, device=branches_RS.device)
    return mask_RSS.masked_fill(~seen_RSS, torch.finfo(dtype).min).unsqueeze(1)


@contextmanager
def _checkpointing(model: nn.Module) -> Iterator[None]:
    """Gradient checkpointing for one forward pass. transformers ties it to a layer's training mode; a layer is back in
    eval mode by the time its own forward begins, so that dropout stays off, in it and below it."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    hooks = [layer.register_forward_pre_hook(_to_eval_mode) for layer in layers]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer, hook in zip(layers, hooks, strict=True):
            layer.training = False
            hook.remove()


def _to_eval_mode(layer: nn.Module, arguments: object) -> None:
    layer.training = False
