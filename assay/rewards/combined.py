"""Several reward functions as one: (Prompt, Rollout)[N] -> Score[N]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from assay.grpo import REWARD_LIMIT
from assay.rewards.call import Result, ToScore
from assay.rewards.failures import failure_of
from assay.rewards.pool import Pool
from assay.rewards.steps import step_ends
from assay.types import Prompt, Rollout, Score

if TYPE_CHECKING:
    from assay.rewards import Asked, OnScore, Reward

Parts = dict[str, Score]  # by function


@dataclass(frozen=True, slots=True)
class Combined:
    """The task's own reward in this process, a judge, and functions in worker processes; any of them may be absent."""

    names: tuple[str, ...]  # of all functions, in the order of the config
    weights: Mapping[str, float]
    in_task: Callable[[Prompt, Rollout], Score] | None
    pool: Pool | None
    judge: Reward | None
    decode: Callable[[Sequence[int]], str]
    separator: str

    def score(self, pairs: Sequence[Asked], on_score: OnScore) -> list[Score]:
        if self.judge is not None and len(self.names) == 1:
            return [
                self.combine({"judge": score})
                for score in self.judge.score(
                    pairs, lambda index, score: on_score(index, self.combine({"judge": score}))
                )
            ]
        parts: list[Parts] = [{} for _ in pairs]
        if self.judge is not None:
            self._judge(self.judge, pairs, parts, on_score)
        scores = {index: self.combine(part) for index, part in enumerate(parts) if _is_failed(part)}
        left = [index for index in range(len(pairs)) if index not in scores]

        def keep(index: int, name: str, part: Score) -> None:
            parts[index][name] = part
            if len(parts[index]) == len(self.names):
                scores[index] = self.combine(parts[index])
                on_score(index, scores[index])

        if self.in_task is not None:
            for index in left:
                keep(index, "task", self.in_task(*pairs[index]))
        if self.pool is not None:
            functions = self.pool.functions

            def on_result(sample: int, function: int, result: Result) -> None:
                index = left[sample]
                keep(index, functions[function].name, self._part(pairs[index][1], function, result))

            self.pool.score([_to_score(*pairs[index]) for index in left], on_result)
        return [scores[index] for index in range(len(pairs))]

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
        if self.judge is not None:
            self.judge.close()

    def combine(self, parts: Mapping[str, Score]) -> Score:
        """One Score of the Scores of all functions. One that failed fails them all: a partial sum is another reward."""
        components: dict[str, float] = {}
        steps: list[tuple[int, float]] = []
        for name in self.names:
            part = parts.get(name)
            if part is None:  # only beside a failure: the rest is not called
                continue
            if part.error:
                return Score.failed(f"{name}: {part.error}", part.failure)
            components |= {self._component(name, key): value for key, value in part.components.items()}
            weighted = [(end, self.weights.get(name, 1.0) * reward) for end, reward in part.steps]
            if steps and weighted and [end for end, _ in steps] != [end for end, _ in weighted]:
                return Score.failed(f"{name}: its steps end elsewhere than those of another function")
            if steps and weighted:
                weighted = [(end, one + other) for (end, one), (_, other) in zip(steps, weighted, strict=True)]
            steps = weighted or steps
        score = Score.of(components, self.weights, tuple(steps))
        if score.reward is None or not abs(score.reward) <= REWARD_LIMIT:
            return Score.failed(
                f"the weighted sum {score.reward} is not a usable reward: it is beyond {REWARD_LIMIT:g}"
            )
        return score

    def _component(self, name: str, key: str) -> str:
        if key in ("", name):  # a plain number
            return name
        return key if len(self.names) == 1 and not self.weights else f"{name}/{key}"

    def _judge(self, judge: Reward, pairs: Sequence[Asked], parts: list[Parts], on_score: OnScore) -> None:
        """A judged completion is not scored yet; a failed one is. Failures are reported at once as long as there is
        nothing else, so that a judge that never works is noticed. Otherwise they are reported later: a few failures
        must not look like all."""
        held: list[tuple[int, Score]] = []
        works = False

        def on_judged(index: int, score: Score) -> None:
            nonlocal works
            works = works or not score.error
            if score.error and works:
                held.append((index, score))
            elif score.error:
                on_score(index, self.combine({"judge": score}))

        for part, score in zip(parts, judge.score(pairs, on_judged), strict=True):
            part["judge"] = score
        for index, score in held:
            on_score(index, self.combine({"judge": score}))

    def _part(self, rollout: Rollout, function: int, result: Result) -> Score:
        if "error" in result:
            assert self.pool is not None
            return Score.failed(result["error"], failure_of(result, self.pool.place_of(function)))
        if "steps" not in result:
            return Score.of(result["components"])
        ends = step_ends(self.decode, rollout.tokens, rollout.text, self.separator)
        return Score.of(result["components"], steps=tuple(zip(ends, result["steps"], strict=True)))


def _is_failed(parts: Parts) -> bool:
    return any(part.error for part in parts.values())


def _to_score(prompt: Prompt, rollout: Rollout) -> ToScore:
    return {
        "prompt": prompt.text,
        "completion": rollout.text,
        "answer": prompt.answer,
        "tokens": rollout.tokens,
        "id": prompt.id,
        "truncated": rollout.truncated,
        "fields": prompt.fields,
    }
