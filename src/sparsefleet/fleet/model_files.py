"""A model that predicts as files.

A directory holds `model.json`, which names the others; it is written last, by renaming, so that
a save that broke off leaves the one before it in force.

* `dense-<token>.safetensors`: the model's state dict, tensors by name;
* `rows-<token>/<i>-<j>.safetensors`: keys int64[N], values float32[N, D].
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from sparsefleet.errors import CheckpointError, CorruptFileError
from sparsefleet.store import Rows, Store

__all__ = ["load_inference_rows", "load_state", "save_inference_model"]

_MANIFEST = "model.json"
_FORMAT = 1
_CHUNK_ROWS = 1 << 18


def load_state(directory: Path, model: nn.Module) -> None:
    """The model's own tensors only, in place."""
    path = directory / _read_manifest(directory)["dense"]
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise CorruptFileError(f"{path} cannot be read: {error}") from error
    own = _state_of(model)
    missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or unknown:
        raise CheckpointError(
            f"{path} is of another model: it lacks {missing or 'nothing'} and has {unknown or 'no'}"
            " more"
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            if tensor.shape != own[name].shape:
                raise CheckpointError(
                    f"{path}: '{name}' has shape {list(tensor.shape)}, "
                    f"the model's has {list(own[name].shape)}"
                )
            own[name].copy_(tensor)


def save_inference_model(
    directory: Path, model: nn.Module, store: Store, tables: Iterable[str]
) -> None:
    """Writes what prediction needs: the state dict and all rows, without optimizer state."""
    token = secrets.token_hex(4)
    rows = directory / f"rows-{token}"
    rows.mkdir(parents=True)
    names = list(tables)
    for index, table in enumerate(names):
        for number, chunk in enumerate(store.rows(table, chunk_rows=_CHUNK_ROWS)):
            tensors = {
                "keys": torch.from_numpy(chunk.keys.view(np.int64)),
                "values": torch.from_numpy(chunk.values),
            }
            save_file(tensors, rows / f"{index}-{number:05d}.safetensors")
    _save_state(directory / f"dense-{token}.safetensors", model)
    _commit(
        directory,
        {
            "kind": "inference",
            "dense": f"dense-{token}.safetensors",
            "rows": rows.name,
            "tables": names,
        },
    )


def load_inference_rows(directory: Path, store: Store, tables: Iterable[str]) -> None:
    """Fills tables that are defined already with the rows of an inference model."""
    manifest = _read_manifest(directory, "inference")
    for table in tables:
        if table not in manifest["tables"]:
            known = ", ".join(manifest["tables"]) or "none"
            raise CheckpointError(f"{directory} has no table '{table}', only {known}")
        index = manifest["tables"].index(table)
        for path in sorted((directory / manifest["rows"]).glob(f"{index}-*.safetensors")):
            part = load_file(path)
            keys, values = part["keys"].numpy().view(np.uint64), part["values"].numpy()
            nothing = np.empty((len(keys), 0))
            store.import_rows(
                table,
                Rows(keys, values, nothing.astype(np.float32), nothing.astype(np.uint32)),
            )


def _state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers by name, as in the state dict but without tables."""
    state: dict[str, torch.Tensor] = {}
    for prefix, module in model.named_modules():
        own = {**module._parameters, **module._buffers}
        for name, tensor in own.items():
            if tensor is not None and name not in module._non_persistent_buffers_set:
                state[f"{prefix}.{name}" if prefix else name] = tensor.data
    return state


def _save_state(path: Path, model: nn.Module) -> None:
    # Views of one flat buffer: safetensors wants each tensor to own its memory.
    save_file({name: tensor.clone() for name, tensor in _state_of(model).items()}, path)


def _commit(directory: Path, manifest: dict[str, Any]) -> None:
    """Puts the manifest in force and removes the files of the one before it."""
    path = directory / _MANIFEST
    before = _read_manifest(directory) if path.exists() else {}
    temporary = directory / f".{_MANIFEST}.{secrets.token_hex(4)}"
    temporary.write_text(json.dumps({"format": _FORMAT, **manifest}, indent=2), encoding="utf-8")
    os.replace(temporary, path)
    for entry in ("dense", "rows"):
        name = before.get(entry)
        if isinstance(name, str):
            shutil.rmtree(directory / name, ignore_errors=True)
            (directory / name).unlink(missing_ok=True)


def _read_manifest(directory: Path, kind: str | None = None) -> dict[str, Any]:
    path = directory / _MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{directory} holds no saved model: {error}") from error
    except ValueError as error:
        raise CorruptFileError(f"{path} is not JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise CheckpointError(f"{path} is of another format than {_FORMAT}")
    if kind is not None and manifest.get("kind") != kind:
        raise CheckpointError(
            f"{directory} holds a model for {manifest.get('kind')}, wanted one for {kind}"
        )
    return manifest
