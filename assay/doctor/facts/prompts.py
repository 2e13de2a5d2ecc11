"""Which prompt each row of a batch has, by its tokens or its text.

Shape legend: B completions, P prompt tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from assay.doctor.evidence import Batch
from assay.doctor.facts.repeats import values_by_key
from assay.verdict import Missing


def prompt_keys(batch: Batch) -> Sequence[Hashable]:
    """Equal where the prompts are equal: by tokens without padding, else by text; in an environment the states in which
    episodes begin. Raises Missing without any."""
    tokens = prompt_token_keys(batch)
    if tokens is not None:
        return tokens
    states_BO = batch.get("start_states")
    if states_BO is not None:
        return [tuple(state.tolist()) for state in states_BO]
    for name in ("prompt", "prompt_id"):
        if name in batch.texts:
            return batch.texts[name]
    raise Missing("prompt_tokens")


def prompt_token_keys(batch: Batch) -> list[tuple[int, ...]] | None:
    tokens_BP, mask_BP = batch.get("prompt_tokens"), batch.get("prompt_mask")
    if tokens_BP is None or not tokens_BP.shape[1]:
        return None
    if mask_BP is None:
        return [tuple(row.tolist()) for row in tokens_BP]
    return [tuple(row[real].tolist()) for row, real in zip(tokens_BP, mask_BP, strict=True)]


def need_groups(batch: Batch) -> None:
    """Raises Missing where the groups were read off the trainer's own mean and the prompts do not confirm them: what
    follows from the mean would only be compared with itself."""
    if not batch.settings.get("groups_assumed"):
        return
    try:
        prompts = values_by_key(batch.need("group_ids")[0].tolist(), prompt_keys(batch))
    except Missing:
        prompts = {}
    if not prompts or any(len(set(asked)) > 1 for asked in prompts.values()):
        raise Missing("which rows answer one prompt, known apart from the script's own mean")
