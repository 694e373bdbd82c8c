"""Writes the table of supported Fluid names into docs/coming_from_fluid.md.

`python scripts/fluid_coverage.py --check` only reports whether the page is up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sparsefleet.fluid.paddle.api_coverage import coverage

PAGE = Path(__file__).parents[1] / "docs" / "coming_from_fluid.md"
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"


def table() -> str:
    """Return the table of the page."""
    names = coverage()
    lines = [
        f"{sum(name.is_here for name in names)} of {len(names)} names are supported.\n",
        "| name | |\n|---|---|",
        *(f"| `{one.name}` | {'yes' if one.is_here else 'not yet'} |" for one in names),
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
