"""Event files as TensorBoard's own package writes them: old and new scalars, and what is none."""

import numpy as np
import pytest

from assay.doctor.evidence.open import open_evidence
from assay.record.batch import BatchError

EventFileWriter = pytest.importorskip("tensorboard.summary.writer.event_file_writer").EventFileWriter
event_pb2 = pytest.importorskip("tensorboard.compat.proto.event_pb2")
summary_pb2 = pytest.importorskip("tensorboard.compat.proto.summary_pb2")
tensor_util = pytest.importorskip("tensorboard.util.tensor_util")


def written(tmp_path, *events):
    """Each event: (step, tag, how, value)."""
    writer = EventFileWriter(str(tmp_path))
    for step, tag, how, value in events:
        made = {how: value if how == "simple_value" else tensor_util.make_tensor_proto(value)}
        summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=tag, **made)])
        writer.add_event(event_pb2.Event(step=step, wall_time=1.0, summary=summary))
    writer.close()
    (path,) = tmp_path.glob("events.out.tfevents.*")
    return path


def test_scalars_of_both_kinds_are_read_and_everything_else_is_passed_over(tmp_path):
    path = written(
        tmp_path,
        (1, "loss", "simple_value", 0.5),
        (2, "loss", "tensor", np.float32(0.25)),
        (3, "loss", "tensor", np.float64(0.125)),
        (3, "reward", "tensor", np.arange(4.0)),
        (3, "note", "tensor", "a text"),
    )
    curves = open_evidence(path).curves
    assert curves.steps.tolist() == [1, 2, 3]
    assert curves.need("loss")[0].tolist() == [0.5, 0.25, 0.125]
    assert not curves.has("reward_mean")


def test_a_step_may_be_0_negative_or_large(tmp_path):
    path = written(tmp_path, *[(step, "loss", "simple_value", 1.0) for step in (-3, 0, 2**40)])
    assert open_evidence(path).curves.steps.tolist() == [-3, 0, 2**40]


def test_a_file_that_only_looks_like_events_is_refused(tmp_path):
    path = written(tmp_path, (1, "loss", "simple_value", 0.5))
    data = bytearray(path.read_bytes())
    data[8] ^= 1  # the checksum of the first length
    path.write_bytes(bytes(data))
    with pytest.raises(BatchError, match="is binary"):
        open_evidence(path)
