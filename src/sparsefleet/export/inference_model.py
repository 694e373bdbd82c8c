"""An exported model as a torch module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsefleet.errors import FeedError
from sparsefleet.export.feeds import check_feeds
from sparsefleet.export.graph_file import read_graph
from sparsefleet.export.manifest import Manifest
from sparsefleet.export.opened_export import Verify, open_export
from sparsefleet.export.row_file import open_tables
from sparsefleet.export.torch_engine import TorchEngine

__all__ = ["InferenceModel", "load_inference_model"]


class InferenceModel(nn.Module):
    """Predicts, and does nothing else; called as the model was that it was made from.

    Returns the target, or a dict of them by name where there are several. Thread-safe.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        super().__init__()
        self.manifest = manifest
        """Of the export; `manifest.schema` has inputs and targets."""
        self._tables = open_tables(directory, manifest.tables)
        graph = read_graph(directory / manifest.graph)
        self._engine = TorchEngine(graph, manifest.schema)
        self.eval()

    def forward(self, *inputs: Any, **named: Any) -> Tensor | dict[str, Tensor]:
        """By place or by name, without inputs that no target needs."""
        schema = self.manifest.schema
        both = sorted(set(schema.places[: len(inputs)]) & named.keys())
        if both:
            raise FeedError(f"{', '.join(both)} is given by place and by name")
        if len(inputs) > len(schema.places):
            wanted = f"{len(schema.places)}: {', '.join(schema.places)}"
            raise FeedError(f"{len(inputs)} inputs are given by place, wanted {wanted}")
        given = dict(zip(schema.places, inputs, strict=False)) | named
        arrays = check_feeds(schema, given)
        tensors = {name: torch.as_tensor(array) for name, array in arrays.items()}
        found = self._engine.run(tensors, self._tables)
        return next(iter(found.values())) if len(found) == 1 else found

    def extra_repr(self) -> str:
        schema = self.manifest.schema
        return "\n".join([*map(str, schema.inputs), "->", *map(str, schema.targets)])


def load_inference_model(
    directory: str | os.PathLike[str], *, verify: Verify = True
) -> InferenceModel:
    """The model that `save_inference_model` wrote, ready to predict; rows stay in their files.

    verify: see `sparsefleet.Predictor`.

    >>> import tempfile
    >>> from sparsefleet.export import save_inference_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     manifest = save_inference_model(folder, nn.Linear(2, 1), torch.ones(4, 2), onnx=False)
    ...     load_inference_model(folder)(torch.zeros(3, 2)).shape
    torch.Size([3, 1])
    """
    return open_export(directory, verify, InferenceModel)
