"""Writes the table of supported names of Fluid into docs/coming_from_fluid.md.

The names are in docs/fluid_api_names.txt: those that public programs use, most used first.
`python scripts/fluid_coverage.py --check` only says whether the page is as it should be.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import sparsefleet
from sparsefleet import fluid
from sparsefleet.fluid.generator_loader import GeneratorLoader
from sparsefleet.fluid.scope import ScopeVariable

DOCS = Path(__file__).parents[1] / "docs"
NAMES = DOCS / "fluid_api_names.txt"
PAGE = DOCS / "coming_from_fluid.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"


def owners() -> dict[str, list[Any]]:
    """What stands before the first dot -> the objects of which one has the rest."""
    data = [
        fluid.DatasetFactory().create_dataset(kind) for kind in ("InMemoryDataset", "QueueDataset")
    ]
    return {
        "fluid": [fluid],
        "paddle": [sparsefleet],
        "DataFeeder": [fluid.DataFeeder],
        "DataGenerator": [fluid.incubate.data_generator.DataGenerator],
        "DataLoader": [GeneratorLoader],
        "Dataset": data,
        "Executor": [fluid.Executor],
        "LoDTensor": [fluid.LoDTensor],
        "Optimizer": [fluid.optimizer.Optimizer],
        "Program": [fluid.Program()],
        "PyReader": [fluid.io.PyReader],
        "Scope": [fluid.Scope, ScopeVariable],
        "Variable": [fluid.Variable("x", [1])],
    }


def is_supported(name: str, known: dict[str, list[Any]]) -> bool:
    """Whether the name can be reached; calls within it are taken as attributes of their results."""
    if "()" in name or "(" in name:
        first, _, rest = name.partition("(")
        rest = rest.partition(")")[2].removeprefix(".")
        results = {
            "fluid.DatasetFactory": fluid.dataset.DatasetFactory(),
            "fluid.default_main_program": fluid.Program(),
            "fluid.global_scope": fluid.Scope(),
        }
        found = results.get(first)
        return found is not None and (not rest or hasattr(found, rest.partition("(")[0]))
    owner, *parts = name.split(".")
    return any(_reaches(start, parts) for start in known.get(owner, []))


def _reaches(start: Any, parts: list[str]) -> bool:
    for part in parts:
        try:
            start = getattr(start, part)
        except (AttributeError, ImportError):
            return False
    return True


def table() -> str:
    """The table of the page."""
    names, known = NAMES.read_text(encoding="utf-8").split(), owners()
    supported = {name: is_supported(name, known) for name in names}
    lines = [
        f"{sum(supported.values())} of {len(names)} names are there.\n",
        "| name | |\n|---|---|",
        *(f"| `{name}` | {'yes' if there else 'not yet'} |" for name, there in supported.items()),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    made = before + BEGIN + table() + END + rest.partition(END)[2]
    if "--check" in sys.argv[1:]:
        return int(made != page)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
