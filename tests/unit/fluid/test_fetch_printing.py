from __future__ import annotations

import pytest
import torch

from sparsefleet.fluid.executor import fetch_printing
from sparsefleet.fluid.executor.fetch_printing import FetchPrinter, print_as_fluid, print_fetched

ROWS = torch.tensor([[0.25], [3.0]])
LOD = (torch.tensor([0, 1, 2]),)


def test_a_value_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    print_fetched("rows", "fc_0.tmp_0", ROWS, LOD)
    assert capsys.readouterr().out == "rows\tfc_0.tmp_0\t0.25 3\n"


def test_a_value_looks_as_in_fluid_if_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_printing, "_form", fetch_printing._Form())
    print_as_fluid()
    print_fetched("auc", "auc_0.tmp_0", torch.tensor([0.5], dtype=torch.float64), ())
    print_fetched("rows", "fc_0.tmp_0", ROWS, LOD)
    assert capsys.readouterr().out == (
        "auc\tauc_0.tmp_0\t\tlod: {}\n\tdim: 1\n\tlayout: NCHW\n\tdtype: double\n"
        "\tdata: [0.5]\n\t\n"
        "rows\tfc_0.tmp_0\t\tlod: {{0, 1, 2}}\n\tdim: 2, 1\n\tlayout: NCHW\n\tdtype: float\n"
        "\tdata: [0.25 3]\n\t\n"
    )


def test_every_third_batch_of_the_first_thread_is_printed() -> None:
    printer = FetchPrinter()
    assert [printer.is_due(3) for _ in range(7)] == [False, False, True, False, False, True, False]
