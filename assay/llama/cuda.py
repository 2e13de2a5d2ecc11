"""The family's decoder on a GPU: the state of the slots is on the device, and a step is a CUDA graph.

The graphs are captured once for each of a few batch sizes and stay with the decoder, which lives as long as its engine:
they find the caches, which are given back between two runs, through a table of addresses on the device. Nothing waits
for the device but a look at what was sampled. Without a GPU the same kernels run in Triton's interpreter, without
graphs.

Shape legend: R rollouts, T completion tokens, L slots, C columns (positions since the last look), F fields of a slot,
K tokens of a support, N prompt tokens, W width of a head.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from assay.config.sections import RolloutConfig
from assay.llama.cuda_step import Ending, Step, addresses, bytes_per_prompt_token, bytes_per_slot, prefill_prompts
from assay.llama.decoder import CachedPrompt, Decoding, Sampled, Start, split_prompts
from assay.llama.family import Family
from assay.llama.kernels import decode_state as fields
from assay.llama.kernels.decode_attention import Tiles
from assay.llama.kernels.pick import take
from assay.llama.packed import Packed
from assay.machine.memory import free_bytes
from assay.sampling import draw

BATCH_SIZES = (4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)  # of captured steps; above, every 512
LEFT_FREE = 0.1  # of the free memory, and a gigabyte
LEFT_FREE_BYTES = 2**30
PROMPT_BYTES = 2**30 - 2**28  # while prompts are computed; the rest is left for what attention needs
MOST_PROMPT_TOKENS = 2**15  # at a time: a grid of kernels has less than twice as many rows


class CudaDecoder:
    look_every = 16
    ahead = 4
    keep_below = 0.75

    def __init__(self, family: Family) -> None:
        self.family = family
        self._step: Step | None = None
        self._memory: DecodingMemory | None = None
        self._graphs: dict[tuple[int, Tiles, Ending], torch.cuda.CUDAGraph] = {}

    @property
    def step(self) -> Step:
        assert self._step is not None, "the decoder was never opened"
        return self._step

    @property
    def memory(self) -> DecodingMemory:
        assert self._memory is not None, "the decoder is not open"
        return self._memory

    def slots_that_fit(self, prompts_per_slot: float, prompt_width: int, max_tokens: int) -> int:
        free = free_bytes(self.family.device) * (1 - LEFT_FREE) - LEFT_FREE_BYTES
        tokens = max_tokens + prompts_per_slot * prompt_width
        return max(int(free / (tokens * self.family.bytes_per_token + bytes_per_slot(self.family))), 0)

    @torch.no_grad()
    def open(self, decoding: Decoding) -> None:
        family, slots = self.family, captured_size(decoding.slots)
        # not asked by its older name, allow_tf32, which raises an error where it was switched on by this one
        if family.dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32":
            raise ValueError("float32 weights need exact products: torch.backends.cuda.matmul.fp32_precision is tf32")
        step = self._step
        if step is None or step.slots < slots or step.addresses != addresses(family):
            self._step, self._graphs = None, {}  # the old buffers go before the new ones come
            step = self._step = Step(family, slots)
        step.temperature_1.fill_(decoding.temperature)
        self._memory = DecodingMemory.for_step(step, family, decoding)

    @torch.no_grad()
    def prefill(self, prompts: Sequence[CachedPrompt]) -> None:
        family = self.family
        most = min(PROMPT_BYTES // bytes_per_prompt_token(family), MOST_PROMPT_TOKENS)
        for part in split_prompts(prompts, most):
            packed = Packed.of_sequences([tokens for _, tokens in part], family.device)
            rows_N = torch.tensor([row for row, tokens in part for _ in tokens], device=family.device)
            prefill_prompts(self.step, packed, rows_N)

    @torch.no_grad()
    def start(self, starts: Sequence[Start]) -> None:
        state_LF, memory = self.step.state_LF, self.memory
        rows = torch.zeros(len(starts), state_LF.shape[1], dtype=torch.int32)
        for row, start in zip(rows.numpy(), starts, strict=True):
            row[fields.TOKEN.value] = start.last_token
            row[fields.BEFORE.value] = start.prompt_tokens - 1
            row[fields.PROMPT_ROW.value] = start.prompt_row
            row[fields.OWN_ROW.value] = memory.own_rows[start.slot]
            row[fields.ROLLOUT.value] = start.rollout
            row[fields.COLUMN.value] = memory.pending
        slots = torch.tensor([start.slot for start in starts])
        state_LF.index_copy_(0, slots.to(state_LF.device), rows.to(state_LF.device))

    @torch.no_grad()
    def advance(self, positions: int) -> None:
        step, memory = self.step, self.memory
        if memory.pending + positions > len(memory.written_C2L):
            raise ValueError("a slot was to advance beyond its token limit without a look")
        slots = captured_size(len(memory.own_rows))
        tiles = step.tiles(slots, memory.context)
        ending: Ending = "likeliest" if memory.uniforms_RT is None else "logits" if memory.settings.top_k else "drawn"
        for _ in range(positions):
            if step.state_LF.is_cuda:
                self._graph(slots, tiles, ending).replay()
            else:
                step.launch(slots, tiles, ending)
            if ending == "logits":
                self._draw_among_few(slots)
            memory.pending += 1

    def _graph(self, slots: int, tiles: Tiles, ending: Ending) -> torch.cuda.CUDAGraph:
        """The step as a graph. It is run once before, which compiles the kernels; that run leaves no trace."""
        if (graph := self._graphs.get((slots, tiles, ending))) is not None:
            return graph
        step, graph = self.step, torch.cuda.CUDAGraph()
        state_LF = step.state_LF.clone()
        stream = torch.cuda.Stream(state_LF.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step.launch(slots, tiles, ending)
            step.state_LF.copy_(state_LF)
            # torch.cuda.graph would give all unused memory back to the device first
            graph.capture_begin(capture_error_mode="thread_local")
            step.launch(slots, tiles, ending)
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        self._graphs[slots, tiles, ending] = graph
        return graph

    def _draw_among_few(self, slots: int) -> None:
        step, memory = self.step, self.memory
        assert memory.uniforms_RT is not None
        state_LF = step.state_LF[:slots]
        rollouts_L = state_LF[:, fields.ROLLOUT.value].long().clamp(min=0)
        uniforms_L = memory.uniforms_RT[rollouts_L, state_LF[:, fields.DONE.value].long()]
        drawn = draw(step.logits_LV[:slots], uniforms_L, memory.temperature, memory.settings)
        assert drawn.support_NK is not None
        memory.supports.append(drawn.support_NK)
        take(drawn.tokens_N, drawn.logprobs_N, state_LF, step.places)

    def look(self) -> Callable[[], Sampled]:
        memory = self.memory
        slots = len(memory.own_rows)
        written_C2L = _copy_to_cpu(memory.written_C2L[: memory.pending])
        supports = [_copy_to_cpu(support[:slots]) for support in memory.supports]
        copied = torch.cuda.current_stream().record_event() if memory.written_C2L.is_cuda else None
        memory.pending, memory.supports = 0, []
        self.step.state_LF[:, fields.COLUMN.value] = 0

        def read() -> Sampled:
            if copied is not None:
                copied.synchronize()
            tokens_LC, bits_LC = written_C2L[:, 0, :slots].t().long(), written_C2L[:, 1, :slots].t().contiguous()
            return Sampled(tokens_LC, bits_LC.view(torch.float32), torch.stack(supports, dim=1) if supports else None)

        return read

    def keep(self, slots: Sequence[int]) -> None:
        state_LF, memory = self.step.state_LF, self.memory
        kept = torch.tensor(slots, device=state_LF.device)
        kept_LF = state_LF[kept]
        memory.written_C2L[: memory.pending, :, : len(slots)] = memory.written_C2L[: memory.pending, :, kept]
        memory.supports = [support[kept] for support in memory.supports]
        memory.own_rows = [memory.own_rows[slot] for slot in slots]
        memory.leave_idle(state_LF, len(slots))
        state_LF[: len(slots)] = kept_LF

    def close(self) -> None:
        self._memory = None


@dataclass(slots=True)
class DecodingMemory:
    """What is kept between `open` and `close`."""

    settings: RolloutConfig
    temperature: float
    context: int
    caches: tuple[Tensor, Tensor]
    rotations_NW: Tensor
    uniforms_RT: Tensor | None
    written_C2L: Tensor
    own_rows: list[int]  # of the own cache, for every slot
    idle_row: int  # where idle slots write
    supports: list[Tensor]
    pending: int = 0  # positions since the last look

    @classmethod
    def for_step(cls, step: Step, family: Family, decoding: Decoding) -> DecodingMemory:
        device, limit = family.device, decoding.settings.max_tokens
        slots, prompt_rows, uniforms_RT = decoding.slots, decoding.prompt_rows, decoding.uniforms_RT

        def cache(rows: int, tokens: int) -> Tensor:
            shape = (len(family.layers), 2, rows, family.key_heads, tokens, family.head_width)
            return torch.empty(shape, dtype=family.dtype, device=device)

        own, prompts = cache(slots + 1, limit), cache(prompt_rows, max(decoding.prompt_width, 1))
        context = decoding.prompt_width + limit
        rotations_NW = torch.cat(family.rotations(torch.arange(context, device=device)), dim=1).contiguous()
        uniforms_RT = None if uniforms_RT is None else uniforms_RT.to(device, torch.float32).contiguous()
        columns = limit + CudaDecoder.ahead
        written_C2L = torch.zeros(columns, 2, step.slots, dtype=torch.int32, device=device)
        places = [0] * fields.PLACES.value
        places[fields.OWN_CACHE.value], places[fields.PROMPT_CACHE.value] = own.data_ptr(), prompts.data_ptr()
        places[fields.OWN_ROWS.value], places[fields.OWN_TOKENS.value] = slots + 1, limit
        places[fields.PROMPT_ROWS.value], places[fields.PROMPT_TOKENS.value] = prompt_rows, prompts.shape[4]
        places[fields.ROTATIONS.value] = rotations_NW.data_ptr()
        if uniforms_RT is not None:
            places[fields.UNIFORMS.value] = uniforms_RT.data_ptr()
            places[fields.UNIFORMS_TOKENS.value] = uniforms_RT.shape[1]
        places[fields.WRITTEN_TOKENS.value], places[fields.WRITTEN_SLOTS.value] = written_C2L.data_ptr(), step.slots
        step.places.copy_(torch.tensor(places))
        memory = cls(
            settings=decoding.settings,
            temperature=decoding.temperature,
            context=context,
            caches=(own, prompts),
            rotations_NW=rotations_NW,
            uniforms_RT=uniforms_RT,
            written_C2L=written_C2L,
            own_rows=list(range(slots)),
            idle_row=slots,
            supports=[],
        )
        memory.leave_idle(step.state_LF, 0)
        return memory

    def leave_idle(self, state_LF: Tensor, first: int) -> None:
        """The slots from `first` on are idle: they see nothing, and nobody reads what they write."""
        state_LF[first:] = 0
        state_LF[first:, fields.OWN_ROW.value] = self.idle_row
        state_LF[first:, fields.ROLLOUT.value] = -1
        state_LF[first:, fields.COLUMN.value] = self.pending


def _copy_to_cpu(values: Tensor) -> Tensor:
    """On the CPU; a copy from a GPU is under way until the GPU has done all that it was asked before."""
    if not values.is_cuda:
        return values.clone()
    return torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True).copy_(values, non_blocking=True)


def captured_size(slots: int) -> int:
    """Rounds a slot count up to a captured batch size.

    >>> [captured_size(slots) for slots in (1, 17, 256, 1025)]
    [4, 32, 256, 1536]
    """
    return BATCH_SIZES[bisect_left(BATCH_SIZES, slots)] if slots <= BATCH_SIZES[-1] else -(-slots // 512) * 512
