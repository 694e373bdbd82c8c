from __future__ import annotations

import torch
from tests.support.page import run_page


def test_code_on_the_page_runs() -> None:
    names = run_page("embeddings.md")
    assert list(names["tables"]) == ["words"]
    assert names["score"].shape == (3, 1)
    arguments = names["slots"], names["tags"]
    assert torch.equal(names["other"].eval()(*arguments), names["score"])
