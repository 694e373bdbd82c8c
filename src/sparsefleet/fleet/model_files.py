"""A trained model as files: the first form, until checkpoints replace it.

A directory holds `model.json`, which names the others; it is written last, by renaming, so that
a save that broke off leaves the one before it in force.

* `dense-<token>.safetensors`: the model's state dict, tensors by name;
* `tables-<token>/`: all tables with their optimizer state, as docs/table_dump.md has it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from sparsefleet.errors import CheckpointError, CorruptFileError
from sparsefleet.store import Store

__all__ = ["load_model", "save_model"]

_MANIFEST = "model.json"
_FORMAT = 1


def save_model(directory: Path, model: nn.Module, store: Store, *, steps: int = 0) -> None:
    """Writes model and tables; servers write their parts to the same path on their disks.

    steps: where the schedule is.
    """
    token = secrets.token_hex(4)
    directory.mkdir(parents=True, exist_ok=True)
    store.save(directory / f"tables-{token}")
    _save_state(directory / f"dense-{token}.safetensors", model)
    _commit(
        directory,
        {
            "dense": f"dense-{token}.safetensors",
            "tables": f"tables-{token}",
            "steps": steps,
        },
    )


def load_model(directory: Path, model: nn.Module, store: Store) -> int:
    """Reads back what `save_model` wrote, into tables that are defined already; the steps."""
    manifest = _read_manifest(directory)
    store.load(directory / manifest["tables"])
    _load_state(directory, model)
    return int(manifest.get("steps", 0))


def _load_state(directory: Path, model: nn.Module) -> None:
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
    for entry in ("dense", "tables"):
        name = before.get(entry)
        if isinstance(name, str):
            shutil.rmtree(directory / name, ignore_errors=True)
            (directory / name).unlink(missing_ok=True)


def _read_manifest(directory: Path) -> dict[str, Any]:
    path = directory / _MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{directory} holds no saved model: {error}") from error
    except ValueError as error:
        raise CorruptFileError(f"{path} is not JSON: {error}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise CheckpointError(f"{path} is of another format than {_FORMAT}")
    return manifest
