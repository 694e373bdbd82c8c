"""Counts, for each public name of Fluid 1.8.5, the cases of its test suite that use the name.

    python scripts/count_fluid_cases.py ORIGINAL.json FOUND.json TESTS [NAMES]

ORIGINAL.json and FOUND.json are results of the suite on 1.8.5 and here: {file: {"cases": {id:
result}}}, a result being its name or a list that starts with it. TESTS is the folder of the test
files, NAMES the output of scripts/list_fluid_names.py; without it, the listed names stay. Writes
src/sparsefleet/fluid/paddle/public_names.csv. A case uses a name if its last part is a word of the
case, of its set-up, or of a function in the file that it calls.
"""

from __future__ import annotations

import ast
import csv
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

NAMES = Path(__file__).parents[1] / "src/sparsefleet/fluid/paddle/public_names.csv"


class TestFile:
    """The functions and classes of a test file, and the words that each case uses."""

    def __init__(self, path: Path) -> None:
        source = path.read_text(encoding="utf-8", errors="replace")
        self._lines = source.splitlines()
        nodes = ast.parse(source).body
        self._functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
        self._classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}

    def words(self, case: str) -> set[str]:
        """Return the words of `Class.method` and all that it calls in the file."""
        owner, _, method = case.partition(".")
        methods = self._methods(owner)
        found: set[str] = set()
        seen: set[str] = set()
        # Cases that the runner makes of `make_fc` and the like are named `test_make_fc`.
        wanted = [method, method.removeprefix("test_"), "setUp", "setUpClass", "setup"]
        while wanted:
            name = wanted.pop()
            node = methods.get(name) or self._functions.get(name)
            if node is None or name in seen:
                continue
            seen.add(name)
            text = "\n".join(self._lines[node.lineno - 1 : node.end_lineno])
            new = set(re.findall(r"\w+", text))
            found |= new
            wanted += new & (methods.keys() | self._functions.keys())
        return found

    def _methods(self, owner: str, depth: int = 0) -> dict[str, ast.FunctionDef]:
        """Return the methods of a class and of its base classes in the file."""
        if owner not in self._classes or depth > 8:
            return {}
        made: dict[str, ast.FunctionDef] = {}
        for base in reversed(self._classes[owner].bases):
            made |= self._methods(getattr(base, "id", ""), depth + 1)
        nodes = self._classes[owner].body
        return made | {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}


def _passed(result: Any) -> bool:
    return (result if isinstance(result, str) else result[0]) == "pass"


def count(original: dict[str, Any], found: dict[str, Any], tests: Path) -> tuple[Counter[str], ...]:
    """Return, by word, the cases that pass on 1.8.5, and those that also pass here."""
    cases: Counter[str] = Counter()
    passing: Counter[str] = Counter()
    for file, record in original.items():
        if file not in found:
            continue
        test = TestFile(tests / file.partition("@")[0])
        for case, result in record["cases"].items():
            kind = record.get("kinds", {}).get(case, "user")
            if not _passed(result) or kind == "dygraph":
                continue
            used = test.words(case)
            cases.update(used)
            if _passed(found[file]["cases"].get(case, "missing")):
                passing.update(used)
    return cases, passing


def main() -> int:
    if len(sys.argv) not in (4, 5):
        print(__doc__, file=sys.stderr)
        return 2
    original, found = (json.loads(Path(name).read_text()) for name in sys.argv[1:3])
    cases, passing = count(original, found, Path(sys.argv[3]))
    if sys.argv[4:]:
        names = Path(sys.argv[4]).read_text(encoding="utf-8").split()
    else:
        with open(NAMES, encoding="utf-8", newline="") as file:
            names = [row["name"] for row in csv.DictReader(file)]
    with open(NAMES, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["name", "cases", "passing"])
        for name in names:
            last = name.rpartition(".")[2]
            writer.writerow([name, cases[last], passing[last]])
    return 0


if __name__ == "__main__":
    sys.exit(main())
