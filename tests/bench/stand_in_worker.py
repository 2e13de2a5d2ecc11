"""Stands in for a worker of a benchmark, without torch: reads the plan, writes what the real one would, at once.

The slower choices are the whole batch of TRL and the dynamic cache of generate. STAND_IN_FAULT names a fault; "break"
and "sleep" befall trl and assay after their first reading; "remove" takes away the directory STAND_IN_PLACE, in which
"sleep" leaves the process's id.
"""

import json
import math
import os
import shutil
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from benchmarks.model.floors import Limits, Sizes
from benchmarks.model.reading import Iteration, Machine, Memory, PeerChoice, Reading, Work, write_readings
from benchmarks.model.workload import Job, Workload

SECONDS = {"assay": 1.0, "trl": 4.0, "trl-autocast": 6.0, "generate": 2.0}
FAULT = os.environ.get("STAND_IN_FAULT", "")


def reading(contender, job, choice):
    seconds = SECONDS[contender] * (1.5 if choice and choice.cache == "dynamic" else 1.0)
    if choice and choice.batch:
        seconds *= 1 + abs(math.log2(choice.batch / 4))  # four rows are best
    rows = job.workload.rows
    length = job.workload.new_tokens - (FAULT == "short" and contender == "generate")
    updates = 0 if job.measurement == "rollout" else job.iterations
    work = Work("prompts", "", rows=rows, shortest=length, longest=length, updates=updates, weights=1.0)
    return Reading(
        contender,
        job,
        (Iteration(seconds, seconds),) * job.iterations,
        work,
        Memory(1000),
        choice,
        (f"by {contender}",),
    )


def jobs_of(plan):
    return [Job(**{**values, "workload": Workload(**values["workload"])}) for values in plan["jobs"]]


def main(directory):
    plan = json.loads((directory / "plan.json").read_text())
    if plan["what"] == "prepare":
        sizes = Sizes(100, 20, 2, 4, 2, 3, vocabulary=10, context=64, bytes_a_number=4)
        machine = Machine("cpu", "a cpu", "float32", "somewhere", sizes, Limits(1e3, 1e4), -1, threads=1)
        (directory / "machine.json").write_text(json.dumps(asdict(machine)))
        return
    if plan["what"] == "tune":
        job = Job("update", Workload(**plan["workload"]), 1, 1)
        whole = job.workload.rows
        tried = [reading("trl", job, PeerChoice(batch=batch)) for batch in (whole, whole // 2, whole // 4)]
        if plan["contender"] == "generate":
            job = replace(job, measurement="rollout")
            tried = [reading("generate", job, PeerChoice(cache)) for cache in plan["caches"]]
        write_readings(directory / "readings.json", tried)
        sys.exit(1 if FAULT == "tuning" else 0)
    choice = plan["choice"] and PeerChoice(**plan["choice"])
    readings = [reading(plan["contender"], job, choice) for job in jobs_of(plan)]
    if plan["contender"] == "trl":  # a step tells of the rollout inside it
        readings += [replace(one, job=replace(one.job, measurement="rollout"), work=replace(one.work, updates=0))
                     for one in readings if one.job.measurement == "step"]  # fmt: skip
    (directory / "times.json").write_text(json.dumps({"imports": 0.25, "first_iteration_ended": 10.0}))
    if (FAULT, plan["contender"]) in (("break", "trl"), ("sleep", "assay")):
        write_readings(directory / "readings.json", readings[:1])
        print("step", flush=True)
        if FAULT == "break":
            sys.exit("broken")
        (Path(os.environ["STAND_IN_PLACE"]) / "asleep").write_text(str(os.getpid()))
        time.sleep(60)
    if FAULT == "remove":
        shutil.rmtree(os.environ["STAND_IN_PLACE"])
    write_readings(directory / "readings.json", readings)


if __name__ == "__main__":
    main(Path(sys.argv[-1]))
