"""Run all checks on an export: on its own, and compared with every other copy of the model."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from sparsefleet.errors import (
    CheckpointError,
    CheckpointMissingError,
    ConfigError,
    FeedError,
    RpcError,
    SparseFleetError,
    StoreUnavailableError,
)
from sparsefleet.serving.export.export_directory import manifest_text
from sparsefleet.serving.updates import is_redis
from sparsefleet.serving.verify.case import Case, Check, OfflineModel, VerifyConfig
from sparsefleet.serving.verify.inputs_check import InputsCheck
from sparsefleet.serving.verify.parameters_check import ParametersCheck
from sparsefleet.serving.verify.predictions_check import PredictionsCheck
from sparsefleet.serving.verify.pruning_check import PruningCheck
from sparsefleet.serving.verify.report import CheckName, CheckResult, Finding, Report
from sparsefleet.serving.verify.service_side import ServiceClient, ServiceSide
from sparsefleet.serving.verify.settings_check import SettingsCheck, unchecked_expectations
from sparsefleet.serving.verify.side import Side
from sparsefleet.serving.verify.sides import (
    CheckpointSide,
    ExportSide,
    HalfLoadedError,
    RedisSide,
    ServersSide,
)

__all__ = ["open_side", "verify"]

_ENDPOINTS = re.compile(r"[^/\s,]+:\d+(,[^/\s,]+:\d+)*")
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://.*")


def open_side(target: str, case: Case) -> Side:
    """Open a service, a Redis store, servers, a checkpoint (a path or URL) or another export."""
    if _ENDPOINTS.fullmatch(target):
        tables, timeout_s = list(case.model.tables), case.config.timeout_s
        return ServersSide(target, target.split(","), tables, timeout_s=timeout_s)
    if target.startswith(("http://", "https://")):
        config = case.config
        client = ServiceClient(target, token=config.token, timeout_s=config.timeout_s)
        return ServiceSide(client, case.model)
    if is_redis(target):
        return RedisSide(target, case.model, timeout_s=case.config.timeout_s)
    if _URL.fullmatch(target):
        return CheckpointSide(target)
    path = Path(target)
    if not path.exists():
        raise ConfigError(
            f"online side {target!r} does not exist, expected a URL (http://, redis://), server "
            "endpoints (host:port,host:port), or the directory of a checkpoint or an export"
        )
    return ExportSide(target) if _is_export(path) else CheckpointSide(target)


def _is_export(path: Path) -> bool:
    try:
        content = json.loads(manifest_text(path))
    except (CheckpointError, ValueError, RecursionError):
        return False  # opening it will report what is wrong
    return isinstance(content, dict) and content.get("kind") == "sparsefleet inference model"


_POLL_S = 0.1
_SECRET = re.compile(r"//[^/@]*@")
"""User and password in a URL, which must not appear in reports."""
_CHECKS: tuple[tuple[CheckName, Check], ...] = (
    ("pruning", PruningCheck()),
    ("parameters", ParametersCheck()),
    ("inputs", InputsCheck()),
    ("predictions", PredictionsCheck()),
    ("settings", SettingsCheck()),
)
_KINDS: tuple[tuple[type[SparseFleetError], str], ...] = (
    (HalfLoadedError, "half loaded"),
    (CheckpointMissingError, "not loaded"),
    (StoreUnavailableError, "unavailable"),
    (RpcError, "unavailable"),
    (CheckpointError, "file damaged"),
    (FeedError, "examples refused"),
)


def verify(
    directory: str | os.PathLike[str],
    online: Sequence[str | os.PathLike[str] | Side] = (),
    config: VerifyConfig | None = None,
) -> Report:
    """Compare the export in `directory` with every side and return the findings.

    online: URLs of services, `redis://` stores, checkpoints, server endpoints, other exports.
    Raises only for invalid arguments, such as a directory without an export or a missing example
    file.

    >>> import tempfile
    >>> import torch
    >>> from sparsefleet.serving.export import save_inference_model
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = torch.nn.Linear(2, 1)
    ...     manifest = save_inference_model(folder, model, torch.ones(4, 2), onnx=False)
    ...     verify(folder).passed
    True
    """
    config = config or VerifyConfig()
    case = Case(OfflineModel(directory, updates=config.updates), config)
    if config.examples is not None:
        case.read_examples()
    results = [_guarded(name, case.model.name, check.of_export, case) for name, check in _CHECKS]
    for target in online:
        results += _of_side(case, target if isinstance(target, Side) else os.fspath(target))
    results.append(unchecked_expectations(case, [one for one in results if one is not None]))
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return Report(
        directory=case.model.name,
        version=case.model.manifest.digest,
        created=f"exported {case.model.manifest.created}, verified {now}",
        examples=str(config.examples or "golden examples of the export"),
        results=tuple(result for result in results if result is not None),
    )


def _of_side(case: Case, target: str | Side) -> list[CheckResult | None]:
    try:
        side = target if isinstance(target, Side) else open_side(target, case)
    except (StoreUnavailableError, RpcError, CheckpointError) as error:
        check: CheckName = "settings" if isinstance(error, RpcError) else "parameters"
        return [_failed(check, _SECRET.sub("//", str(target)), error)]
    try:
        _meet(case, side)
        return [
            _guarded(name, side.name, partial(check.of_side, side=side), case)
            for name, check in _CHECKS
        ]
    finally:
        if not isinstance(target, Side):
            side.close()


def _meet(case: Case, side: Side) -> None:
    """Wait, up to the timeout, until the side has applied the newest published update.

    A side that is still behind is reported by the settings check.
    """
    if case.config.updates is None or side.role == "training":
        return
    deadline = time.monotonic() + case.config.timeout_s
    with suppress(*(kind for kind, _ in _KINDS)):  # the checks report these
        while time.monotonic() < deadline:
            case.catch_up()
            snapshot = case.model.snapshot
            if snapshot is None or side.updated() == snapshot.made:
                return
            time.sleep(_POLL_S)


def _guarded(
    name: CheckName, side: str, run: Callable[[Case], CheckResult | None], case: Case
) -> CheckResult | None:
    """Run a check; report an error that prevents it as one of the check's findings."""
    try:
        return run(case)
    except tuple(kind for kind, _ in _KINDS) as error:
        return _failed(name, side, error)


def _failed(name: CheckName, side: str, error: SparseFleetError) -> CheckResult:
    kind = next(text for cause, text in _KINDS if isinstance(error, cause))
    finding = Finding(name=kind, what=side, found=str(error), wanted="data to compare with")
    return CheckResult.of(name, side, "the check could not run", [finding])
