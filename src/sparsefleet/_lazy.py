"""Names of the package that need torch or pyarrow: loaded at first use, as those take time."""

from __future__ import annotations

import importlib

_HOMES = {
    "Trainer": "sparsefleet.train",
    "TrainerConfig": "sparsefleet.train",
    "data": "sparsefleet.data",
    "modes": "sparsefleet.modes",
    "nn": "sparsefleet.nn",
    "train": "sparsefleet.train",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sparsefleet' has no attribute {name!r}")
    module = importlib.import_module(home)
    return module if home.endswith(f".{name}") else getattr(module, name)
