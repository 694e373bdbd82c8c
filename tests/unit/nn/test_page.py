from __future__ import annotations

import re
from pathlib import Path

import torch

PAGE = Path(__file__).parents[3] / "docs" / "embeddings.md"


def test_code_on_the_page_runs() -> None:
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert list(names["tables"]) == ["words"]
    assert names["score"].shape == (3, 1)
    arguments = names["slots"], names["tags"]
    assert torch.equal(names["other"].eval()(*arguments), names["score"])
