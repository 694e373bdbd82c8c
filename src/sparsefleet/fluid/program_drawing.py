"""Programs as drawings, for Graphviz."""

from __future__ import annotations

import json
from pathlib import Path

from sparsefleet.fluid.framework import Program

__all__ = ["draw_program"]


def draw_program(program: Program, path: str) -> None:
    """Writes operators (boxes) and variables (ovals) as a .dot file."""
    lines = ["digraph program {"]
    for number, op in enumerate(program.global_block().ops):
        lines.append(f"  op{number} [shape=box, label={json.dumps(op.type)}];")
        lines += [f"  {json.dumps(name)} -> op{number};" for name in op.input_arg_names]
        lines += [f"  op{number} -> {json.dumps(name)};" for name in op.output_arg_names]
    lines.append("}")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("\n".join(lines) + "\n")
