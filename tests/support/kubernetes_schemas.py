"""Checks Kubernetes manifests against published schemas, strictly: an unknown field is an error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

_CRDS = json.loads(Path(__file__).with_name("kubernetes_crds.json").read_text(encoding="utf-8"))
_CORE_VERSION = "1.31"
_KIND_OF_SCHEMA = {"ClusterTrainingRuntime": "TrainingRuntime"}

Document = dict[str, Any]


def checked_documents(text: str) -> dict[str, Document]:
    """Return the documents of a YAML text by kind; raise if one does not match its schema."""
    found = {document["kind"]: document for document in yaml.safe_load_all(text)}
    for document in found.values():
        check(document)
    return found


def check(document: Document) -> None:
    """Raise ValidationError, of either library, if the document does not match its schema."""
    kind = _KIND_OF_SCHEMA.get(document["kind"], document["kind"])
    if kind not in _CRDS["$defs"]:
        kubernetes_validate.validate(document, _CORE_VERSION, strict=True)
        return
    jsonschema.validate(document, {**_CRDS, "$ref": f"#/$defs/{kind}"})
    for inner in _inner_documents(document):
        kubernetes_validate.validate(inner, _CORE_VERSION, strict=True)


def _inner_documents(document: Document) -> Iterator[Document]:
    """Yield the jobs and pods that a custom resource's controller creates from its templates."""
    spec = document["spec"]
    if document["kind"].endswith("TrainingRuntime"):
        spec = spec["template"]["spec"]
    for job in spec.get("replicatedJobs", ()):
        yield _as_document("batch/v1", "Job", job["template"])
    cluster = spec.get("rayClusterSpec")
    if cluster is not None:
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            yield _as_document("v1", "Pod", group["template"])


def _as_document(version: str, kind: str, template: Document) -> Document:
    metadata = {"name": "inner", **template.get("metadata", {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": template["spec"]}
