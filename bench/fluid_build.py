"""How long a Fluid program takes before it trains: import, building 1,000 operators, first run.

    python bench/fluid_build.py [--quick] [--repeats 5] [--json FILE]

CPU seconds of a separate process for each repeat, which imports `paddle.fluid` as a script does
under `python -m sparsefleet.as_paddle`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys

from measure import judge, machine, parse_arguments, report, write_json
from sparsefleet.fluid.paddle.as_paddle import environment_with_paddle

NUM_LAYERS = 125
"""Layers of eight operators each."""

LIMITS_S = {"import": 2.0, "build": 1.0, "first run": 2.0}

SCRIPT = """
import json, sys, time
at = [time.process_time()]
import paddle.fluid as fluid
fluid.Executor(fluid.CPUPlace())
fluid.layers.fc  # loads torch, as the first layer of any program does
at.append(time.process_time())
import numpy as np
L = fluid.layers
x = fluid.data("x", [None, 16])
y = x
for number in range(int(sys.argv[1])):
    hidden = L.fc(y, 16, act="relu")                            # mul, elementwise_add, relu
    gate = L.sigmoid(L.concat([hidden, y], axis=1))             # concat, sigmoid
    left, right = L.split(gate, 2, dim=1)                       # split
    y = L.elementwise_add(left * right, L.scale(y, 0.5))        # mul, scale, add
loss = L.mean(y)
built = len(fluid.default_main_program().global_block().ops)
at.append(time.process_time())
fluid.optimizer.SGD(0.1).minimize(loss)
exe = fluid.Executor(fluid.CPUPlace())
exe.run(fluid.default_startup_program())
exe.run(feed={"x": np.ones((4, 16), "float32")}, fetch_list=[loss])
at.append(time.process_time())
print(json.dumps([built, *at]))
"""


def once(num_layers: int) -> dict[str, float]:
    """Return the CPU seconds of each part in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(num_layers)],
        env={**environment_with_paddle(os.environ), "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    built, start, imported, made, ran = json.loads(done.stdout.splitlines()[-1])
    return {
        "operators": built,
        "import": imported - start,
        "build": made - imported,
        "first run": ran - made,
    }


def main() -> None:
    arguments = parse_arguments(__doc__ or "")
    num_layers = 10 if arguments.quick else NUM_LAYERS
    runs = [once(num_layers) for _ in range(1 if arguments.quick else arguments.repeats)]
    found = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    rows = [[name, f"{found[name]:.2f}", f"{limit:.0f}"] for name, limit in LIMITS_S.items()]
    title = f"A Fluid program of {found['operators']:.0f} operators, CPU seconds, {machine()}"
    report(title, ["part", "median", "wanted at most"], rows)
    for name, limit in LIMITS_S.items():
        judge(f"{name} takes at most {limit:.0f} s", found[name] <= limit)
    write_json(arguments.json, {"fluid_build": found})


if __name__ == "__main__":
    main()
