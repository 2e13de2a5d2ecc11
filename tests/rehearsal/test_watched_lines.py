"""Stand-ins below the watcher: lines are the script's, and autocast of CUDA makes no false alarm about precision."""

from rehearsal.standing import standing


def test_a_call_is_recorded_at_the_line_of_the_script_with_the_precision_of_cuda(tmp_path):
    shown = standing(
        tmp_path,
        """
        from pathlib import Path
        import torch
        from assay.programs.run.observe.places import Places
        from assay.programs.run.observe.recorder import CallRecorder
        from assay.programs.run.watched import WatchedRun
        script = Path(__file__)
        recorder = CallRecorder(WatchedRun(str(script), str(script.parent)), Places(script, script.resolve()))
        recorder.__enter__()
        x = torch.randn(3, 8, device="cuda")
        w = torch.nn.Linear(8, 5).to("cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = x @ w.weight.T
            z = torch.log_softmax(y, -1)
        recorder.__exit__(None, None, None)
        graph = recorder.run.graph
        made = [value for value in graph.values if value.op in ("matmul", "log_softmax")]
        show(
            lines=[value.place.text for value in made], kinds=[value.thing.dtype for value in made],
            casts=[value.op for value in graph.values if value.op in ("to", "float")],
            faults=recorder.run.notes, names=sorted({Path(value.place.file).name for value in made}),
        )
        """,
    )
    assert shown["faults"] == []
    assert shown["lines"] == ["x @ w.weight.T", "torch.log_softmax(y, -1)"]
    assert shown["kinds"] == ["bfloat16", "float32"]
    assert shown["names"] == ["script.py"]
    assert shown["casts"] == []
