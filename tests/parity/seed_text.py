"""The code blocks of the documents that describe the original, read where they are present."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"

Repair = tuple[str, str]
"""A mistake in a document, and its correction."""


def blocks(number: int) -> list[str]:
    """Return the code blocks of a document, in order, without their common indentation."""
    (path,) = SEEDS.glob(f"{number:03d}_*.txt")
    text = path.read_text(encoding="utf-8")
    if "code-block::" in text:
        return [_indented_block(text, match.end()) for match in _DIRECTIVE.finditer(text)]
    if "```" in text:
        return [part.strip("\n") + "\n" for part in text.split("```")[1::2]]
    return [match.group(0).rstrip() + "\n" for match in _BARE.finditer(text)]


def repaired(block: str, repairs: Sequence[Repair] = ()) -> str:
    """Return the block for our package. A correction that does not apply is an error."""
    for slip, meant in repairs:
        assert slip in block, f"the block has no {slip!r}"
        block = block.replace(slip, meant)
    return block.replace("paddle.", "sparsefleet.")


_DIRECTIVE = re.compile(r"^[ ]*\.\. code-block:: python\n(?:[ ]+:linenos:\n)?", re.MULTILINE)
# In one document the blocks are not marked: they are paragraphs that start like code.
_BARE = re.compile(r"^(?:# Configure the execution.*?exec_strategy\)$|data = .*?\n\n)", re.M | re.S)


def _indented_block(text: str, begin: int) -> str:
    lines = text[begin:].splitlines()
    while not lines[0].strip():
        lines.pop(0)
    indent = len(lines[0]) - len(lines[0].lstrip())
    taken = []
    for line in lines:
        if line.strip() and len(line) - len(line.lstrip()) < indent:
            break
        taken.append(line)
    return textwrap.dedent("\n".join(taken)).rstrip() + "\n"
