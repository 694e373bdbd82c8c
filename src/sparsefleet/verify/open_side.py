"""Which kind of side a text means."""

from __future__ import annotations

import json
import re
from pathlib import Path

from sparsefleet.errors import ConfigError
from sparsefleet.export.manifest import MANIFEST
from sparsefleet.updates import is_redis
from sparsefleet.verify.case import Case
from sparsefleet.verify.checkpoint_side import CheckpointSide
from sparsefleet.verify.export_side import ExportSide
from sparsefleet.verify.redis_side import RedisSide
from sparsefleet.verify.servers_side import ServersSide
from sparsefleet.verify.service_client import ServiceClient
from sparsefleet.verify.service_side import ServiceSide
from sparsefleet.verify.side import Side

__all__ = ["open_side"]

_ENDPOINTS = re.compile(r"[^/\s,]+:\d+(,[^/\s,]+:\d+)*")
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://.*")


def open_side(target: str, case: Case) -> Side:
    """A service, a Redis store, servers, a checkpoint (a path or URL) or another export."""
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
            f"online side {target!r}: there is no such path; give a URL (http://, redis://), "
            "endpoints of servers (host:port,host:port), or a directory with a checkpoint or an "
            "export"
        )
    return ExportSide(target) if _is_export(path) else CheckpointSide(target)


def _is_export(path: Path) -> bool:
    try:
        content = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # whoever opens it says what is wrong
    return isinstance(content, dict) and content.get("kind") == "sparsefleet inference model"
