"""What watching costs: python tests/watch/overhead.py [width]. Seconds a step, without and with it, in turns.

The first steps are observed, the later ones are not; the very first is left out, for it warms up.
"""

import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from watch.running import LETTERS, run_plainly, run_watched

ROUNDS, STEPS, OBSERVED = 3, 16, 6


def timed(width):
    """letters.py with a line of seconds a step."""
    text = (
        LETTERS.read_text().replace("width=16", f"width={width}").replace("import sys\n", "import sys\nimport time\n")
    )
    text = text.replace(
        "        completions = sample(", "        began = time.perf_counter()\n        completions = sample("
    )
    return text.replace(
        '        print(f"step', "        print('seconds', time.perf_counter() - began)\n        print(f\"step"
    )


def seconds(done):
    return [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("seconds")]


def main(width):
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(timed(width))
        plain, watched = [], []
        for _ in range(ROUNDS):
            plain.append(seconds(run_plainly(script, str(STEPS))))
            watched.append(seconds(run_watched(script, str(STEPS))))
    for name, part in (("observed", slice(1, OBSERVED)), ("afterwards", slice(OBSERVED + 1, None))):
        without, beside = (
            statistics.median(second for run in runs for second in run[part]) for runs in (plain, watched)
        )
        print(
            f"width {width} {name}: {without * 1e3:.2f} ms without, {beside * 1e3:.2f} ms with, {beside / without:.2f}x"
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 16)
