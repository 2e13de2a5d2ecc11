"""python tests/report/gallery.py --keep DIR    takes the pictures of docs/report.md again, into docs/report/.

It makes real runs (one of SmolLM2, some minutes; --keep keeps them for the next time), writes their pages, and takes
ten pictures of them in a headless Chromium.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from report.browsers import opened_browser  # noqa: E402

from assay.report.compare import compare_page  # noqa: E402
from assay.report.opened import open_path  # noqa: E402
from assay.report.page import page_of  # noqa: E402

COLOURS = 160  # of a picture: a page has few, and a small file is worth more than smooth letters
HEALTHY = "run.steps=80 evaluate.every=10 evaluate.prompts=128 checkpoint.every=40 loss.kl_coef=0.01"
SMOLLM2 = (
    "run.steps=6 rollout.prompts=4 rollout.group_size=4 evaluate.prompts=4 evaluate.samples=2 loss.kl_coef=0.01 "
    "optimizer.epochs=2"
)
TOP = "window.scrollTo(0, 0)"
JUMP = "document.querySelector('#jump-peak').click()"


def go_to(key):
    return f"document.querySelector('#{key}').scrollIntoView()"


def pick(channel):
    return f"document.querySelector('[data-channel={channel}]').click()"


def source(place):
    return (
        "const node = document.querySelector('#groups-controls select'); const places = [...node.options]"
        f".filter((option) => option.text.endsWith('examined')); node.value = places[{place}].value;"
        "node.dispatchEvent(new Event('change'))"
    )


FIRST_GROUP = "document.querySelector('#groups-table .prompt').click()"
CURSOR = (
    "const node = document.querySelector('[data-chart=entropy] > svg'); const box = node.getBoundingClientRect();"
    "node.dispatchEvent(new PointerEvent('pointermove', { clientX: box.left + 0.45 * box.width, bubbles: true }))"
)
# name -> page, width, height, scripts, dark
PICTURES = {
    "healthy": ("healthy", 1180, 860, [TOP], False),
    "curves-dark": ("healthy", 1180, 860, [go_to("curves"), CURSOR], True),
    "finding": ("SAMP01", 1180, 640, [TOP], False),
    "length": ("MET03", 1180, 860, [go_to("curves")], False),
    "time-and-signal": ("healthy", 1180, 760, [go_to("time")], False),
    "groups": ("healthy", 1180, 760, [go_to("groups")], False),
    "tokens": ("smollm2", 1180, 760, [JUMP, go_to("groups")], False),
    "gradient": ("smollm2", 1180, 760, [source(0), FIRST_GROUP, pick("gradient"), go_to("groups")], False),
    "phone": ("SAMP01", 380, 760, [TOP], False),
    "compare": ("compare", 1180, 860, [TOP], False),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, required=True, help="a directory for the runs")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/report")
    options = parser.parse_args()
    options.keep.mkdir(parents=True, exist_ok=True)
    options.out.mkdir(parents=True, exist_ok=True)
    pages = made_pages(options.keep)
    with opened_browser() as browser:
        for name, (page, width, height, scripts, dark) in PICTURES.items():
            browser.open(pages[page], width, height, dark=dark)
            for script in scripts:
                browser.run(script)
            time.sleep(0.2)  # the navigation follows the scrolling
            file = options.out / f"{name}.png"
            browser.screenshot(file)
            with Image.open(file) as picture:
                small = picture.convert("RGB").quantize(
                    COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
                )
            small.save(file, optimize=True)
            print(f"{file}  {file.stat().st_size / 1000:.0f} kB")


def made_pages(keep):
    runs = {
        "healthy": trained(keep / "healthy", [], HEALTHY),
        "again": trained(keep / "again", [], f"{HEALTHY} run.seed=2 optimizer.learning_rate=3e-4"),
        "smollm2": trained(keep / "smollm2", ["configs/smollm2-json.toml"], SMOLLM2),
        "SAMP01": planted(keep / "SAMP01", "SAMP01"),
        "MET03": planted(keep / "MET03", "MET03"),
    }
    texts = {name: page_of(open_path(path)) for name, path in runs.items()}
    texts["compare"] = compare_page([open_path(runs["healthy"]), open_path(runs["again"])])
    for name, text in texts.items():
        (keep / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: keep / f"{name}.html" for name in texts}


def trained(path, config, settings):
    if not path.exists():
        chosen = [word for setting in settings.split() for word in ("--set", setting)]
        command = [sys.executable, "-m", "assay", "train", *config, *chosen, "--out", str(path)]
        subprocess.run(command, check=True, cwd=ROOT)
    return path


def planted(path, code):
    if not path.exists():
        from proof.plants.runs import plants
        from proof.trial import run_trial

        run_trial(plants()[code], seed=1, directory=path, settings=["run.steps=12"] if code == "SAMP01" else [])
    return path


if __name__ == "__main__":
    main()
