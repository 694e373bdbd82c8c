"""Checksums of files, in pieces."""

from __future__ import annotations

import hashlib
from pathlib import Path

__all__ = ["sha256_of"]

_PIECE_BYTES = 1 << 20


def sha256_of(path: Path) -> str:
    """SHA-256 of the file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()
