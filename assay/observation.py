"""`assay.observe(...)`: the doctor inside any training loop. Tensors of one update --> Diagnosis.

    assay.observe(step=step, update=0, tokens=tokens, mask=mask, new_logprobs=new, old_logprobs=old,
                  advantages=advantages, rewards=rewards, group_ids=prompt_numbers, loss=loss, temperature=0.7)

Every field is optional; what is missing is named in the diagnosis. docs/batch-file.md lists the fields.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.doctor.diagnosis import Diagnosis
from assay.doctor.laws.step import DIRECTIONS, minimises
from assay.doctor.live import LiveDoctor
from assay.machine.durable import reason
from assay.record.batch import TEXTS, Array, Batch, BatchError
from assay.record.batch_file import write_batch

if TYPE_CHECKING:
    from torch import nn

    from assay.examine.steps import OptimizerSteps

_LONG_PROMPT = 4  # tokens that all completions of a batch do not repeat by chance


def observe(*, write: str | Path | None = None, model: nn.Module | None = None, **fields: Any) -> Diagnosis:
    """Checks one batch where it is and prints what is proven or likely to stderr, each illness once in a process. What
    is merely possible is in the diagnosis that is returned, and is not printed.

    `fields` are arrays, numbers, settings and texts of a batch, by name. `write` also keeps them as a batch file, for
    `assay doctor FILE`. With a `model` (a Hugging Face causal LM) the plain log-probs of prompt_tokens + tokens are
    computed again: that proves shifts, temperatures and masks right or wrong; it costs a forward pass per row.
    Nothing is changed: no tensor, no mode, no random state. From the first call on the doctor also sees the steps of
    this process's optimizers: whether the weights that have a gradient move, and where to.
    """
    texts = {name: list(fields.pop(name)) for name in TEXTS if fields.get(name) is not None}
    given, fields = fields, _with_token_gradients(fields)
    batch = Batch.of(fields, texts, source=f"step {fields['step']}" if "step" in fields else "the observed batch")
    if model is not None:
        batch = _with_plain_logprobs(batch, model)
    if write is not None:
        try:
            Path(write).parent.mkdir(parents=True, exist_ok=True)
            write_batch(Path(write), batch)
        except OSError as error:
            raise BatchError(
                f"write = {write} could not be written: {reason(error)}; give the path of a file"
            ) from error
    _remember(batch, given)
    return _doctor().examined(batch)


@functools.cache
def _doctor() -> LiveDoctor:
    """One for the whole process."""
    return LiveDoctor("warn", lambda text: print(text, file=sys.stderr), name="assay")


_LAST: list[Batch] = []  # the newest that was observed


@functools.cache
def _steps() -> OptimizerSteps:
    """One for the whole process: it sees every optimizer step from the first call on."""
    from assay.examine.guard import short_reason
    from assay.examine.steps import OptimizerSteps

    return OptimizerSteps(
        _took_step,
        lambda error: print(
            f"assay: optimizer steps are not looked at any more: {short_reason(error)}", file=sys.stderr
        ),
    )


def _remember(batch: Batch, given: Mapping[str, Any]) -> None:
    """The graphs of what was given lead to the weights; the optimizer's next steps show what becomes of them."""
    _LAST[:] = [batch]
    if "torch" in sys.modules:
        steps = _steps()
        for name in ("loss", "new_logprobs"):
            if getattr(given.get(name), "grad_fn", None) is not None:
                steps.show_graph(given[name], is_policy=name == "new_logprobs")


def _took_step(numbers: dict[str, Any], climbs: bool) -> None:
    observed = _LAST[0]
    if climbs:
        numbers = _of_one_that_climbs(numbers, observed)
    place = {name: observed.numbers[name] for name in ("step", "update") if name in observed.numbers}
    source = f"the optimizer's step after {observed.source}"
    _doctor().took_step(Batch.of({**numbers, **place}, source=source))


def _of_one_that_climbs(numbers: dict[str, Any], observed: Batch) -> dict[str, Any]:
    """Up is right where the objective itself is differentiated; where that is not known, the direction is left out."""
    is_minimised = minimises(observed)
    if is_minimised:
        return numbers
    kept = {name: number for name, number in numbers.items() if name not in DIRECTIONS}
    if is_minimised is False and "descent" in numbers:
        kept["descent"] = -numbers["descent"]
    return kept


def _with_token_gradients(fields: dict[str, Any]) -> dict[str, Any]:
    """With d loss / d new_logprobs, where the graph between the two is still there."""
    loss, new_BT = fields.get("loss"), fields.get("new_logprobs")
    has_graphs = getattr(loss, "grad_fn", None) is not None and getattr(new_BT, "requires_grad", False)
    if not has_graphs or loss is None or new_BT is None or fields.get("gradients") is not None:
        return fields
    import torch

    try:
        (gradients,) = torch.autograd.grad(loss, new_BT, retain_graph=True, allow_unused=True)
    except RuntimeError:  # backward() has freed the graph
        return fields
    return fields if gradients is None else {**fields, "gradients": gradients}


def _with_plain_logprobs(batch: Batch, model: nn.Module) -> Batch:
    import numpy as np

    from assay.calibration import Tally
    from assay.policy.plain import plain_logprobs
    from assay.record.batch import PLAIN_FIELDS

    needed = ("tokens", "mask", "prompt_tokens", "prompt_mask")
    absent = [name for name in needed if name not in batch.arrays]
    absent += [name for name in ("temperature",) if name not in batch.settings]
    if absent:
        raise BatchError(f"model= computes log-probs again, which needs {', '.join(absent)} too")
    tokens_BT, _, prompts_BP, prompt_mask_BP = batch.need(*needed)
    temperature = float(batch.setting("temperature"))
    lengths_B = batch.get("lengths")
    if lengths_B is None:
        lengths_B = _lengths(batch)
    _refuse_whole_rows(batch, lengths_B)
    forced_BT = batch.get("forced")
    plain, tally = {name: np.zeros(tokens_BT.shape) for name in PLAIN_FIELDS}, Tally()
    for row, length in enumerate(lengths_B):
        prompt, tokens = prompts_BP[row][prompt_mask_BP[row]].tolist(), tokens_BT[row, :length].tolist()
        if tokens:
            _refuse_unknown_ids(row, [*prompt, *tokens], model)
            forced = [] if forced_BT is None else forced_BT[row, :length].tolist()
            try:
                answers = plain_logprobs(model, prompt, tokens, temperature=temperature, tally=tally, forced=forced)
            except IndexError as error:
                raise BatchError(_outside(row, max(*prompt, *tokens))) from error
            for name, values_T in zip(PLAIN_FIELDS, answers, strict=True):
                plain[name][row, :length] = values_T
    found = _temperature_behind(batch, model, plain["plain_logprobs"], lengths_B)
    if batch.settings.get("support_kept"):  # the trainer's are over a part of the vocabulary, not known here
        plain = {"plain_raw_logprobs": plain["plain_raw_logprobs"]}
    elif (lengths_B > 0).all():  # rows that are left out whole may be left out for what they are
        plain |= tally.fields()
    return Batch({**batch.arrays, **plain}, {**batch.numbers, **found}, batch.settings, batch.texts, batch.source)


def _temperature_behind(batch: Batch, model: nn.Module, plain_BT: Array, lengths_B: Array) -> dict[str, float]:
    """Of new_logprobs, where they are not those of the stated temperature."""
    import numpy as np
    import torch

    from assay.policy.plain import Scored, temperature_behind

    new_BT, mask_BT = batch.get("new_logprobs"), batch.arrays["mask"]
    if new_BT is None:
        return {}
    tokens_BT, prompts_BP, prompt_mask_BP = batch.need("tokens", "prompt_tokens", "prompt_mask")
    scores_BT = torch.tensor(np.where(mask_BT, new_BT, np.nan))
    rows = [
        Scored(
            prompts_BP[row][prompt_mask_BP[row]].tolist(),
            tokens_BT[row, :length].tolist(),
            scores_BT[row, :length],
            torch.tensor(plain_BT[row, :length]),
        )
        for row, length in enumerate(lengths_B)
    ]
    found = temperature_behind(model, rows, float(batch.setting("temperature")))
    return {} if found is None else {"new_temperature": found}


def _lengths(batch: Batch) -> Array:
    """Up to the last trained token, and the end that follows it."""
    import numpy as np

    tokens_BT, mask_BT = batch.need("tokens", "mask")
    lengths_B = np.where(mask_BT.any(axis=1), mask_BT.shape[1] - np.argmax(mask_BT[:, ::-1], axis=1), 0)
    padded_BT = np.pad(tokens_BT, ((0, 0), (0, 1)), constant_values=-1)
    next_B = np.take_along_axis(padded_BT, lengths_B[:, None], axis=1)[:, 0]
    last_B = np.take_along_axis(padded_BT, np.maximum(lengths_B - 1, 0)[:, None], axis=1)[:, 0]
    ends = list(batch.settings.get("eos_ids", ()))
    return np.asarray(lengths_B + ((lengths_B > 0) & np.isin(next_B, ends) & ~np.isin(last_B, ends)))


def _refuse_unknown_ids(row: int, ids: Sequence[int], model: nn.Module) -> None:
    """Before the forward pass: on a GPU an unknown id ends the process. Not every model says how many it knows."""
    embeddings = getattr(model, "get_input_embeddings", lambda: None)()
    known = getattr(embeddings, "num_embeddings", None)
    if min(ids) < 0 or (isinstance(known, int) and max(ids) >= known):
        raise BatchError(_outside(row, min(ids) if min(ids) < 0 else max(ids)))


def _outside(row: int, token: int) -> str:
    return (
        f"row {row} holds the token id {token}, which is outside of the model's vocabulary; give ids of this model's "
        "tokenizer, and padding outside of mask and prompt_mask"
    )


def _refuse_whole_rows(batch: Batch, lengths_B: Array) -> None:
    """The prompt is put before `tokens`: if they begin with it already, the model would be asked about it twice.

    A completion may repeat a short prompt. So all rows must begin with theirs, and it must be long or out of the loss.
    """
    tokens_BT, mask_BT, prompts_BP, prompt_mask_BP = batch.need("tokens", "mask", "prompt_tokens", "prompt_mask")
    shortest, trained = _LONG_PROMPT, False
    rows = [row for row, length in enumerate(lengths_B) if length]
    for row in rows:
        tokens = tokens_BT[row, : lengths_B[row]].tolist()
        padded, prompt = prompts_BP[row].tolist(), prompts_BP[row][prompt_mask_BP[row]].tolist()
        # where log-probs had a column less than the tokens, the first token of each row was dropped
        heads = [head for head in (padded, prompt, padded[1:], prompt[1:]) if head and tokens[: len(head)] == head]
        if not heads:
            return
        shortest = min(shortest, len(heads[0]))
        trained = trained or bool(mask_BT[row, : len(heads[0])].any())
    if rows and (shortest == _LONG_PROMPT or not trained):
        raise BatchError(
            "tokens begin with the prompt of their row, and model= puts prompt_tokens before them, so that the prompt "
            "would be scored twice; give only the completion in tokens (tokens[:, prompt_width:], and so in every "
            "field of that shape)"
        )
