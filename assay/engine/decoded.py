"""What has been decoded so far of every rollout, and which have ended, where and why.

Shape legend: R rollouts, T completion tokens, N rollouts that went on, C positions since the last look, K tokens of a
support.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from assay.config.sections import RolloutConfig
from assay.engine.engine import BrokenPolicy
from assay.llama.decoder import Sampled
from assay.policy.policy import Policy
from assay.types import Prompt, Rollout, StopReason

SLACK = 4  # tokens that spell nothing by themselves: the first bytes of a character, a marker


class DecodedRollouts:
    def __init__(self, policy: Policy, settings: RolloutConfig, count: int) -> None:
        self.policy = policy
        self.stops = settings.stop
        self.ends = np.array(policy.eos_ids)
        self.limit = settings.max_tokens
        self.tokens_RT = np.zeros((count, self.limit), dtype=np.int64)
        self.logprobs_RT = np.zeros((count, self.limit), dtype=np.float32)
        self.lengths_R = np.zeros(count, dtype=np.int64)
        self.supports: list[list[tuple[int, ...]]] = [[] for _ in range(count)]  # where there are any
        self.ended_R = np.zeros(count, dtype=bool)
        self.of_eos_R = np.zeros(count, dtype=bool)
        self.texts: dict[int, str] = {}  # of rollouts that a stop string ended, up to it

    @property
    def positions(self) -> int:
        """How many positions need no more decoding, those behind an end included."""
        return int(np.where(self.ended_R, self.limit, self.lengths_R).sum())

    def take(
        self, rollouts_N: NDArray[np.int64], sampled: Sampled, counts_N: NDArray[np.int64] | None = None
    ) -> NDArray[np.bool_]:
        """Adds what was sampled for these rollouts, none of which had ended: all of it, or counts_N positions. Returns
        ended_N: which of them end with it. Tokens behind an end are dropped."""
        tokens_NC, logprobs_NC = sampled.tokens_LC.numpy(), sampled.logprobs_LC.numpy()
        count = tokens_NC.shape[1]
        counts_N = np.full(len(rollouts_N), count) if counts_N is None else counts_N
        is_end_NC = np.isin(tokens_NC, self.ends)
        first_end_N = np.where(is_end_NC.any(axis=1), is_end_NC.argmax(axis=1), count)
        lengths_N = self.lengths_R[rollouts_N]
        taken_N = np.minimum(np.minimum(first_end_N + 1, counts_N), self.limit - lengths_N)
        of_eos_N = first_end_N < taken_N
        if self.stops:
            self._cut_at_stops(rollouts_N, tokens_NC, taken_N, of_eos_N)
        taken_NC = np.arange(count) < taken_N[:, None]
        if not np.isfinite(logprobs_NC[taken_NC]).all():
            raise BrokenPolicy(
                "the policy's probabilities of the next token are not finite: its weights have grown out of bounds; "
                "lower the learning rate or lengthen its warm-up, and start again"
            )
        rows, columns = np.nonzero(taken_NC)
        places = rollouts_N[rows], lengths_N[rows] + columns
        self.tokens_RT[places] = tokens_NC[taken_NC]
        self.logprobs_RT[places] = logprobs_NC[taken_NC]
        if sampled.support_LCK is not None:
            self._take_supports(rollouts_N, sampled.support_LCK, taken_N)
        self.lengths_R[rollouts_N] = lengths_N + taken_N
        self.of_eos_R[rollouts_N] = of_eos_N
        ended_N: NDArray[np.bool_] = of_eos_N | (lengths_N + taken_N == self.limit)
        if self.texts:
            ended_N |= np.array([int(rollout) in self.texts for rollout in rollouts_N])
        self.ended_R[rollouts_N] = ended_N
        return ended_N

    def _cut_at_stops(
        self,
        rollouts_N: NDArray[np.int64],
        tokens_NC: NDArray[np.int64],
        taken_N: NDArray[np.int64],
        of_eos_N: NDArray[np.bool_],
    ) -> None:
        """Shortens taken_N to the token that completes a stop string; an end token spells nothing."""
        for row, rollout in enumerate(rollouts_N.tolist()):
            tokens = self.tokens_RT[rollout, : self.lengths_R[rollout]].tolist()
            for place in range(int(taken_N[row]) - int(of_eos_N[row])):
                tokens.append(int(tokens_NC[row, place]))
                if (text := stop_at(tokens, self.stops, self.policy.codec.decode)) is not None:
                    self.texts[rollout] = text
                    taken_N[row], of_eos_N[row] = place + 1, False
                    break

    def _take_supports(self, rollouts_N: NDArray[np.int64], support_NCK: Tensor, taken_N: NDArray[np.int64]) -> None:
        for row, rollout in enumerate(rollouts_N.tolist()):
            among = support_NCK[row, : int(taken_N[row])].tolist()
            self.supports[rollout] += [tuple(dict.fromkeys(tokens)) for tokens in among]

    def rollout(self, number: int, prompt: Prompt, policy_version: int) -> Rollout:
        tokens = self.tokens_RT[number, : self.lengths_R[number]].tolist()
        if number in self.texts:
            stop, text = StopReason.STOP, self.texts[number]
        elif self.of_eos_R[number]:
            stop, text = StopReason.EOS, self.policy.codec.decode(tokens[:-1])
        else:
            stop, text = StopReason.LENGTH, self.policy.codec.decode(tokens)
        return Rollout(
            prompt_id=prompt.id,
            tokens=tuple(tokens),
            sampler_logprobs=tuple(self.logprobs_RT[number, : self.lengths_R[number]].tolist()),
            stop=stop,
            policy_version=policy_version,
            text=text,
            # a greedy token is reported with its log-prob among all tokens, whatever top_k: then there is no support
            support=tuple(self.supports[number]) or None,
        )


def stop_at(tokens: Sequence[int], stops: Sequence[str], decode: Callable[[Sequence[int]], str]) -> str | None:
    """The text before the first stop string, if the newest token completed one; else None.

    >>> stop_at([72, 105, 10, 13], ["\\n\\r"], lambda tokens: bytes(tokens).decode())
    'Hi'
    """
    if not stops:
        return None
    # the newest token ends the stop string, which is at most that many tokens long; the whole text is decoded only then
    window = max(len(stop.encode()) for stop in stops) + SLACK
    tail = decode(tokens[-window:])
    if not any(stop in tail for stop in stops):
        return None
    text = decode(tokens)
    places = [text.find(stop) for stop in stops if stop in text]
    return text[: min(places)] if places else None
