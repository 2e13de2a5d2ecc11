"""The words of the stage log: clean text, units, memory."""

from __future__ import annotations

import mmap
from pathlib import Path

from assay.machine.terminal import human_bytes, human_seconds, printable
from assay.train.show.clock import memory_bytes


def test_printable_keeps_ordinary_text() -> None:
    assert printable("gr\u00fcn \u4e2d\u6587 [bold] 1 + 1 = 2") == "gr\u00fcn \u4e2d\u6587 [bold] 1 + 1 = 2"
    assert printable("".join(map(chr, [*range(32), *range(127, 160)]))).strip() == ""


def test_bytes_and_seconds_change_their_unit_where_they_round_up() -> None:
    assert [human_bytes(count) for count in (312_499_999, 999_499_999, 999_500_000)] == ["312 MB", "999 MB", "1.0 GB"]
    seconds = (0.0994, 0.0995, 9.99, 9.996, 59.94, 59.96, 3599.4, 3599.6, 90_000)
    assert [human_seconds(value) for value in seconds] == [
        *("99 ms", "0.10 s", "9.99 s", "10.0 s", "59.9 s", "1m00s", "59m59s", "1h00m", "25h00m")
    ]


def test_memory_is_what_the_process_holds_and_its_peak_where_the_kernel_does_not_tell() -> None:
    before = memory_bytes()
    with mmap.mmap(-1, 64_000_000) as held:  # pages of its own: a heap may have room left from before
        held.write(b"x" * 64_000_000)
        assert 50_000_000 < memory_bytes() - before < 200_000_000
    peak = memory_bytes(Path("/nowhere/statm"))
    assert 0.9 * memory_bytes() < peak < 100 * memory_bytes()
