"""Tiny archives in the place and form of the real ones."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from sparsefleet.fluid.paddle.dataset import common

Put = Callable[..., None]


@pytest.fixture
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(common, "DATA_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def put(data_home: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """put(module, "URL", "MD5", folder, content): what the module would have downloaded."""

    def place(
        module: ModuleType, url: str, md5: str, folder: str, content: bytes, name: str = ""
    ) -> None:
        path = data_home / folder / (name or getattr(module, url).split("/")[-1])
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        monkeypatch.setattr(module, md5, common.md5file(str(path)))

    return place


def tar_of(files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return made.getvalue()


def zip_of(files: Mapping[str, str]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content.encode("latin-1"))
    return made.getvalue()


def idx_of(values: np.ndarray) -> bytes:
    head = struct.pack(">I", 0x800 + values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    return gzip.compress(head + values.astype(np.uint8).tobytes())
