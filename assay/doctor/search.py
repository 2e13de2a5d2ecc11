"""Plain words --> the illnesses that show so: `assay explain "loss is zero"`.

Each illness has symptoms, in the words of users. A query is compared with each of them by the words they share, and
with the illness's own text; rare words count more. Words are reduced to a stem and to one of their synonyms.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from assay.doctor.catalogue import Illness

MOST_ANSWERS, FEWEST_ANSWERS = 6, 3  # answers
_NEAR_BEST = 0.55  # of the best score: what is worse than that is left out behind the first FEWEST_ANSWERS
_LEAST_SCORE = 0.12  # below this score no illness is shown
_SUMMARY, _TEXT = 0.35, 0.15  # weights of an illness's name and summary, and of its explanation

_UNSAID = frozenset(
    "a about actually after all also although am an and any are around as at be because become been before being but "
    "by can certain come could did do doe during each even every for from further get give go goe got grpo had happen "
    "has have how i if in instead into is issue it its just keep kind like made make many may me might more most much "
    "my normal of often on one only or our out over own possibly ppo problem question quite really rl rlhf run seem "
    "set setting should show since so solve some start step still such sure suspect than that the their them then "
    "there these they thing this those though time to too train trainer training under unexpected until up use using "
    "value very want was way we were what when where which while who whose why will with without work would "
    "you your".split()
)
_NUMBERS = {"0": "zero", "0.0": "zero", "1": "one", "1.0": "one"}
_SYNONYMS = {
    "zero": "zero null nought vanish nothing",
    "notfinite": "nan nans inf infinite infinity overflow finite nonfinite",
    "explode": "explode explosion blow blowup diverge runaway huge spike jump billion enormous surge unbounded large",
    "grow": "grow increase rise climb higher raise growth",
    "fall": "fall decrease drop decline down worse worsen lower degrade",
    "collapse": "collapse degenerate collapsing",
    "stuck": "stuck flat constant plateau stagnate unchanged stay stall frozen same identical equal always saturate",
    "move": "move change improve",
    "unstable": "unstable fluctuate oscillate wild wildly noisy erratic instability",
    "short": "short shorter shorten shrink",
    "slow": "slow slowly speed hour minute long-running throughput forever",
    "garbage": "garbage gibberish nonsense rubbish incoherent babble noise salad hallucinate weird",
    "long": "long longer length lengthy lengthen verbose",
    "answer": "answer completion response output generation rollout sample generate",
    "logprob": "logprob logp logps logprobs",
    "ratio": "ratio importance",
    "clip": "clip clipped clipfrac clipping",
    "gradient": "gradient grad grads gradnorm",
    "reward": "reward score rewards",
    "engine": "vllm engine sampler sglang transformers inference",
    "weight": "weight parameter param",
    "sync": "sync synchronise synchronize synchronization synchronisation stale",
    "differ": "differ difference different mismatch disagree discrepancy deviate inconsistent",
    "eos": "eos stop end finish terminate",
    "limit": "limit cap maximum max truncate truncation cut",
    "repeat": "repeat repetitive repetition duplicate",
    "memory": "memory oom vram",
    "reference": "reference ref",
    "hack": "hack cheat exploit game gaming",
    "rate": "rate lr",
    "lora": "lora adapter peft qlora",
    "advantage": "advantage adv",
    "wrong": "wrong incorrect bug broken incorrectly",
    "half": "bf16 fp16 bfloat16 float16 half precision",
    "cache": "cache caching kv use_cache",
    "group": "group grouping",
    "prompt": "prompt question",
    "learn": "learn learning update",
    "effect": "effect ignore ignored work",
}
_NOUNS = frozenset(
    "answer logprob ratio gradient reward engine weight memory reference lora advantage group prompt "
    "loss kl model token".split()
)


class Hit(NamedTuple):
    illness: Illness
    score: float


def search(query: str, known: Sequence[Illness]) -> list[Hit]:
    """The best answers, the best first; none where no word of the query means anything here."""
    words = words_of(query)
    weights = _rarity(known)
    hits = [Hit(illness, _score(words, illness, weights)) for illness in known]
    best = sorted(hits, key=lambda hit: (-hit.score, hit.illness.code))
    top = best[0].score if best else 0.0
    if top < _LEAST_SCORE:
        return []
    near = [hit for hit in best if hit.score >= _NEAR_BEST * top]
    return [hit for hit in best[: max(FEWEST_ANSWERS, min(len(near), MOST_ANSWERS))] if hit.score > 0]


@cache
def words_of(text: str) -> tuple[str, ...]:
    """
    >>> words_of("Why is the Ratio NOT 1?"), words_of("completions/mean_length grows")
    (('ratio', 'not_one'), ('answer', 'mean', 'long', 'grow'))
    """
    text = re.sub(r"n['\u2019]t\b|!=|=/=|\u2260", " not ", text.lower())
    text = re.sub(r"log[\s_-]*prob(abilitie)?s?\b", "logprob", text)
    text = re.sub(r"!{3,}", " garbage ", text)
    stems: list[str] = []
    is_denied = False
    for word in re.findall(r"\d+(?:\.\d+)?|[a-z]+\d*[a-z]*", text):
        stem = _stem(word)
        if word in ("not", "no", "never", "cannot"):
            is_denied = True
        elif stem is not None and is_denied and stem not in _NOUNS:  # "don't rewards grow": they do not grow
            stems.append(f"not_{stem}")
            is_denied = False
        elif stem is not None:
            stems.append(stem)
    return tuple(stems)


def _stem(word: str) -> str | None:
    """None of a word that says nothing, and of numbers."""
    if word in _NUMBERS:
        return _NUMBERS[word]
    if word in _UNSAID or word[0].isdigit() or len(word) < 2:
        return None
    names = _names()
    for form in (word, *_shorter(word)):
        if form in names:
            return names[form]
        if form in _UNSAID:
            return None
    return [word, *_shorter(word)][-1].rstrip("e")


def _shorter(word: str) -> list[str]:
    """The word without its endings, the least shortened first.

    >>> _shorter("explodes"), _shorter("clipping"), _shorter("entropies")
    (['explode', 'explod'], ['clippe', 'clipp', 'clip'], ['entropy'])
    """
    if word.endswith("ies") and len(word) > 4:
        return [word[:-3] + "y"]
    found: list[str] = []
    for ending in ("s", "es", "ed", "ing", "ly", "ion", "ation"):
        if word.endswith(ending) and len(word) - len(ending) > 2 and not word.endswith("ss"):
            stem = word[: -len(ending)]
            found += [stem + "e", stem] if ending in ("ed", "ing") else [stem]
            if len(stem) > 3 and stem[-1] == stem[-2]:
                found.append(stem[:-1])
    return found


@cache
def _names() -> dict[str, str]:
    return {word: name for name, words in _SYNONYMS.items() for word in words.split()}


def _score(words: Sequence[str], illness: Illness, weights: Mapping[str, float]) -> float:
    phrases = [_likeness(words, words_of(symptom), weights) for symptom in illness.symptoms]
    best = max(phrases, default=0.0)
    own = _likeness(words, words_of(f"{illness.name.replace('_', ' ')} {illness.summary}"), weights)
    text = _likeness(words, words_of(illness.explanation), weights)
    return best + _SUMMARY * own + _TEXT * text


def _likeness(first: Iterable[str], second: Iterable[str], weights: Mapping[str, float]) -> float:
    """The cosine of two sets of words, each weighed by its rarity."""
    one, two = set(first), set(second)
    shared = sum(weights.get(word, 1.0) ** 2 for word in one & two)
    lengths = [math.sqrt(sum(weights.get(word, 1.0) ** 2 for word in words)) for words in (one, two)]
    return shared / (lengths[0] * lengths[1]) if shared else 0.0


def _rarity(known: Sequence[Illness]) -> dict[str, float]:
    """By how many illnesses have the word among their symptoms."""
    by_illness = [{stem for text in illness.symptoms for stem in words_of(text)} for illness in known]
    counts = Counter(stem for stems in by_illness for stem in stems)
    return {word: 1.0 + math.log(len(known) / count) for word, count in counts.items()}
