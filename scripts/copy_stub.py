"""Copies the extension's generated stub to where the type checker looks.

An editable install keeps `_core.pyi` next to the extension, away from the sources; a type checker
looks next to the sources or on its own path.
"""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    spec = find_spec("sparsefleet._core")
    if spec is None or spec.origin is None:
        raise SystemExit("sparsefleet._core is not installed")
    target = Path(sys.argv[1]) / "sparsefleet"
    target.mkdir(parents=True, exist_ok=True)
    (target / "__init__.pyi").touch()
    shutil.copy(Path(spec.origin).parent / "_core.pyi", target / "_core.pyi")


if __name__ == "__main__":
    main()
