"""Execute the tutorials, docs/tutorials/*.ipynb, each in an empty directory.

`make tutorials` also stores what they print, so that the site shows it:
python scripts/run_tutorials.py --write first_model
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "tutorials"
CELL_S = 300.0  # for a loaded machine; no cell takes more than some seconds otherwise
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def tutorials() -> list[Path]:
    """Return all notebooks."""
    return sorted(FOLDER.glob("*.ipynb"))


def execute(path: Path) -> Any:
    """Return the notebook with its outputs. Raises nbclient's CellExecutionError."""
    import nbclient
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    # `sparsefleet` and `python` in shell cells are those of this interpreter.
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{before}"
    try:
        with tempfile.TemporaryDirectory(prefix="sparsefleet-tutorial-") as directory:
            client = nbclient.NotebookClient(
                notebook,
                timeout=CELL_S,
                startup_timeout=CELL_S,
                kernel_name="python3",
                record_timing=False,
                coalesce_streams=True,
                resources={"metadata": {"path": directory}},
            )
            client.execute()
            _hide_directory(notebook, directory)
    finally:
        os.environ["PATH"] = before
    return notebook


def _hide_directory(notebook: Any, directory: str) -> None:
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if "text" in output:
                output["text"] = output["text"].replace(f"{directory}/", "")


def tidy(notebook: Any) -> Any:
    """Remove what differs from run to run and says nothing: versions, colours, ids of cells."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):
        cell.metadata = {}
        cell.id = f"cell-{number}"
        if cell.cell_type == "code":
            # Warnings of libraries are not for readers.
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
            for output in cell.outputs:
                if "text" in output:
                    output["text"] = _ESCAPES.sub("", output["text"])
    return notebook


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="tutorials, without .ipynb (default: all)")
    parser.add_argument("--write", action="store_true", help="store the outputs")
    options = parser.parse_args(words)
    known = {path.stem: path for path in tutorials()}
    unknown = set(options.names) - set(known)
    if unknown:
        parser.error(
            f"no such tutorial: {', '.join(sorted(unknown))}; there are {', '.join(known)}"
        )
    import nbformat

    for name in options.names or known:
        begun = time.monotonic()
        executed = tidy(execute(known[name]))
        if options.write:
            nbformat.write(executed, known[name])
        print(f"{name}: {time.monotonic() - begun:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
