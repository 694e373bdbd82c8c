"""--save-root also confines the bases of delta checkpoints and the files in checkpoints.

Only the path of the checkpoint itself used to be checked. The base that its manifest names was
opened wherever it was: by `..`, an absolute path, a URL or a link, at any depth of a chain.
"""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.support.server_process import DEADLINE_S, ServerProcess

from sparsefleet.checkpoint.folder import checksum_text
from sparsefleet.checkpoint.json_fields import canonical
from sparsefleet.store import RemoteStore, TableSpec
from sparsefleet.store.store_save import Base, StoreSave

KEYS = np.arange(10)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saves") / "root"


@pytest.fixture(scope="module")
def store(root: Path) -> Iterator[RemoteStore]:
    root.mkdir()
    server = ServerProcess("--save-root", str(root))
    try:
        with RemoteStore([server.wait_ready()]) as opened:
            opened.define(TableSpec(name="ads", dim=2, track_dirty=True))
            opened.pull("ads", KEYS)
            yield opened
    finally:
        server.kill()


@pytest.fixture
def chain(store: RemoteStore, root: Path) -> Iterator[Path]:
    """A full checkpoint `full`, a delta `delta` and a delta `more` on top of it, below the root."""
    base = None
    for name in ("full", "delta", "more"):
        store.push("ads", KEYS[:3], np.ones((3, 2), np.float32))
        save = StoreSave(store, root / name, base=base, track=True, timeout_s=DEADLINE_S)
        save.open()
        save.write()
        base = Base(save.path, save.commit({}, step=1).token)
    yield root
    for name in ("full", "delta", "more"):
        shutil.rmtree(root / name, ignore_errors=True)


def set_base(checkpoint: Path, base: str) -> None:
    """Writes another base into the manifest, with the right checksum."""
    path = checkpoint / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["base"]["path"] = base
    del manifest["checksum"]
    manifest["checksum"] = checksum_text(zlib.crc32(canonical(manifest)))
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "base",
    [
        "../../outside/full",
        "{outside}/full",
        "file://{outside}/full",
        "local://{root}/../outside/full",
        "../link/full",
    ],
)
@pytest.mark.parametrize("loaded", ["delta", "more"], ids=["directly", "through another delta"])
def test_base_of_a_delta_cannot_lead_out_of_the_save_root(
    store: RemoteStore, chain: Path, loaded: str, base: str
) -> None:
    outside = chain.parent / "outside"
    shutil.rmtree(outside, ignore_errors=True)
    outside.mkdir()
    shutil.move(chain / "full", outside / "full")
    (chain / "link").unlink(missing_ok=True)
    (chain / "link").symlink_to(outside)
    set_base(chain / "delta", base.format(root=chain, outside=outside))
    before = store.pull("ads", KEYS)
    # The client may read the chain; the server must not.
    with pytest.raises(ValueError, match="server 0 only saves and loads under its --save-root"):
        store.load(chain / loaded)
    np.testing.assert_array_equal(store.pull("ads", KEYS), before)


def test_files_of_a_checkpoint_cannot_lead_out_of_the_save_root(
    store: RemoteStore, chain: Path
) -> None:
    outside = chain.parent / "tables"
    shutil.rmtree(outside, ignore_errors=True)
    shutil.move(chain / "full" / "tables", outside)
    (chain / "full" / "tables").symlink_to(outside)
    with pytest.raises(ValueError, match="--save-root"):
        store.load(chain / "full")


def test_chains_below_the_save_root_are_loaded(store: RemoteStore, chain: Path) -> None:
    wanted = store.pull("ads", KEYS)
    store.push("ads", KEYS, np.ones((len(KEYS), 2), np.float32))
    store.load(chain / "more")
    np.testing.assert_array_equal(store.pull("ads", KEYS), wanted)
