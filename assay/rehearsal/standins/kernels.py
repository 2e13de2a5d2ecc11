"""Kernels for GPUs by plain torch: flash attention, liger, xformers, apex, triton."""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.missing import provide


def install(stage: Stage) -> None:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels of the script run step by step, on the CPU
    provide("flash_attn", _flash, even_if_caught=False)
    provide("flash_attn.flash_attn_interface", _flash)
    provide("flash_attn.bert_padding", _padding)
    provide("flash_attn.losses.cross_entropy", _losses)
    provide("xformers.ops", _xformers)
    provide("apex", _apex, even_if_caught=False)
    provide("apex.normalization", _apex_normalization)
    provide("apex.optimizers", _apex_optimizers)
    provide("liger_kernel", lambda module: None, even_if_caught=False)
    provide("liger_kernel.transformers", functools.partial(_liger, stage))
    provide("liger_kernel.chunked_loss", functools.partial(_liger_losses, stage))


def _attend(q: Any, k: Any, v: Any, scale: float | None, is_causal: bool, dropout: float = 0.0) -> Any:
    """[B, T, H, D] -> [B, T, H, D]; a causal mask is aligned at the last position, as flash attention has it."""
    import torch

    groups = q.shape[2] // k.shape[2]
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    mask = None
    if is_causal:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    return out.transpose(1, 2)


def _flash(module: Any) -> None:
    def flash_attn_func(
        q: Any,
        k: Any,
        v: Any,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        **how: Any,
    ) -> Any:
        return _attend(q, k, v, softmax_scale, causal, dropout_p)

    def flash_attn_qkvpacked_func(qkv: Any, *args: Any, **kwargs: Any) -> Any:
        return flash_attn_func(*qkv.unbind(2), *args, **kwargs)

    def flash_attn_varlen_func(
        q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, max_seqlen_q: Any = None,
        max_seqlen_k: Any = None, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
        **how: Any,
    ) -> Any:  # fmt: skip
        import torch

        ends_q, ends_k = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
        rows = []
        for number in range(len(ends_q) - 1):
            of_q = slice(ends_q[number], ends_q[number + 1])
            of_k = slice(ends_k[number], ends_k[number + 1])
            parts = (q[of_q][None], k[of_k][None], v[of_k][None])
            rows.append(_attend(*parts, softmax_scale, causal, dropout_p)[0])
        return torch.cat(rows)

    module.flash_attn_func, module.flash_attn_qkvpacked_func = flash_attn_func, flash_attn_qkvpacked_func
    module.flash_attn_varlen_func = flash_attn_varlen_func
    module.__version__ = "2.7.0"


def _padding(module: Any) -> None:
    import torch

    def index_first_axis(given: Any, indices: Any) -> Any:
        return given[indices]

    def unpad_input(hidden: Any, attention_mask: Any, unused_mask: Any = None) -> Any:
        lengths = attention_mask.sum(-1, dtype=torch.int32)
        indices = attention_mask.flatten().nonzero().flatten()
        ends = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
        flat = hidden.reshape(-1, *hidden.shape[2:])[indices]
        return flat, indices, ends, int(lengths.max()), lengths

    def pad_input(hidden: Any, indices: Any, batch: int, seqlen: int) -> Any:
        out = hidden.new_zeros(batch * seqlen, *hidden.shape[1:])
        return out.index_copy(0, indices, hidden).reshape(batch, seqlen, *hidden.shape[1:])

    def rearrange(tensor: Any, pattern: str, **sizes: int) -> Any:
        from assay.rehearsal.standins.small_libraries import rearranged

        return rearranged(tensor, pattern, **sizes)

    module.index_first_axis, module.unpad_input, module.pad_input = index_first_axis, unpad_input, pad_input
    module.rearrange = rearrange


def _losses(module: Any) -> None:
    import torch

    class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
        def __init__(self, ignore_index: int = -100, reduction: str = "mean", **kwargs: Any) -> None:
            smoothing = kwargs.get("label_smoothing", 0.0)
            super().__init__(ignore_index=ignore_index, reduction=reduction, label_smoothing=smoothing)

    def cross_entropy_loss(logits: Any, labels: Any, **kwargs: Any) -> tuple[Any, Any]:
        ignored = kwargs.get("ignore_index", -100)
        losses = torch.nn.functional.cross_entropy(logits.float(), labels, ignore_index=ignored, reduction="none")
        return losses, torch.zeros_like(losses)

    module.CrossEntropyLoss, module.cross_entropy_loss = CrossEntropyLoss, cross_entropy_loss


def _xformers(module: Any) -> None:
    class LowerTriangularMask:
        pass

    def memory_efficient_attention(q: Any, k: Any, v: Any, attn_bias: Any = None, p: float = 0.0, **how: Any) -> Any:
        return _attend(q, k, v, how.get("scale"), isinstance(attn_bias, LowerTriangularMask), p)

    module.memory_efficient_attention, module.LowerTriangularMask = memory_efficient_attention, LowerTriangularMask


def _apex(module: Any) -> None:
    module.amp = ModuleType("apex.amp")
    module.amp.initialize = lambda model, optimizer, *args, **kwargs: (model, optimizer)
    for name, fill in (("normalization", _apex_normalization), ("optimizers", _apex_optimizers)):
        part = ModuleType(f"apex.{name}")
        fill(part)
        setattr(module, name, part)


def _apex_normalization(module: Any) -> None:
    import torch

    module.FusedLayerNorm = module.MixedFusedLayerNorm = torch.nn.LayerNorm
    module.FusedRMSNorm = module.MixedFusedRMSNorm = torch.nn.RMSNorm


def _apex_optimizers(module: Any) -> None:
    import torch

    module.FusedAdam, module.FusedSGD = torch.optim.AdamW, torch.optim.SGD


def _liger(stage: Stage, module: Any) -> None:
    """Patches of models change nothing; the losses are torch's."""
    import torch

    def unchanged(*args: Any, **kwargs: Any) -> None:
        pass

    for name in "llama qwen2 qwen3 mistral mixtral gemma gemma2 gemma3 phi3 qwen2_vl qwen2_5_vl".split():
        setattr(module, f"apply_liger_kernel_to_{name}", unchanged)
    module._apply_liger_kernel_to_instance = unchanged

    class AutoLigerKernelForCausalLM:
        @staticmethod
        def from_pretrained(*args: Any, **kwargs: Any) -> Any:
            from transformers import AutoModelForCausalLM

            return AutoModelForCausalLM.from_pretrained(*args, **kwargs)

    class LigerFusedLinearCrossEntropyLoss(torch.nn.Module):
        def __init__(self, ignore_index: int = -100, reduction: str = "mean", **kwargs: Any) -> None:
            super().__init__()
            self.ignore_index, self.reduction = ignore_index, reduction

        def forward(self, weight: Any, hidden: Any, labels: Any, bias: Any = None) -> Any:
            logits = torch.nn.functional.linear(hidden, weight, bias).float()
            return torch.nn.functional.cross_entropy(
                logits, labels, ignore_index=self.ignore_index, reduction=self.reduction
            )

    module.AutoLigerKernelForCausalLM = AutoLigerKernelForCausalLM
    module.LigerFusedLinearCrossEntropyLoss = LigerFusedLinearCrossEntropyLoss
    module.LigerCrossEntropyLoss, module.LigerRMSNorm = torch.nn.CrossEntropyLoss, torch.nn.RMSNorm
    module.liger_cross_entropy = torch.nn.functional.cross_entropy


def _liger_losses(stage: Stage, module: Any) -> None:
    import torch

    class LigerFusedLinearGRPOLoss(torch.nn.Module):
        def __init__(self, beta: float = 0.04, **kwargs: Any) -> None:
            super().__init__()
            self.beta, self.how = beta, kwargs

        def forward(
            self, hidden: Any, weight: Any, selected_token_ids: Any, attention_mask: Any, advantages: Any,
            bias: Any = None, ref_per_token_logps: Any = None, old_per_token_logps: Any = None, **more: Any,
        ) -> Any:  # fmt: skip
            logits = torch.nn.functional.linear(hidden, weight, bias).float() / self.how.get("temperature", 1.0)
            logprobs = logits.log_softmax(-1).gather(-1, selected_token_ids[..., None])[..., 0]
            old = logprobs.detach() if old_per_token_logps is None else old_per_token_logps
            ratio = torch.exp(logprobs - old)
            low, high = self.how.get("epsilon_low", 0.2), self.how.get("epsilon_high", 0.2)
            gain = advantages[:, None]
            loss = -torch.minimum(ratio * gain, ratio.clamp(1 - low, 1 + high) * gain)
            if self.beta and ref_per_token_logps is not None:
                gap = ref_per_token_logps - logprobs
                loss = loss + self.beta * (torch.exp(gap) - gap - 1)
            mask = attention_mask.to(loss.dtype)
            kind = self.how.get("loss_type", "bnpo")
            if kind == "grpo":
                mean = ((loss * mask).sum(-1) / mask.sum(-1).clamp(min=1)).mean()
            elif kind == "dr_grpo":
                mean = (loss * mask).sum() / (mask.shape[0] * (self.how.get("max_completion_length") or mask.shape[1]))
            else:
                mean = (loss * mask).sum() / mask.sum().clamp(min=1)
            return mean, (torch.zeros(()), torch.zeros(()))

    module.LigerFusedLinearGRPOLoss = LigerFusedLinearGRPOLoss
