"""The contender assay: its verbs, one after the other, as `assay train` joins them; nothing is written to disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from assay.config import Config
from assay.engine.shared_weights import SharedWeightsEngine
from assay.policy.causal import CausalPolicy
from assay.policy.codec import TokenizerCodec
from assay.policy.probe import examine_policy
from assay.train.run.budget import budgeted
from assay.train.run.cpu import set_up
from assay.train.step.credit import credit
from assay.train.step.learner import Learner
from assay.train.step.pack import pack_step
from assay.types import Group, Prompt, Rollout, Score, StopReason
from benchmarks.model.device import Clock, forget_peak, peak
from benchmarks.model.prepare import load_model, tokenizer_of, weights_sum
from benchmarks.model.reading import Iteration, Machine, PeerChoice, Reading, Work
from benchmarks.model.workload import (
    PAD_ID,
    ROLLOUT,
    UPDATE,
    Job,
    Tokens,
    Workload,
    completions_of,
    prompts_of,
    reward_of,
)

SAMPLER_LOGPROB = -1.0  # of completions that are given: nothing that is measured depends on it


def settings_of(machine: Machine, workload: Workload, threads: int) -> Config:
    """One update a step, on all of its rollouts; everything else as `assay train` has it by default."""
    config = Config()
    return replace(
        config,
        run=replace(config.run, device=machine.device, threads=threads),
        model=replace(config.model, path=machine.directory, dtype=machine.dtype),
        rollout=replace(
            config.rollout,
            prompts=workload.prompts,
            group_size=workload.group_size,
            max_tokens=workload.new_tokens,
            max_rows=max(config.rollout.max_rows, workload.rows),
        ),
        optimizer=replace(config.optimizer, epochs=1, learning_rate=1e-6, warmup=0),
    )


def measure(
    jobs: Sequence[Job], machine: Machine, threads: int, choice: PeerChoice | None, on_iteration: Callable[[], None]
) -> Iterator[Reading]:
    """One engine for all jobs: what it has prepared for one is there for the next, as in a run of many steps."""
    set_up(settings_of(machine, jobs[0].workload, threads))
    model = load_model(machine).eval()
    weights = weights_sum(model)
    notes: list[str] = []
    codec = TokenizerCodec(tokenizer_of(machine.sizes.vocabulary))
    policy = examine_policy(CausalPolicy(model, codec, (PAD_ID,), Config().rollout.temperature), notes.append)
    engine = SharedWeightsEngine(policy)
    for job in jobs:
        contender = Contender(job, machine, policy, engine, settings_of(machine, job.workload, threads))
        forget_peak(policy.device)
        iterations = []
        for number in range(job.iterations):
            iterations.append(contender.iteration(number))
            on_iteration()
        done, memory = contender.work(weights), peak(policy.device)
        del contender  # and its optimizer, before the next one is made
        yield Reading("assay", job, tuple(iterations), done, memory, notes=tuple(notes))


class Contender:
    """The learner of one job, and what it has done so far."""

    def __init__(
        self, job: Job, machine: Machine, policy: CausalPolicy, engine: SharedWeightsEngine, config: Config
    ) -> None:
        self.job, self.machine, self.engine = job, machine, engine
        self.config = budgeted(config, policy)
        policy = policy.check_shortcuts(self.prompts(0)[0], job.workload.new_tokens)
        # only now: an end token that cannot be sampled is refused by every check of a policy
        self.policy = engine.policy = replace(policy, eos_ids=(machine.sizes.vocabulary,))
        self.device = policy.device
        self.clock = Clock(self.device)
        self.learner = None if job.measurement == ROLLOUT else self._learner()
        self.seen_prompts: list[Tokens] = []
        self.given: list[Tokens] = []
        self.lengths: list[int] = []
        self.updates = 0

    def _learner(self) -> Learner:
        return Learner(self.policy, None, self.config.loss, self.config.optimizer, self.job.iterations)

    def prompts(self, number: int) -> list[Prompt]:
        drawn = prompts_of(self.job.workload, self.machine.sizes.vocabulary, number)
        return [Prompt(f"{number}-{place}", "", tokens, "") for place, tokens in enumerate(drawn)]

    def iteration(self, number: int) -> Iteration:
        prompts = self.prompts(number)
        self.seen_prompts += [prompt.tokens for prompt in prompts]
        rollouts: list[Sequence[Rollout]] = []
        if self.job.measurement == UPDATE:
            rollouts = self._given(prompts, number)
        generating = Iteration(0.0, 0.0)

        def work() -> None:
            nonlocal rollouts, generating
            if self.job.measurement != UPDATE:
                generating = self.clock.timed(lambda: rollouts.extend(self._generate(prompts, number)))
            if self.learner is not None:
                self._learn(prompts, rollouts, number)

        whole = self.clock.timed(work)
        self.lengths += [len(rollout.tokens) for group in rollouts for rollout in group]
        return replace(whole, generated_seconds=generating.seconds)

    def _generate(self, prompts: Sequence[Prompt], number: int) -> list[list[Rollout]]:
        return self.engine.generate(
            prompts,
            group_size=self.config.rollout.group_size,
            settings=self.config.rollout,
            seed=number,
            policy_version=number,
        )

    def _given(self, prompts: Sequence[Prompt], number: int) -> list[Sequence[Rollout]]:
        completions = completions_of(self.job.workload, self.machine.sizes.vocabulary, number)
        self.given += [tokens for group in completions for tokens in group]
        return [
            [
                Rollout(prompt.id, tokens, (SAMPLER_LOGPROB,) * len(tokens), StopReason.LENGTH, number, "")
                for tokens in group
            ]
            for prompt, group in zip(prompts, completions, strict=True)
        ]

    def _learn(self, prompts: Sequence[Prompt], rollouts: Sequence[Sequence[Rollout]], number: int) -> None:
        assert self.learner is not None
        groups = [
            Group(prompt, tuple(group), tuple(Score.of({"trivial": reward_of(rollout.tokens)}) for rollout in group))
            for prompt, group in zip(prompts, rollouts, strict=True)
        ]
        samples = credit(groups, self.config.advantage, {}, mask_truncated=False)
        batch = self.learner.freeze(pack_step(samples, self.config, number, self.policy))
        for minibatch, frozen in zip(batch.minibatches, batch.frozen, strict=True):
            self.updates += self.learner.update(minibatch, frozen, number).update.applied

    def work(self, weights: float) -> Work:
        return Work.of(
            self.seen_prompts, self.given, self.lengths, self.job.iterations, updates=self.updates, weights=weights
        )
