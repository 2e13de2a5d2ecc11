"""One step of a run as one line of a log: key=value, at most 120 characters. metrics.jsonl has all the numbers."""

from __future__ import annotations

from assay.machine.terminal import fit, human_seconds, number, share
from assay.record.metrics import component_means
from assay.train.show.summary import Row

LONGEST = 120
LONGEST_NAME = 20  # of a reward component
FOR_THE_REST = 40  # characters that reward components leave for the other numbers
WIDEST_VALUE = 6  # expected characters of a value: all lines must show the same numbers


def step_line(step: int, steps: int, metrics: Row, eta: float | None) -> str:
    """The reward and its components, what went wrong, then as many of the other numbers as fit.

    >>> step_line(7, 120, {"reward_mean": 0.5, "reward_exact_mean": 0.4, "reward_brief_mean": 0.1, "old_kl": 0.002}, 9)
    'step=7/120 reward=0.500 exact=0.400 brief=0.100 length=- truncated=- zero_var=- kl=0.002 eta=9.00s'
    """
    last = f"eta={human_seconds(eta).replace(' ', '')}"
    items = [f"step={step}/{steps}", f"reward={number(metrics.get('reward_mean'))}"]
    used = len(f"step={steps}/{steps} reward= eta=") + 2 * WIDEST_VALUE
    for name, value in component_means(metrics).items():
        key = fit(name, LONGEST_NAME, ascii_only=True).replace(" ", "_")
        used += len(f" {key}=") + WIDEST_VALUE
        if used > LONGEST - FOR_THE_REST:
            break
        items.append(f"{key}={number(value)}")
    for key, metric in {"unscored": "rollouts_unscored", "skipped": "updates_skipped"}.items():
        if metrics.get(metric):
            items.append(f"{key}={metrics[metric]}")
            used += len(items[-1]) + 1
    for key, text in _others(metrics).items():
        used += len(f" {key}=") + WIDEST_VALUE
        if used <= LONGEST:
            items.append(f"{key}={text}")
    return " ".join([*items, last])


def _others(metrics: Row) -> dict[str, str]:
    """By importance."""
    length, reference = metrics.get("length_mean"), metrics.get("ref_kl")
    return {
        "length": "-" if length is None else f"{length:.1f}",
        "truncated": share(metrics.get("truncated_share")),
        "zero_var": share(metrics.get("zero_variance_share")),
        **({} if reference is None else {"ref_kl": number(reference)}),
        "kl": number(metrics.get("old_kl")),
        "entropy": number(metrics.get("entropy")),
        "clipped": share(metrics.get("clipped_share")),
    }
