"""Damaged checkpoints: read in full or refused with CheckpointError.

Seeds: a full checkpoint and a delta, as in tests/unit/checkpoint/test_damage.py.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import Any

from tests.fuzz.mutations import mutated_bytes, mutated_json
from tests.support.checkpoints import save, two_tables

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.errors import CheckpointError, ConfigError

_SEPARATOR = b"\0\0\n"
_TOKEN = re.compile(r"-[0-9a-f]{16}")


class CheckpointsTarget:
    """Mutates the manifest, or a row file whose checksum is then corrected.

    An input is the path of a file without random tokens, a separator and the file's new content.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp())
        base, delta = self._folder / "seed" / "base", self._folder / "seed" / "delta"
        save(str(base), two_tables(), num_shards=2)
        save(str(delta), two_tables(1, 50), num_shards=2, removed={"ads": [3, 60]}, base=str(base))
        self._files = {
            _TOKEN.sub("", str(path.relative_to(base.parent))): path
            for path in sorted(base.parent.rglob("*"))
            if path.is_file()
        }
        self._others = [path.read_bytes() for path in self._files.values()]

    def make(self, draw: random.Random) -> bytes:
        name = draw.choice(list(self._files))
        raw = self.content(name)
        if name.endswith("manifest.json") and draw.random() < 0.8:
            changed = json.dumps(_sealed(mutated_json(json.loads(raw), draw))).encode()
        else:
            changed = mutated_bytes(raw, draw, self._others)
        return self.input_of(name, changed)

    def content(self, name: str) -> bytes:
        """Return the undamaged content of a file."""
        return self._files[name].read_bytes()

    def input_of(self, name: str, changed: bytes) -> bytes:
        """Return the input that replaces the content of a file."""
        return name.encode() + _SEPARATOR + changed

    def run(self, raw: bytes) -> str:
        name, _, changed = raw.partition(_SEPARATOR)
        folder = self._folder / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._folder / "seed", folder)
        path = folder / self._files[name.decode()].relative_to(self._folder / "seed")
        path.write_bytes(changed)
        if path.name != "manifest.json":
            _fit(folder / path.relative_to(folder).parts[0], path)
        try:
            _read_all(Checkpoint.open(str(folder / "delta")))
            return "read"
        except (CheckpointError, ConfigError):
            return "refused"


def _read_all(checkpoint: Checkpoint) -> None:
    for table in checkpoint.manifest.tables:
        for chunk in checkpoint.rows(table.name):
            assert len(chunk.keys) == len(chunk.values) == len(chunk.state) == len(chunk.counters)
    checkpoint.dense()
    checkpoint.workers()


def _sealed(manifest: Any) -> Any:
    """Return a manifest with a correct checksum, so that its content is examined."""
    if isinstance(manifest, dict):
        manifest.pop("checksum", None)
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
        manifest["checksum"] = f"crc32:{zlib.crc32(text.encode()):08x}"
    return manifest


def _fit(checkpoint: Path, changed: Path) -> None:
    """Make the manifest list the size and checksum of a changed file."""
    data = changed.read_bytes()
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_bytes())
    entries = [manifest["dense_file"], manifest["workers_file"]]
    entries += [e for table in manifest["tables"] for e in table["files"] + table["removed"]]
    for entry in entries:
        if entry is not None and changed == checkpoint / entry["path"]:
            entry |= {"bytes": len(data), "checksum": f"crc32:{zlib.crc32(data):08x}"}
    path.write_text(json.dumps(_sealed(manifest)))
