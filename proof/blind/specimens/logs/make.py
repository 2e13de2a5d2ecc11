"""Writes a01 .. a50 and labels.jsonl. Run in this folder: python make.py [number ...]"""
import glob, json, os, shutil, sys
os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = os.path.dirname(os.path.abspath(__file__)); sys.path.insert(0, HERE)
import numpy as np
import curves, dumps
from curves import REG
half = {h: [k for k, v in REG.items() if v[0] == h] for h in "OE"}
assert len(half["O"]) == len(half["E"]) == 25, {h: len(v) for h, v in half.items()}
number = {}
for h, off, seed in (("O", 1, 7001), ("E", 2, 7002)):
    for i, k in enumerate(np.random.default_rng(seed).permutation(half[h])): number[2 * i + off] = str(k)
if __name__ == "__main__":
    only = [int(a) for a in sys.argv[1:]]
    labels = []
    for n in sorted(number):
        _, fn, lab = REG[number[n]]; base = os.path.join(HERE, f"a{n:02d}")
        if not only or n in only:
            for old in glob.glob(base + "*"): shutil.rmtree(old) if os.path.isdir(old) else os.remove(old)
            fn(base)
        found = glob.glob(base) + glob.glob(base + ".*")
        if not found: continue
        name = os.path.basename(found[0])
        labels.append({"file": name, **lab, "where": f"{name}: {lab['where']}"})
        with open(os.path.join(HERE, "labels.jsonl"), "w") as h:
            for d in labels: h.write(json.dumps(d) + "\n")
