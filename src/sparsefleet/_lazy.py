"""Names of the package that need torch: loaded at first use, as torch takes seconds to load."""

from __future__ import annotations

import importlib

_HOMES = {
    "CheckpointConfig": "sparsefleet.train",
    "Trainer": "sparsefleet.train",
    "TrainerConfig": "sparsefleet.train",
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
