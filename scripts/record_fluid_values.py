"""Records what the original Fluid computes for the programs of the tests, as JSON.

Run it with a Python that has paddlepaddle 1.8.5: `python3.7 scripts/record_fluid_values.py`.
"""

import json
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VALUES = ROOT / "tests/unit/fluid/recorded_values.json"
MODULES = ("control_cases", "labelling_cases", "recurrent_cases")


def main():
    sys.path.insert(0, str(ROOT))
    import paddle.fluid as fluid

    for module in MODULES:
        import_module(f"tests.unit.fluid.{module}")
    cases = import_module("tests.unit.fluid.program_cases")
    found = {}
    for name in cases.CASES:
        try:
            values, lods = cases.run_case(fluid, name)
        except Exception as error:
            print(f"{name}: {str(error).strip().splitlines()[-1]}", file=sys.stderr)
            continue
        found[name] = [
            {
                "dtype": str(value.dtype),
                "shape": list(value.shape),
                "values": [float(f"{number:.7g}") for number in value.reshape(-1)],
                "lod": lod,
            }
            for value, lod in zip(values, lods)  # noqa: B905  Python 3.7
        ]
    VALUES.write_text(json.dumps(found, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
