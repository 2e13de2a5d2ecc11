"""Checks a model before it is trained: is it causal, are its logits finite, which shortcuts give the same numbers?"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from assay.llama.family import Family, NotOfTheFamily, family_of, join_family, same_reading
from assay.llama.forward import hidden_states
from assay.llama.joined import project
from assay.llama.packed import Packed, Segment
from assay.machine.device import missing_kernels
from assay.policy.causal import Abilities, CausalPolicy, branch_mask
from assay.policy.codec import Codec

# One prompt and two answers, in elevenths of the vocabulary. The first tokens of a vocabulary are often special ones
# that were never trained: for them SmolLM2's logits in bfloat16 are off by 10 of 32, however they are computed. And
# with a token 0 in it, a model that counts positions by what is not padding could pass by accident.
PROMPT, LEFT, RIGHT = [2, 3, 4], [5, 6], [7, 8, 9]
ELEVENTHS = 11


class UnfitModel(ValueError):
    """A model that cannot be a policy; the message says why."""


def open_policy(
    model: nn.Module, codec: Codec, eos_ids: tuple[int, ...], temperature: float, say: Callable[[str], None]
) -> CausalPolicy:
    """A torch module as a policy: a causal language model, in eval mode and examined."""
    return examine_policy(CausalPolicy(model.eval(), codec, eos_ids, temperature), say)


def examine_policy(policy: CausalPolicy, say: Callable[[str], None] = lambda sentence: None) -> CausalPolicy:
    """The policy with the abilities that its model showed; a model that cannot be a policy raises UnfitModel. Calls
    `say` with the reason if the model is not computed as one of the Llama family; if it is, its parameters are moved in
    memory (join_family)."""
    vocabulary = vocabulary_of(policy)
    _check_padding(policy, vocabulary)
    with torch.no_grad():
        head = _has_plain_head(policy, vocabulary)
        policy = replace(policy, abilities=Abilities(head=head))
        abilities = Abilities(cache=_caches(policy, vocabulary), head=head, sharing=_shares_prompts(policy, vocabulary))
    return with_family(replace(policy, abilities=abilities), say)


def with_family(policy: CausalPolicy, say: Callable[[str], None] = lambda sentence: None) -> CausalPolicy:
    """The policy with its model read again as one of the Llama family, if it is one and then gives the same numbers.
    Moves parameters in memory (join_family)."""
    try:
        if reason := missing_kernels(policy.device):
            raise NotOfTheFamily(reason)
        family = join_family(policy.model)
    except NotOfTheFamily as error:
        reason = str(error)
    else:
        if _gives_the_same_numbers(policy, family):
            return replace(policy, family=family, say=_once(say))
        reason = "its numbers are not those of the Llama family"
    say(f"{type(policy.model).__name__} is decoded and trained by the portable path, slowly, because {reason}")
    return replace(policy, family=None)


def _once(say: Callable[[str], None]) -> Callable[[str], None]:
    said: set[str] = set()

    def say_once(sentence: str) -> None:
        if sentence not in said:
            said.add(sentence)
            say(sentence)

    return say_once


def rejoin_family(policy: CausalPolicy, say: Callable[[str], None] = lambda sentence: None) -> CausalPolicy:
    """The policy with its family joined again if the model has changed since: other parts or parameters, or hooks that
    the family would not call."""
    family = policy.family
    if family is None:
        return policy
    moved = any(stack.weight() is None for stack in family.stacks)  # the joined matrices point to the old memory
    try:
        is_unchanged = not moved and same_reading(family, family_of(policy.model))
    except NotOfTheFamily:
        is_unchanged = False
    return policy if is_unchanged else with_family(policy, say)


def _gives_the_same_numbers(policy: CausalPolicy, family: Family) -> bool:
    """Whether the family gives a prompt with two answers, and one of them alone, the numbers that the model gives."""
    length, left, right = len(PROMPT), len(LEFT), len(RIGHT)
    branches = length + left + right
    packed = Packed(
        _spread([*PROMPT, *LEFT, *RIGHT, *PROMPT, *LEFT], len(family.embedding_VD), policy.device),
        torch.tensor([*range(length + left), *range(length, length + right), *range(length + left)]).to(policy.device),
        (
            Segment(0, length),
            Segment(length, length + left, stem=0),
            Segment(length + left, branches, stem=0),
            Segment(branches, branches + length + left),
        ),
    )
    if family.longest is not None and family.longest < length + right:
        return False
    with torch.no_grad():
        got_NV = project(hidden_states(family, packed), family.head)
        first, second = _alone(policy, len(family.embedding_VD))
        wanted_NV = torch.cat([first, second[length:], first])
    if wanted_NV.dtype in (torch.float32, torch.float64):
        return _close(wanted_NV, got_NV)
    if wanted_NV.shape != got_NV.shape:
        return False
    # two orders of rounding in every layer: a single row may be far off, all of them are not
    far_N = (wanted_NV - got_NV).abs().amax(dim=1)
    return float(far_N.float().mean()) <= _tolerance(wanted_NV)


def _alone(policy: CausalPolicy, vocabulary: int) -> tuple[Tensor, Tensor]:
    """logits_LV of the prompt with each of its answers, in a row of its own."""
    first, second = (
        policy.logits(_spread([*PROMPT, *answer], vocabulary, policy.device).unsqueeze(0))[0]
        for answer in (LEFT, RIGHT)
    )
    return first, second


def _spread(elevenths: list[int], vocabulary: int, device: torch.device) -> Tensor:
    return torch.tensor(elevenths, device=device) * vocabulary // ELEVENTHS


def vocabulary_of(policy: CausalPolicy) -> int:
    """The size of the vocabulary, from the logits of two rows that differ in their second token."""
    with torch.no_grad():
        output = policy.model(torch.tensor([[0, 0], [0, 1]], device=policy.device))
    logits_22V = getattr(output, "logits", output)
    if not isinstance(logits_22V, Tensor) or logits_22V.dim() != 3 or logits_22V.shape[:2] != (2, 2):
        got = list(logits_22V.shape) if isinstance(logits_22V, Tensor) else f"a {type(logits_22V).__name__}"
        raise UnfitModel(
            f"for token ids [2, 2] the model returned {got}; it must return logits [2, 2, vocabulary], or an object "
            "with .logits"
        )
    if not logits_22V.isfinite().all():
        raise UnfitModel(
            "the model's logits are not finite before any training; look for NaN in its weights and its config"
        )
    if not _close(logits_22V[0, 0], logits_22V[1, 0]):
        raise UnfitModel(
            "the model is not causal: its output at one token depends on the next one, so it would be trained to "
            "predict what it can see; give it a causal mask"
        )
    vocabulary = logits_22V.shape[2]
    for end in policy.eos_ids:
        if not 0 <= end < vocabulary:
            raise UnfitModel(f"eos_id = {end} can never be sampled: the model knows tokens 0 to {vocabulary - 1}")
    return vocabulary


def _check_padding(policy: CausalPolicy, vocabulary: int) -> None:
    """A row must not change when it is padded on the right: its last outputs are what it is trained by."""
    short, padded = (torch.tensor([row], device=policy.device) % vocabulary for row in ([2, 3], [2, 3, 0, 0]))
    with torch.no_grad():
        if not _close(policy.logits(short)[0], policy.logits(padded)[0, :2]):
            raise UnfitModel(
                "the model's output depends on the padding behind a sequence; such a model cannot be trained in batches"
            )


def _close(left: Tensor, right: Tensor) -> bool:
    """Equal except for rounding, which differs between shapes; a token that sees what it must not changes much more."""
    return left.shape == right.shape and float((left - right).abs().max()) <= _tolerance(left)


def _tolerance(values: Tensor) -> float:
    return float(torch.finfo(values.dtype).eps ** 0.5 * max(float(values.abs().max()), 1e-6))


def _is_hugging_face(model: Any) -> bool:
    return hasattr(model, "config") and hasattr(model, "get_output_embeddings") and hasattr(model, "base_model")


def _has_plain_head(policy: CausalPolicy, vocabulary: int) -> bool:
    """Models that scale or cap their logits after the output embedding must be asked for the logits themselves."""
    model: Any = policy.model
    if not _is_hugging_face(model) or model.get_output_embeddings() is None or model.base_model is model:
        return False
    ids_24 = torch.tensor([[0, 1, 2, 1], [1, 2, 0, 0]], device=policy.device) % vocabulary
    states = getattr(model.base_model(ids_24, use_cache=False), "last_hidden_state", None)
    if states is None:
        return False
    return torch.equal(model.get_output_embeddings()(states), model(ids_24, use_cache=False).logits)


def _caches(policy: CausalPolicy, vocabulary: int) -> bool:
    """Whether two prompts of different lengths, padded on the left, repeated and continued, compute as if alone."""
    model: Any = policy.model
    if not (_is_hugging_face(model) and hasattr(model.config, "use_cache")):
        return False
    device = policy.device
    ids_24 = torch.tensor([[0, 0, 1, 2], [3, 1, 2, 4]], device=device) % vocabulary
    visible_24 = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]], device=device)
    positions_24 = torch.tensor([[0, 0, 0, 1], [0, 1, 2, 3]], device=device)
    next_4 = torch.tensor([5, 6, 7, 8], device=device) % vocabulary
    try:
        _, cache = policy.next_logits(ids_24, attention_mask=visible_24, position_ids=positions_24)
        cache.batch_repeat_interleave(2)
        continued_4V, _ = policy.next_logits(
            next_4.unsqueeze(1),
            attention_mask=torch.cat([visible_24.repeat_interleave(2, dim=0), visible_24.new_ones(4, 1)], dim=1),
            position_ids=torch.tensor([[2], [2], [4], [4]], device=device),
            past_key_values=cache,
        )
    except (TypeError, AttributeError, ValueError, RuntimeError, LookupError):  # not a cache that can be repeated
        return False
    alone = [
        policy.logits(torch.cat([ids_24[row // 2][visible_24[row // 2] > 0], next_4[row : row + 1]]).unsqueeze(0))[
            0, -1
        ]
        for row in range(4)
    ]
    return _close(torch.stack(alone), continued_4V)


def _shares_prompts(policy: CausalPolicy, vocabulary: int) -> bool:
    """Whether a prompt with two completions behind it, under a mask, computes as if each stood alone."""
    model: Any = policy.model
    if not _is_hugging_face(model) or _looks_locally(model.config):
        return False
    device = policy.device
    ids_18 = _spread([*PROMPT, *LEFT, *RIGHT], vocabulary, device).unsqueeze(0)
    dtype = next(parameter.dtype for parameter in model.parameters() if parameter.is_floating_point())
    try:
        shared_8V = policy.logits(
            ids_18,
            attention_mask=branch_mask(torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2]], device=device), dtype),
            position_ids=torch.tensor([[0, 1, 2, 3, 4, 3, 4, 5]], device=device),
        )[0]
    except (TypeError, ValueError, RuntimeError, IndexError):  # takes no such mask
        return False
    first, second = _alone(policy, vocabulary)
    return _close(torch.cat([first, second[len(PROMPT) :]]), shared_8V)


def _looks_locally(config: Any) -> bool:
    """Sliding windows and recurrent layers follow the order of the row, which a mask of branches does not change."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    kinds = set(getattr(text, "layer_types", None) or ["full_attention"])
    windowed = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
    return kinds != {"full_attention"} or bool(windowed)
