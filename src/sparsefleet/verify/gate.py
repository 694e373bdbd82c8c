"""The gate: all checks of an export, by itself and against every side."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import partial

from sparsefleet.errors import (
    CheckpointError,
    CheckpointMissingError,
    FeedError,
    RpcError,
    SparseFleetError,
    StoreUnavailableError,
)
from sparsefleet.verify.case import Case, Check
from sparsefleet.verify.finding import CheckName, CheckResult, Finding
from sparsefleet.verify.inputs_check import InputsCheck
from sparsefleet.verify.offline_model import OfflineModel
from sparsefleet.verify.open_side import open_side
from sparsefleet.verify.parameters_check import ParametersCheck
from sparsefleet.verify.predictions_check import PredictionsCheck
from sparsefleet.verify.pruning_check import PruningCheck
from sparsefleet.verify.redis_side import HalfLoadedError
from sparsefleet.verify.report import Report
from sparsefleet.verify.settings_check import SettingsCheck
from sparsefleet.verify.side import Side
from sparsefleet.verify.verify_config import VerifyConfig

__all__ = ["verify"]

_POLL_S = 0.1
_SECRET = re.compile(r"//[^/@]*@")
"""User and password in a URL: reports are passed around."""
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
    online: Sequence[str | Side] = (),
    config: VerifyConfig | None = None,
) -> Report:
    """Compares the export in `directory` with every side; nothing that is wrong is raised.

    online: URLs of services, `redis://` stores, checkpoints, endpoints of servers, other exports.
    Raises only for what cannot be meant: no export there, no such file of examples.

    >>> import tempfile
    >>> import torch
    >>> from sparsefleet.export import save_inference_model
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
        results += _of_side(case, target)
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
    """Waits until the side has the newest update, as far as it goes; who is late, is told later."""
    if case.config.updates is None or side.role == "training":
        return
    deadline = time.monotonic() + case.config.timeout_s
    with suppress(*(kind for kind, _ in _KINDS)):  # told by the checks
        while time.monotonic() < deadline:
            case.catch_up()
            moment = case.model.moment
            if moment is None or side.updated() == moment.made:
                return
            time.sleep(_POLL_S)


def _guarded(
    name: CheckName, side: str, run: Callable[[Case], CheckResult | None], case: Case
) -> CheckResult | None:
    """What keeps a check from being made is a finding of that check."""
    try:
        return run(case)
    except tuple(kind for kind, _ in _KINDS) as error:
        return _failed(name, side, error)


def _failed(name: CheckName, side: str, error: SparseFleetError) -> CheckResult:
    kind = next(said for cause, said in _KINDS if isinstance(error, cause))
    finding = Finding(name=kind, what=side, found=str(error), wanted="an answer to compare with")
    return CheckResult.of(name, side, "could not be made", [finding])
