"""Checks the pinned packages: that every requirement has an exact pin, and that no pinned version
has a known vulnerability, which needs PyPI's advisories.

    python scripts/audit.py [flags for pip-audit, such as --vulnerability-service osv]

Run by `make audit`, with pip-audit in the environment. Exit code 0: nothing was found; 1: something
was; 2: the advisories cannot be reached, so only the pins were checked.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[1]
ADVISORIES = "https://pypi.org/pypi/{name}/{version}/json"
_NOT_TESTED = {"sparsefleet", "nvidia-dali-cuda120"}
"""Required by an extra and not installed for tests: ourselves, and what needs a GPU."""
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s=<>~!;]+)")


def canonical(name: str) -> str:
    """The name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def problems_of_pins(constraints: str, pyproject: str) -> list[str]:
    """Return lines that are not exact pins, names pinned twice, and requirements without a pin."""
    problems, pinned = [], set()
    for number, line in enumerate(constraints.splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = _PIN.fullmatch(text)
        if found is None:
            problems.append(f"constraints.txt, line {number}: {text!r} is not NAME==VERSION")
            continue
        name = canonical(found[1])
        if name in pinned:
            problems.append(f"constraints.txt, line {number}: {name} is pinned twice")
        pinned.add(name)
    project = tomllib.loads(pyproject)["project"]
    extras = project.get("optional-dependencies", {}).values()
    for requirement in [*project["dependencies"], *(each for extra in extras for each in extra)]:
        name = canonical(re.split(r"[\s\[<>=~!;(]", requirement, maxsplit=1)[0])
        if name not in pinned | _NOT_TESTED:
            problems.append(f"pyproject.toml requires {name}, which constraints.txt does not pin")
    return problems


def why_unreachable(constraints: str) -> str | None:
    """Return why advisories cannot be looked up here; None if they can."""
    name, version = next(pin for pin in _PIN.findall(constraints) if pin[0] == "numpy")
    url = ADVISORIES.format(name=name, version=version)
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            found = json.load(answer)
    except (OSError, ValueError) as error:
        return f"{url}: {error}"
    return None if "vulnerabilities" in found else f"{url} answers without advisories"


def main(flags: list[str]) -> int:
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    problems = problems_of_pins(constraints, (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for problem in problems:
        print(problem)
    if not problems:
        count = len(_PIN.findall(constraints))
        print(f"pins: {count} exact, and one for every requirement")
    unreachable = None if "--vulnerability-service" in flags else why_unreachable(constraints)
    if unreachable is not None:
        print(
            "advisories: NOT CHECKED, PyPI's advisories cannot be reached from here\n"
            f"  ({unreachable})\n"
            "  run `make audit` where pypi.org is reachable (a mirror of packages is not enough), "
            "or ask another\n"
            "  service: make audit AUDIT_FLAGS='--vulnerability-service osv'",
            file=sys.stderr,
        )
        return 1 if problems else 2
    # --strict: a package that cannot be looked up is also a failure.
    command = ["--strict", "--disable-pip", "--no-deps", "-r", str(ROOT / "constraints.txt")]
    done = subprocess.run([sys.executable, "-m", "pip_audit", *command, *flags])
    return 1 if problems or done.returncode else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
