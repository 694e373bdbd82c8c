"""An extension of Griffe for the documentation site: examples in docstrings become code blocks."""

from __future__ import annotations

import textwrap
from typing import Any

import griffe


def fenced(text: str) -> str:
    """Return a docstring with each doctest, up to the next empty line, in a code block."""
    lines: list[str] = []
    is_code = False
    for line in textwrap.dedent(text).splitlines():
        if not is_code and line.lstrip().startswith(">>>"):
            lines += ["", "```python"]
            is_code = True
        elif is_code and not line.strip():
            lines.append("```")
            is_code = False
        lines.append(line)
    return "\n".join([*lines, "```"] if is_code else lines)


class FencedExamples(griffe.Extension):
    """Changes the docstrings of all objects before they are rendered."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
