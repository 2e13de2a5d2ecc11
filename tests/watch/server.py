"""Scripts in forks of one process, so that torch is loaded once: a line of JSON in, a line of JSON out.

In: script, arguments, watched, steps, how (the form of the report), fault (module:name of a function of ours that is
to raise). Out: code, out, words (what went to stderr), text (the report), and digest (of the weights after each step
and of the random states at the end).
"""

import hashlib
import importlib
import json
import os
import random
import sys
import tempfile
from pathlib import Path

LEAVE = os._exit  # a watched script's process has another one


class Injected(Exception):
    """No kind of error that anybody expects."""


def fail(*_, **__):
    raise Injected("injected")


def spoil(fault):
    module, _, name = fault.partition(":")
    *owners, last = name.split(".")
    owner = importlib.import_module(module)
    for one in owners:
        owner = getattr(owner, one)
    assert callable(getattr(owner, last))
    setattr(owner, last, fail)


def weights_of(optimizer, digest):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            digest.update(parameter.detach().float().contiguous().numpy().tobytes())


def run(job, folder):
    import numpy as np
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from assay.watch.child import ScriptWatch
    from assay.watch.process import run_script

    script = Path(job["script"])
    os.chdir(script.parent)
    for number, name in ((1, "out"), (2, "words")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600), number)
    random.seed(0)  # a fork begins with another seed
    np.random.seed(0)
    torch.manual_seed(0)
    digest = hashlib.sha256()
    register_optimizer_step_post_hook(lambda optimizer, *_: weights_of(optimizer, digest))
    if job.get("fault"):
        spoil(job["fault"])

    def ended(error):
        states = [torch.get_rng_state().numpy().tobytes(), np.random.get_state()[1].tobytes()]
        digest.update(b"".join(states) + repr(random.getstate()).encode())
        (folder / "digest").write_text(digest.hexdigest())
        if watch is not None:
            watch.ended(error)

    watch = None
    if job.get("watched", True):
        plain = {"chosen": [], "ignored": [], "all_passes": False, "colour": False, "width": 100, "fail_on": None}
        watch = ScriptWatch(
            script, {"result": str(folder / "told"), "steps": job.get("steps"), "how": job.get("how", "full"), **plain}
        )
    code = run_script(script, job.get("arguments", []), ended)
    sys.stdout.flush()
    return code


def fork(job):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        process = os.fork()
        if process == 0:
            code = 70
            try:
                code = run(job, folder)
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            LEAVE(code)
        _, status = os.waitpid(process, 0)
        told = folder / "told"
        read = {part: (folder / part).read_text() if (folder / part).exists() else "" for part in ("out", "words")}
        digest = (folder / "digest").read_text() if (folder / "digest").exists() else ""
        text = json.loads(told.read_text())["text"] if told.exists() else ""
        return {"code": os.waitstatus_to_exitcode(status), "text": text, "digest": digest, **read}


if __name__ == "__main__":
    for library in ("numpy", "torch", "torch._dynamo", "assay.watch.report", "assay.programs.run.observe.observer"):
        importlib.import_module(library)
    importlib.import_module("torch").set_num_threads(1)
    importlib.import_module("assay.doctor.catalogue").catalogue()
    for line in sys.stdin:
        print(json.dumps(fork(json.loads(line))), flush=True)
