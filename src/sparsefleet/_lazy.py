"""Names of a package that are loaded at first use: torch and pyarrow take seconds to load."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

_HOMES = {
    "Predictor": "sparsefleet.serve",
    "Trainer": "sparsefleet.train",
    "TrainerConfig": "sparsefleet.train",
    "batch": "sparsefleet.reader",
    "data": "sparsefleet.data",
    "export": "sparsefleet.export",
    "fluid": "sparsefleet.fluid",
    "modes": "sparsefleet.modes",
    "nn": "sparsefleet.nn",
    "reader": "sparsefleet.reader",
    "serve": "sparsefleet.serve",
    "train": "sparsefleet.train",
}


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for `package`.

    homes: name -> the module that has it, or the module itself if it ends with that name.
    """

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(home)
        return module if home.endswith(f".{name}") else getattr(module, name)

    return load


__getattr__ = lazy_names("sparsefleet", _HOMES)
