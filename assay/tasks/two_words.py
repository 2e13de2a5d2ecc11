"""Two words: write a sentence that contains both. Any small instruct model can do it some of the time."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from assay.config.sections import setting
from assay.tasks.split import MadeTask, is_heldout
from assay.types import Problem, Prompt, Rollout, Score

WORDS = re.findall(
    r"\w+",
    """
    apple baker bird boat book bread bridge candle castle cat chair cloud coffee dog door farmer fire fish flower forest
    garden ghost hat horse house island kitchen knife lake lamp letter lion market mirror moon mountain mouse music
    night ocean paper piano queen rain river road ship snow spoon star storm street sun teacher tiger tower train tree
    village window
    """,
)


@dataclass(frozen=True, slots=True)
class TwoWordsOptions:
    """A sentence that contains two given words."""

    min_words: int = setting(5, "a text of fewer words is not a sentence and gets nothing", low=2)


@dataclass(frozen=True, slots=True)
class TwoWords(MadeTask):
    """
    >>> problem = TwoWords(TwoWordsOptions(), seed=1).training_problem(0)
    >>> first, second = problem.answer.split()
    >>> problem.text == f'Write one short sentence that contains the words "{first}" and "{second}".'
    True
    """

    options: TwoWordsOptions
    seed: int

    def score(self, prompt: Prompt, rollout: Rollout) -> Score:
        """The share of the two words that stand in the text as whole words, in any case."""
        said = re.findall(r"\w+", rollout.text.lower())
        wanted = prompt.answer.split()
        share = len(set(wanted) & set(said)) / len(wanted)
        return Score.of({"words": share if len(said) >= self.options.min_words else 0.0})

    def _draw(self, source: random.Random, name: str) -> tuple[bool, Problem]:
        first, second = source.sample(WORDS, 2)
        question = f'Write one short sentence that contains the words "{first}" and "{second}".'
        problem = Problem(f"two_words-{name}", question, f"{first} {second}", ({"role": "user", "content": question},))
        return is_heldout(" ".join(sorted((first, second)))), problem
