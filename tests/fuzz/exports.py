"""Untrusted graph files: read or refused with CorruptFileError; nothing in them runs.

Seeds: a real graph and the hostile archives of tests/regressions/test_code_in_exports.py.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from pathlib import Path

from tests.fuzz.mutations import mutated_bytes, mutated_json
from tests.support.forged_zip import Contents, entries_of, plain, zip64_extra, zip_of
from tests.support.hostile_archives import CASES, PLANTED
from tests.unit.serving.export.shop_model import exported_shop

from sparsefleet.errors import CorruptFileError
from sparsefleet.serving.export.graph_file import read_graph

_MOST_SEED_BYTES = 4 << 20


class ExportsTarget:
    """Mutates archives as bytes, as zip structures and as the JSON documents in them."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp())
        self._marker = self._folder / "ran"
        modules = self._folder / "modules"
        modules.mkdir()
        (modules / f"{PLANTED}.py").write_text(f"open({str(self._marker)!r}, 'w').close()\n")
        sys.path.insert(0, str(modules))
        directory, manifest = exported_shop()
        self._contents: Contents = entries_of(directory / manifest.graph)
        built = [case.build(self._contents, self._marker) for case in CASES.values()]
        self._seeds = [zip_of(plain(self._contents))]
        self._seeds += [raw for raw in built if len(raw) < _MOST_SEED_BYTES]

    def make(self, draw: random.Random) -> bytes:
        kind = draw.randrange(3)
        if kind == 0:
            return mutated_bytes(draw.choice(self._seeds), draw, self._seeds)
        return self._changed_zip(draw) if kind == 1 else self._changed_document(draw)

    def run(self, raw: bytes) -> str:
        path = self._folder / "graph.pt2"
        path.write_bytes(raw)
        try:
            read_graph(path)
            return "read"
        except CorruptFileError:
            return "refused"
        finally:
            assert not self._marker.exists(), "code in the archive ran"
            assert PLANTED not in sys.modules, "the archive imported a module"

    def _changed_document(self, draw: random.Random) -> bytes:
        name = draw.choice([name for name in self._contents if name.endswith(".json")])
        document = json.loads(self._contents[name])
        signature = document.get("graph_module", {}).get("module_call_graph", [{}])[0]
        if "signature" in signature and draw.random() < 0.3:  # JSON within a string
            which = draw.choice(("in_spec", "out_spec"))
            spec = json.loads(signature["signature"][which])
            signature["signature"][which] = json.dumps(mutated_json(spec, draw))
        else:
            document = mutated_json(document, draw)
        changed = {**self._contents, name: json.dumps(document).encode()}
        return zip_of(plain(changed))

    def _changed_zip(self, draw: random.Random) -> bytes:
        entries = plain(self._contents)
        draw.shuffle(entries)
        for _ in range(draw.choice((1, 1, 2, 3))):
            entry = draw.choice(entries)
            sizes = {"size": draw.choice((0, 9, len(entry.data) + 1, 0xFFFFFFFF))}
            sizes["packed"] = sizes["size"]
            kind = draw.randrange(6)
            if kind == 0:
                entries.append(entry)
            elif kind == 1:
                entry.central |= {"offset": draw.choice((0, 1, 64, 0xFFFFFFFF))}
            elif kind == 2:
                entry.central |= sizes
            elif kind == 3:
                entry.local |= sizes
            elif kind == 4:
                extra = zip64_extra(*(draw.choice((0, 9, 2**40, 2**64 - 1)) for _ in range(2)))
                entry.central |= {"extra": extra, "size": 0xFFFFFFFF, "packed": 0xFFFFFFFF}
            else:
                entry.listed = not entry.listed
        prefix = draw.choice((b"", b"", b"", b"PK\3\4", b"#!/bin/sh\n"))
        end = draw.choice(({}, {}, {"count": 3}, {"comment": b"PK\5\6"}, {"start": 0xFFFFFFFF}))
        return zip_of(entries, prefix=prefix, end=end)
