"""Names of the package that may need torch: loaded at first use, as that takes seconds to load."""

from __future__ import annotations

import importlib

_HOMES = {
    "Predictor": "sparsefleet.serve",
    "Trainer": "sparsefleet.train",
    "TrainerConfig": "sparsefleet.train",
    "export": "sparsefleet.export",
    "modes": "sparsefleet.modes",
    "nn": "sparsefleet.nn",
    "serve": "sparsefleet.serve",
    "train": "sparsefleet.train",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'sparsefleet' has no attribute {name!r}")
    module = importlib.import_module(home)
    return module if home.endswith(f".{name}") else getattr(module, name)
