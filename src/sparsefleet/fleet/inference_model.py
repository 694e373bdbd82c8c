"""A model that only predicts, from the files of `save_inference_model`."""

from __future__ import annotations

import os
from pathlib import Path

from torch import nn

from sparsefleet.fleet.model_files import load_inference_rows, load_state
from sparsefleet.nn import bind
from sparsefleet.store import LocalStore

__all__ = ["load_inference_model"]


def load_inference_model(directory: str | os.PathLike[str], model: nn.Module) -> nn.Module:
    """Fills `model`, binds its tables to a store in this process and puts it into `eval()`."""
    path = Path(directory).absolute()
    store = LocalStore()
    tables = bind(model, store)
    load_inference_rows(path, store, tables)
    load_state(path, model)
    return model.eval()
