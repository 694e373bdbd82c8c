"""Layers of this package beside those of PaddlePaddle 1.8.5, forward and gradient.

    <python with paddlepaddle 1.8.5> bench/fluid_parity.py original out.json
    python bench/fluid_parity.py compare out.json [--all]
    python bench/fluid_parity.py record out.json tests/parity/fluid_layers_1_8_5.json

`original` runs under Python 3.7. `compare` prints the cases that differ, and the largest
difference; `record` keeps what a test needs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.parity.fluid_cases.case import CASES, run_case, summary


def load():
    folder = Path(__file__).resolve().parents[1] / "tests" / "parity" / "fluid_cases"
    for file in sorted(folder.glob("*.py")):
        importlib.import_module("tests.parity.fluid_cases." + file.stem)


def run_all(fluid, only=None):
    found = {}
    for name, case in CASES.items():
        if only and not any(o in name for o in only):
            continue
        try:
            promised, results = run_case(fluid, case)
        except Exception as error:
            text = str(error)
            if "--trace" in sys.argv:
                traceback.print_exc()
            found[name] = {"error": "%s: %s" % (type(error).__name__, text[-600:])}
            continue
        found[name] = {
            "promised": promised,
            "results": [
                [n, str(a.dtype), list(a.shape), a.reshape(-1).tolist(), lod]
                for n, a, lod in results
            ],
        }
    return found


def main():
    load()
    if sys.argv[1] == "original":
        import paddle.fluid as fluid

        json.dump(run_all(fluid), open(sys.argv[2], "w"))
        return
    from sparsefleet import fluid

    theirs = json.load(open(sys.argv[2]))
    only = [a for a in sys.argv[3:] if not a.startswith("-")]
    ours = run_all(fluid, only)
    worst = 0.0
    n = 0
    for name, mine in ours.items():
        other = theirs.get(name, {"error": "not run"})
        if "error" in mine or "error" in other:
            print(
                "ERR",
                name,
                "| ours:",
                mine.get("error", "ok")[-250:].replace("\n", " "),
                "| theirs:",
                other.get("error", "ok")[-250:].replace("\n", " "),
            )
            continue
        n += 1
        if mine["promised"] != other["promised"]:
            print(
                "PROMISE", name, "\n   ours  ", mine["promised"], "\n   theirs", other["promised"]
            )
        a = {r[0]: r for r in mine["results"]}
        b = {r[0]: r for r in other["results"]}
        if len(mine["results"]) and [r[0] for r in mine["results"]] != [
            r[0] for r in other["results"]
        ]:
            print("NAMES", name, list(a), list(b))
        for (k, ra), (k2, rb) in zip(a.items(), b.items()):
            if k != k2 and k2 in a:
                ra = a[k2]
            if ra[1:3] != rb[1:3]:
                print("FORM", name, k, k2, ra[1:3], rb[1:3])
                continue
            if ra[4] != rb[4]:
                print("LOD", name, k, ra[4], rb[4])
            d = np.abs(np.asarray(ra[3], "float64") - np.asarray(rb[3], "float64"))
            d = d / (1 + np.abs(np.asarray(rb[3], "float64")))
            m = np.nanmax(d) if d.size else 0
            if m > 2e-5:
                print(
                    "VALUE",
                    name,
                    k,
                    k2,
                    m,
                    "\n  ours  ",
                    np.round(ra[3][:12], 5).tolist(),
                    "\n  theirs",
                    np.round(rb[3][:12], 5).tolist(),
                )
            worst = max(worst, m)
    print(n, "cases compared; largest difference", worst)


if __name__ == "__main__":
    main()
