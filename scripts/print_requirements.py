"""Prints the package's requirements and those of the given extras, one per line."""

import re
import sys
from pathlib import Path


def requirement_list(text: str, key: str) -> list[str]:
    """Return the strings of the TOML array `key = [...]`; Python 3.10 has no tomllib."""
    found = re.search(rf"^{re.escape(key)} = \[(.*?)\]$", text, re.DOTALL | re.MULTILINE)
    if found is None:
        raise SystemExit(f"pyproject.toml has no list {key!r}")
    return re.findall(r'"([^"]+)"', found.group(1))


def main() -> None:
    text = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    for key in ["dependencies", *sys.argv[1:]]:
        print("\n".join(requirement_list(text, key)))


if __name__ == "__main__":
    main()
