"""The Llama family as plain numbers: a Hugging Face model object, read as the matrices it is made of.

Llama, SmolLM2, Qwen2, Qwen2.5, Qwen3 and Mistral are one architecture with small differences: biases, norms of queries
and keys, the table of rotations. What is read here are the model's own parameters, never copies: the engine and the
update see every optimizer step at once. `join_family` moves parameters that multiply the same input side by side in
memory, so that they can be read as one matrix; each stays a parameter of its own.

Shape legend: V vocabulary, D hidden size, O outputs, I inputs, K rank of an adapter, N tokens, H half a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

MEMBERS = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")  # the others change their table with the length


class NotOfTheFamily(ValueError):
    """The model computes differently from the family; the message says how."""


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """An adapter beside a projection: it adds scale * (inputs @ down^T) @ up^T."""

    down_KI: nn.Parameter
    up_OK: nn.Parameter
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    weight_OI: Tensor  # the parameter itself
    bias_O: Tensor | None
    low_rank: LowRank | None


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """Projections of one and the same input: queries, keys and values; gate and up."""

    parts: tuple[Projection, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(part.weight_OI.shape[0] for part in self.parts)

    def weight(self) -> Tensor | None:
        """weight_OI of all parts, a view of theirs; None if they, or their biases, do not lie side by side, as in a
        copied model."""
        if self._biases and _side_by_side(self._biases) is None:
            return None
        return _side_by_side([part.weight_OI for part in self.parts])

    def bias(self) -> Tensor | None:
        """bias_O of all parts, if they have any; only after `weight` was not None."""
        return _side_by_side(self._biases) if self._biases else None

    @property
    def _biases(self) -> list[Tensor]:
        return [part.bias_O for part in self.parts if part.bias_O is not None]


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    first_norm_D: nn.Parameter
    query_key_value: Stack
    query_norm: nn.Parameter | None  # of each head by itself, before the rotation (Qwen3)
    key_norm: nn.Parameter | None
    output: Projection
    second_norm_D: nn.Parameter
    gate_up: Stack
    down: Projection


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Family:
    """A model of the family. Two objects are equal only if they are the same one."""

    embedding_VD: nn.Parameter
    untrained_id: int | None  # the token whose embedding gets no gradient (Hugging Face's padding_idx)
    layers: tuple[Layer, ...]
    norm_D: nn.Parameter
    head: Projection
    epsilon: float  # of every norm
    heads: int
    key_heads: int
    head_width: int
    attention_scale: float  # of the products of queries and keys
    frequencies_H: Tensor
    rotation_scale: float  # of the table of rotations (yarn)
    longest: int | None  # a window of attention: no sequence may be longer; None: there is no window

    @property
    def device(self) -> torch.device:
        return self.embedding_VD.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding_VD.dtype

    @property
    def bytes_per_token(self) -> int:
        """Of the keys and values of all layers."""
        return 2 * len(self.layers) * self.key_heads * self.head_width * self.dtype.itemsize

    @property
    def projections(self) -> Iterator[Projection]:
        for layer in self.layers:
            yield from (*layer.query_key_value.parts, layer.output, *layer.gate_up.parts, layer.down)
        yield self.head

    def rotations(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """(cosines_NH, sines_NH) in float32; the halves of a head are rotated against each other."""
        angles_NH = positions_N.float().unsqueeze(1) * self.frequencies_H.to(positions_N.device, torch.float32)
        return angles_NH.cos() * self.rotation_scale, angles_NH.sin() * self.rotation_scale

    def without_adapters(self) -> Family:
        """The same parameters, adapters left out: the reference of a policy with adapters."""
        layers = tuple(
            replace(
                layer,
                query_key_value=_plain_stack(layer.query_key_value),
                output=replace(layer.output, low_rank=None),
                gate_up=_plain_stack(layer.gate_up),
                down=replace(layer.down, low_rank=None),
            )
            for layer in self.layers
        )
        return replace(self, layers=layers, head=replace(self.head, low_rank=None))

    @property
    def stacks(self) -> Iterator[Stack]:
        for layer in self.layers:
            yield layer.query_key_value
            yield layer.gate_up


def join_family(model: nn.Module) -> Family:
    """Reads a Hugging Face model and moves parameters that multiply the same input side by side in memory. The model
    must not be moved to another device or dtype afterwards."""
    family = family_of(model)
    with torch.no_grad():
        for stack in family.stacks:
            _move_side_by_side([part.weight_OI for part in stack.parts])
            biases = [part.bias_O for part in stack.parts if part.bias_O is not None]
            if biases:
                _move_side_by_side(biases)
    return family


def family_of(model: nn.Module) -> Family:
    """Reads a Hugging Face model and changes nothing in it; NotOfTheFamily says why one cannot be read."""
    if type(model).__name__ not in MEMBERS or not type(model).__module__.startswith("transformers.models."):
        raise NotOfTheFamily(f"{type(model).__name__} is none of {', '.join(MEMBERS)}")
    config: Any = model.config
    if config.hidden_act != "silu":
        raise NotOfTheFamily(f"its activation is {config.hidden_act}, not silu")
    hooked = hooked_modules(model)
    if hooked:
        raise NotOfTheFamily(f"{hooked[0] or 'the model'} has a hook or a forward of its own that would not be called")
    inner: Any = model.model
    for part in (inner, inner.norm, *inner.layers, *(part for layer in inner.layers for part in layer.children())):
        if type(part).__module__ != type(model).__module__:
            raise NotOfTheFamily(f"it has a {type(part).__module__}.{type(part).__name__} in the place of its own part")
    rotary = inner.rotary_emb
    if rotary.rope_type not in FIXED_ROTATIONS:
        raise NotOfTheFamily(f"its rotations change with the length (rope_type {rotary.rope_type})")
    attention = inner.layers[0].self_attn
    _check_alike(inner, config)
    family = Family(
        embedding_VD=_only_parameter(inner.embed_tokens, nn.Embedding),
        untrained_id=inner.embed_tokens.padding_idx,
        layers=tuple(_layer(layer) for layer in inner.layers),
        norm_D=inner.norm.weight,
        head=_projection(model.lm_head),
        epsilon=config.rms_norm_eps,
        heads=config.num_attention_heads,
        key_heads=config.num_key_value_heads,
        head_width=attention.head_dim,
        attention_scale=attention.scaling,
        frequencies_H=rotary.inv_freq,
        rotation_scale=rotary.attention_scaling,
        longest=_window(config),
    )
    dtypes = {part.weight_OI.dtype for stack in family.stacks for part in stack.parts} | {family.dtype}
    if len(dtypes) > 1 or not family.dtype.is_floating_point:
        raise NotOfTheFamily(f"its weights are of several kinds: {', '.join(sorted(map(str, dtypes)))}")
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) > 1:
        raise NotOfTheFamily(f"its weights are on several devices: {', '.join(sorted(map(str, devices)))}")
    return family


def _check_alike(inner: Any, config: Any) -> None:
    """What is read once for all layers must be the same in all of them: in low precision numbers would not show it."""
    norms = [module.variance_epsilon for module in inner.modules() if hasattr(module, "variance_epsilon")]
    if any(epsilon != config.rms_norm_eps for epsilon in norms):
        raise NotOfTheFamily("a norm of it has another epsilon than its config says")
    attentions = [(layer.self_attn.scaling, layer.self_attn.head_dim) for layer in inner.layers]
    if len(set(attentions)) > 1:
        raise NotOfTheFamily("its layers scale their attention differently")


def hooked_modules(model: nn.Module) -> list[str]:
    """Modules that do more than their class says when they are called: they have hooks, or a forward of their own. The
    hook of Hugging Face's gradient checkpointing, which changes no number, does not count."""
    return [name for name, module in model.named_modules() if "forward" in vars(module) or any(_hooks(module))]


def _hooks(module: nn.Module) -> Iterator[Any]:
    kinds = module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks
    for hook in (hook for hooks in kinds for hook in hooks.values()):
        if getattr(hook, "__name__", "") != "make_inputs_require_grads":
            yield hook


def same_reading(left: Any, right: Any) -> bool:
    """Whether two families, or parts of them, are made of the very same parameters and numbers."""
    if isinstance(left, (Family, Layer, Stack, Projection, LowRank)):
        return type(left) is type(right) and all(
            same_reading(getattr(left, field.name), getattr(right, field.name)) for field in fields(left)
        )
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same_reading, left, right))
    return left is right or (not isinstance(left, Tensor) and left == right)


def _layer(layer: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    query_key_value = Stack(tuple(map(_projection, (attention.q_proj, attention.k_proj, attention.v_proj))))
    gate_up = Stack(tuple(map(_projection, (mlp.gate_proj, mlp.up_proj))))
    for stack in (query_key_value, gate_up):
        if len({part.bias_O is None for part in stack.parts}) > 1:
            raise NotOfTheFamily("some of its projections have a bias and others beside them have none")
    return Layer(
        first_norm_D=layer.input_layernorm.weight,
        query_key_value=query_key_value,
        query_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
        key_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
        output=_projection(attention.o_proj),
        second_norm_D=layer.post_attention_layernorm.weight,
        gate_up=gate_up,
        down=_projection(mlp.down_proj),
    )


def _projection(module: Any) -> Projection:
    if type(module) is nn.Linear:
        return Projection(module.weight, module.bias, None)
    kind = type(module)
    if kind.__name__ != "Linear" or not kind.__module__.startswith("peft.tuners.lora"):
        raise NotOfTheFamily(f"it has a {kind.__module__}.{kind.__name__} in the place of a linear layer")
    if type(module.base_layer) is not nn.Linear or module.merged or len(module.active_adapters) != 1:
        raise NotOfTheFamily("its adapters are merged, several, or beside something else than a linear layer")
    (name,) = module.active_adapters
    base = module.base_layer
    if name not in module.lora_A or module.disable_adapters:
        return Projection(base.weight, base.bias, None)
    if module.lora_bias[name] or name in getattr(module, "lora_variant", {}):
        raise NotOfTheFamily("its adapters are more than a low-rank product (DoRA, a bias, or the like)")
    if type(module.lora_dropout[name]) is not nn.Identity:
        raise NotOfTheFamily("its adapters have dropout")
    low_rank = LowRank(module.lora_A[name].weight, module.lora_B[name].weight, float(module.scaling[name]))
    return Projection(base.weight, base.bias, low_rank)


def _only_parameter(module: nn.Module, kind: type) -> nn.Parameter:
    if type(module) is not kind:
        raise NotOfTheFamily(f"it has a {type(module).__name__} in the place of a {kind.__name__}")
    return module.weight  # type: ignore[return-value]


def _window(config: Any) -> int | None:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds - {"full_attention", "sliding_attention"}:
        raise NotOfTheFamily(f"it has layers of another kind: {', '.join(sorted(kinds))}")
    if not getattr(config, "use_sliding_window", True) and kinds == {"full_attention"}:
        return None
    return getattr(config, "sliding_window", None)


def _plain_stack(stack: Stack) -> Stack:
    return Stack(tuple(replace(part, low_rank=None) for part in stack.parts))


def _side_by_side(tensors: list[Tensor]) -> Tensor | None:
    """The tensors as one, joined along their first dimension, if that is how they lie in memory."""
    first = tensors[0].detach()
    storage, place = first.untyped_storage().data_ptr(), first.storage_offset()
    for tensor in tensors:
        if (
            tensor.untyped_storage().data_ptr() != storage
            or tensor.storage_offset() != place
            or not tensor.is_contiguous()
        ):
            return None
        place += tensor.numel()
    rows = sum(tensor.shape[0] for tensor in tensors)
    return first.as_strided((rows, *first.shape[1:]), first.stride())


def _move_side_by_side(tensors: list[Tensor]) -> None:
    if _side_by_side(tensors) is None:
        place = 0
        joined = torch.cat([tensor.detach() for tensor in tensors])
        for tensor in tensors:
            tensor.data = joined[place : place + tensor.shape[0]]
            place += tensor.shape[0]
