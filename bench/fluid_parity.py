"""Compares layers of this package with those of PaddlePaddle 1.8.5, forward and gradient.

    <python with paddlepaddle 1.8.5> bench/fluid_parity.py original found.json
    python bench/fluid_parity.py compare found.json [part of a case's name ...]
    python bench/fluid_parity.py record found.json

`original` runs under Python 3.7. `compare` prints what differs and the largest difference;
`record` keeps what tests/parity/test_fluid_layers.py compares with.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
CASES_FOLDER = ROOT / "tests" / "parity" / "fluid_cases"
RECORDED = ROOT / "tests" / "parity" / "fluid_layers_1_8_5.json"
TOLERANCE = 2e-5

sys.path.insert(0, str(ROOT))
warnings.simplefilter("ignore")


def all_cases():
    """Return every case of every family."""
    for file in sorted(CASES_FOLDER.glob("*.py")):
        importlib.import_module("tests.parity.fluid_cases." + file.stem)
    return importlib.import_module("tests.parity.fluid_cases.case")


def run_all(fluid, parts=()):
    """Run all cases; return declared shapes and results, or the error, by case."""
    case_module = all_cases()
    found = {}
    for name, case in case_module.CASES.items():
        if parts and not any(part in name for part in parts):
            continue
        try:
            promised, results = case_module.run_case(fluid, case)
        except Exception as error:
            found[name] = {"error": type(error).__name__ + ": " + str(error)[-400:]}
            continue
        rows = [
            [key, str(array.dtype), list(array.shape), array.reshape(-1).tolist(), lod]
            for key, array, lod in results
        ]
        found[name] = {"promised": promised, "results": rows}
    return found


def difference(ours, theirs):
    """Return the largest difference relative to 1 + |value|; None if shapes differ."""
    if ours[1:3] != theirs[1:3]:
        return None
    gap = np.abs(np.asarray(ours[3], "float64") - np.asarray(theirs[3], "float64"))
    gap = gap / (1 + np.abs(np.asarray(theirs[3], "float64")))
    return float(np.nanmax(gap)) if gap.size else 0.0


def compare(theirs, parts):
    from sparsefleet import fluid

    ours, largest, count = run_all(fluid, parts), 0.0, 0
    for name, mine in ours.items():
        other = theirs.get(name, {"error": "not run"})
        if "error" in mine or "error" in other:
            print(
                name, "| here:", mine.get("error", "runs"), "| there:", other.get("error", "runs")
            )
            continue
        count += 1
        if mine["promised"] != other["promised"]:
            print(name, "promises\n   here ", mine["promised"], "\n   there", other["promised"])
        outputs = len(mine["promised"]["outputs"])
        by_name = {row[0]: row for row in mine["results"]}
        for place, row in enumerate(other["results"]):
            own = mine["results"][place] if place < outputs else by_name.get(row[0])
            gap = None if own is None else difference(own, row)
            largest = max(largest, gap or 0.0)
            same_lod = place >= outputs or (own is not None and own[4] == row[4])
            if gap is None or gap > TOLERANCE or not same_lod:
                print(name, row[0], "differs by", gap, "\n   here ", own, "\n   there", row)
    print(count, "cases, largest difference", largest)


def record(theirs):
    """Return names, shapes and summaries of values: enough to detect a wrong layer, in little
    space.
    """
    summary = all_cases().summary
    lines = []
    for name, found in sorted(theirs.items()):
        if "error" not in found:
            rows = [[*row[:3], summary(row[3]), row[4]] for row in found["results"]]
            kept = {"promised": found["promised"], "results": rows}
            lines.append(json.dumps(name) + ": " + json.dumps(kept, separators=(",", ":")))
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main():
    what, file, *parts = sys.argv[1:]
    if what == "original":
        import paddle.fluid as fluid

        Path(file).write_text(json.dumps(run_all(fluid)), encoding="utf-8")
    elif what == "compare":
        compare(json.loads(Path(file).read_text(encoding="utf-8")), parts)
    else:
        record(json.loads(Path(file).read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
