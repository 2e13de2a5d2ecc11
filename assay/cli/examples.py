"""The examples that `assay COMMAND --help` ends with: commands that can be copied, one per line."""

from __future__ import annotations

EXAMPLES = {
    "train": (
        "assay train",
        "assay train configs/dapo.toml --set run.steps=3",
        "assay train --print-config > my.toml",
        "assay train my.toml --set run.steps=200 --set loss.objective=gspo",
        "assay train --resume runs/sort",
        "assay train --resume runs/sort --change optimizer.learning_rate=1e-4",
    ),
    "eval": (
        "assay eval runs/sort",
        "assay eval runs/sort --samples 16 --json",
        "assay eval runs/sort --set rollout.temperature=0.7",
        "assay eval path/to/model --config my.toml",
    ),
    "show": (
        "assay show runs/sort",
        "assay show runs/sort --step 1 --worst --n 5",
        "assay show runs/sort --step 1 --prompt sort-train-17",
    ),
    "verify": (
        "assay verify runs/sort",
        "assay verify runs/sort --json",
    ),
    "export": (
        "assay export runs/sort --out sorter",
        "assay export runs/sort --out merged --merge",
    ),
    "reward-check": (
        "assay reward-check examples/reward.py:score",
        "assay reward-check last_number --task examples/questions.jsonl",
        "assay reward-check --config my.toml --completions answers.jsonl",
    ),
    "tasks": (
        "assay tasks",
        "assay tasks addition --set task.options.style=chat",
        "assay tasks reasoning_gym/chain_sum",
        "assay tasks examples/questions.jsonl",
    ),
    "doctor": (
        "assay doctor runs/sort",
        "assay doctor examples/broken_grpo.py --why",
        "assay doctor --diff examples/broken_grpo.py",
        "assay doctor --fix grpo.py",
        "assay doctor trainer_state.json",
        "assay doctor runs/sort --select ADV,RAT --explain-all-passes",
        "assay doctor runs/sort --recompute",
        "assay doctor batch.safetensors --format sarif --out doctor.sarif",
        "assay doctor runs/sort --format html --out doctor.html",
    ),
    "explain": (
        "assay explain",
        "assay explain RAT01",
        "assay explain ratio-not-one --json",
        'assay explain "loss is zero"',
    ),
    "report": (
        "assay report runs/sort",
        "assay report runs/sort --out sort.html --against runs/sort-2",
        "assay report runs/sort --live",
        "assay report runs/sort --svg figures",
        "assay report trainer_state.json",
    ),
    "compare": (
        "assay compare runs/sort runs/sort-2",
        "assay compare runs/seed-1 runs/seed-2 runs/seed-3 --out seeds.html",
    ),
    "watch": (
        "assay watch examples/broken_grpo.py",
        "assay watch --steps 4 grpo.py --lr 1e-5",
        "assay watch --format json --out watched.json grpo.py",
    ),
    "rehearse": (
        "assay rehearse examples/broken_grpo.py",
        "assay rehearse --steps 2 grpo.py --lr 1e-5",
        "assay rehearse --format json --out rehearsed.json grpo.py",
    ),
}


def epilog(command: str) -> str:
    """The examples of a command as typer wants them: a paragraph is a line."""
    return "\n\n".join(["Examples:", *EXAMPLES[command]])
