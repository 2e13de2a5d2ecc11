"""Reward functions spread over worker processes: one loop, no threads, a deadline for each request.

A request is one completion, or all completions of one prompt for a function that takes many at a time. A worker that
hangs or dies fails its own request alone and is started again.
"""

from __future__ import annotations

import functools
import itertools
import math
import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.rewards.call import Result, ToScore
from assay.rewards.failures import load_error
from assay.rewards.limits import refuse_too_few_files
from assay.rewards.printed import Echo
from assay.rewards.process import Worker

TICK_SECONDS = 0.5  # a signal to stop is noticed after at most this long, whatever hangs
START_TRIES = 3  # a worker that fails to start this often in a row is not used for this batch


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """A reward function by name. `fixed_arguments` are arguments that are the same in every call."""

    name: str  # its components are named after it
    spec: str  # file.py:function, or assay.module:function of this package
    fixed_arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Job:
    function: int
    samples: tuple[int, ...]


class Pool:
    """Opening it starts the workers and loads the functions; one that cannot be loaded is a ConfigError."""

    def __init__(
        self,
        functions: Sequence[RewardSpec],
        *,
        workers: int,
        timeout: float,
        separator: str,
        check_interrupt: Callable[[], None] = lambda: None,
        report: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """`report` is called with the first lines that the functions print."""
        refuse_too_few_files(workers)
        self.functions = tuple(functions)
        self._timeout = timeout
        self._check_interrupt = check_interrupt  # called while waiting; it may raise
        wanted = [{"spec": function.spec, "fixed_arguments": function.fixed_arguments} for function in functions]
        setup = {"functions": wanted, "timeout": timeout, "separator": separator}
        echo = Echo(report)
        self._workers = [Worker(setup, functools.partial(echo.add, number)) for number in range(workers)]
        try:
            for worker in self._workers:
                worker.start()
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    def unknown_parameters(self) -> Iterator[tuple[RewardSpec, str]]:
        """Parameters that only a field of the problem can fill."""
        for function, shown in zip(self.functions, self._workers[0].functions, strict=True):
            for name in shown["unknown"]:
                yield function, name

    def place_of(self, function: int) -> str:
        """The file and line at which a function begins."""
        place: str = self._workers[0].functions[function]["place"]
        return place

    def score(self, samples: Sequence[ToScore], on_result: Callable[[int, int, Result], None]) -> None:
        """Calls on_result(sample, function, result), by number, for each pair, as they come. It may raise, and so may
        check_interrupt: what is under way then ends with it."""
        jobs = deque(self._jobs(samples))
        under_way: dict[Worker, Job] = {}
        failed_starts = dict.fromkeys(self._workers, 0)
        failed_start: Result = {}
        try:
            while jobs or under_way:
                for worker in self._workers:
                    if jobs and worker not in under_way and failed_starts[worker] < START_TRIES:
                        under_way[worker] = jobs.popleft()
                        self._begin(worker, under_way[worker], samples)
                if not under_way:
                    job = jobs.popleft()
                    for sample in job.samples:
                        on_result(sample, job.function, failed_start)
                    continue
                self._wait(under_way)
                for worker, job in list(under_way.items()):
                    was_starting = worker.is_starting
                    reply = worker.advance()
                    if reply is None:
                        continue
                    if was_starting and "error" in reply:
                        failed_starts[worker] += 1
                        failed_start = {**reply, "printed": worker.printed.text}
                        if failed_starts[worker] < START_TRIES:
                            worker.start()
                            continue
                    elif was_starting:
                        failed_starts[worker] = 0
                        self._begin(worker, job, samples)
                        continue
                    del under_way[worker]
                    results = [reply] * len(job.samples) if "error" in reply else reply["results"]
                    is_one_call = "error" in reply or worker.functions[job.function]["batched"]
                    for sample, result in zip(job.samples, results, strict=True):
                        if "error" in result:
                            completions = len(job.samples) if is_one_call else 1
                            result |= {"printed": worker.printed.text, "completions": completions}
                        on_result(sample, job.function, result)
        finally:
            for worker in under_way:  # only if something was raised: a late answer must not meet a later question
                worker.stop()

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()

    def _jobs(self, samples: Sequence[ToScore]) -> Iterator[Job]:
        """Prompt by prompt, so that scores are complete early on."""
        for _, members in itertools.groupby(range(len(samples)), key=lambda index: samples[index]["id"]):
            group = tuple(members)
            for number, shown in enumerate(self._workers[0].functions):
                cuts = [group] if shown["by_group"] else [(index,) for index in group]
                yield from (Job(number, cut) for cut in cuts)

    def _begin(self, worker: Worker, job: Job, samples: Sequence[ToScore]) -> None:
        if not worker.is_running:
            worker.start()
        elif not worker.is_starting:
            chosen = [samples[index] for index in job.samples]
            worker.ask(job.function, chosen, self._timeout * len(chosen))

    def _wait_until_ready(self) -> None:
        while starting := [worker for worker in self._workers if worker.is_starting]:
            self._wait(starting)
            for worker in starting:
                reply = worker.advance()
                if reply is not None and "error" in reply:
                    specs = [function.spec for function in self.functions]
                    spec = specs[reply["function"]] if "function" in reply else ", ".join(specs)
                    raise load_error(spec, reply, worker.printed.text)

    def _wait(self, workers: Iterable[Worker]) -> None:
        """Until one of them has something to say, the first deadline is over, or it is time to look for signals."""
        poll = select.poll()  # needs no open file of its own
        for worker in workers:
            worker.watch(poll)
        left = min(worker.deadline for worker in workers) - time.monotonic()
        poll.poll(math.ceil(1000 * min(max(left, 0.0), TICK_SECONDS)))
        self._check_interrupt()
