"""Runs the ledger job of `sparsefleet chaos` in every mode of both APIs and sums up the reports.

run_chaos.py [--for 75s] [--every 2s] [--kill ROLES] [--seed N] [--only JOBS] [--out DIRECTORY]
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

JOBS = [
    *(("torch", mode) for mode in ("sync", "half_async", "async", "hybrid", "geo")),
    *(("fluid", mode) for mode in ("sync", "half_async", "async", "geo")),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--for", dest="duration", default="75s")
    parser.add_argument("--every", default="2s")
    parser.add_argument("--kill", default="servers,workers")
    parser.add_argument("--seed", type=int, default=0, help="of the first job; the next has 1 more")
    parser.add_argument(
        "--only", help="some jobs, such as fluid-async,fluid-geo; each keeps its seed"
    )
    parser.add_argument("--out", default="build/chaos", type=Path)
    options = parser.parse_args()
    known = {f"{api}-{mode}": (api, mode) for api, mode in JOBS}
    wanted = options.only.split(",") if options.only else list(known)
    if unknown := set(wanted) - known.keys():
        parser.error(f"--only has unknown jobs {sorted(unknown)}, expected some of {list(known)}")
    options.out.mkdir(parents=True, exist_ok=True)
    reports = []
    for api, mode in (known[name] for name in wanted):
        seed = options.seed + JOBS.index((api, mode))
        report = options.out / f"{api}-{mode}.json"
        report.unlink(missing_ok=True)
        words = ["--ledger", "--api", api, "--mode", mode, "--kill", options.kill]
        words += ["--every", options.every, "--for", options.duration, "--seed", str(seed)]
        print(f"== {api} {mode}, seed {seed}", flush=True)
        with report.with_suffix(".log").open("w") as log:
            command = [sys.executable, "-m", "sparsefleet", "chaos", *words, "--report", report]
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
        if not report.exists():
            problem = f"no report, exit code {code.returncode}: see {log.name}"
            found = {"seed": seed, "injected": [], "seconds": 0.0, "problems": [problem]}
        else:
            found = json.loads(report.read_text())
        reports.append((api, mode, found))
        print(line_of(api, mode, found), flush=True)
    table = ["| API | mode | seed | kills | seconds | result |", "|---|---|---|---|---|---|"]
    table += [line_of(*each) for each in reports]
    kills = sum(len(found["injected"]) for _, _, found in reports)
    failed = sum(bool(found["problems"]) for _, _, found in reports)
    text = "\n".join([*table, "", f"{kills} faults in {len(reports)} jobs; {failed} failed"])
    (options.out / "report.md").write_text(text + "\n")
    print(text)
    return int(failed > 0)


def line_of(api: str, mode: str, found: dict) -> str:
    result = "; ".join(found["problems"]) or "exact"
    return (
        f"| {api} | {mode} | {found['seed']} | {len(found['injected'])} | "
        f"{found['seconds']:.0f} | {result} |"
    )


if __name__ == "__main__":
    sys.exit(main())
