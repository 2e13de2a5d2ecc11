"""One rollout of a problem, scored by its task."""

from assay.types import Prompt, Rollout, StopReason


def scored(task, problem, text, stop=StopReason.EOS):
    prompt = Prompt(problem.id, problem.text, (1,), problem.answer, problem.fields)
    return task.score(prompt, Rollout(problem.id, (1,), (0.0,), stop, 0, text))
