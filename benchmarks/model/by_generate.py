"""The contender generate: transformers' own `generate`, a group by num_return_sequences, as most scripts call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.model.device import Clock, forget_peak, peak
from benchmarks.model.prepare import load_model, weights_sum
from benchmarks.model.reading import Machine, PeerChoice, Reading, Work
from benchmarks.model.workload import PAD_ID, Job, Tokens, Workload, prompts_of


def measure(
    jobs: Sequence[Job], machine: Machine, threads: int, choice: PeerChoice | None, on_iteration: Callable[[], None]
) -> Iterator[Reading]:
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    model = load_model(machine)
    weights = weights_sum(model)
    device, end = torch.device(machine.device), machine.sizes.vocabulary
    clock = Clock(device)
    for job in jobs:
        forget_peak(device)
        iterations, lengths, seen = [], [], list[Tokens]()
        for number in range(job.iterations):
            prompts = prompts_of(job.workload, end, number)
            seen += prompts
            outputs: list[list[int]] = []
            iterations.append(clock.timed(partial(_generate, model, prompts, job.workload, end, choice, outputs)))
            lengths += [_length(row, end) for row in outputs]
            on_iteration()
        done = Work.of(seen, (), lengths, job.iterations, updates=0, weights=weights)
        yield Reading("generate", job, tuple(iterations), done, peak(device), choice)


@torch.no_grad()
def _generate(
    model: Any,
    prompts: Sequence[Tokens],
    workload: Workload,
    end: int,
    choice: PeerChoice | None,
    outputs: list[list[int]],
) -> None:
    ids_PL = torch.tensor(prompts, device=model.device)
    whole_NL = model.generate(
        input_ids=ids_PL,
        attention_mask=torch.ones_like(ids_PL),
        max_new_tokens=workload.new_tokens,
        num_return_sequences=workload.group_size,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        pad_token_id=PAD_ID,
        eos_token_id=end,
        cache_implementation="static" if choice is not None and choice.cache == "static" else None,
    )
    outputs.extend(whole_NL[:, ids_PL.shape[1] :].tolist())


def _length(row: list[int], end: int) -> int:
    """Up to the end token, behind which there is padding. None is expected: it is the one nobody can sample."""
    return row.index(end) + 1 if end in row else len(row)
