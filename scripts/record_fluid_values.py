"""Records what the original computes for the programs of the tests, as JSON.

Run by its own interpreter: `python3.7 scripts/record_fluid_values.py CASES.py VALUES.json`, with
paddlepaddle 1.8.5 installed. CASES.py has `CASES` and `run_case(fluid, name)`.
"""

import importlib.util
import json
import sys


def main():
    import paddle.fluid as fluid

    spec = importlib.util.spec_from_file_location("cases", sys.argv[1])
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)
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
    with open(sys.argv[2], "w") as file:
        json.dump(found, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
