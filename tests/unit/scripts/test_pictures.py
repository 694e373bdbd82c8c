"""The pictures of the documentation are what their script draws."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[3]


def test_pictures_are_the_ones_of_the_script() -> None:
    path = ROOT / "scripts" / "draw_pictures.py"
    spec = importlib.util.spec_from_file_location("draw_pictures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, content in module.pictures().items():
        ElementTree.fromstring(content)
        kept = (ROOT / "docs" / "images" / name).read_text(encoding="utf-8")
        assert kept == content, "python scripts/draw_pictures.py"
