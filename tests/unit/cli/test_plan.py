"""`sparsefleet plan` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparsefleet.cli import plan
from sparsefleet.cli.main import main
from sparsefleet.planning.mode_trial import ModeResult

QUICK = ("--rows", "1e7", "--dim", "8", "--examples-per-second", "5e3", "--modes", "half_async,geo")


def test_a_plan_shows_memory_modes_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *QUICK, "--price", "0.5"]) == 0
    shown = capsys.readouterr().out
    assert "of adagrad" in shown
    assert "geo needs plain SGD, got adagrad" in shown
    assert "use half_async: 1 worker on 1 machine, 1 server on 1 more" in shown
    assert "1.00/h" in shown


def test_a_plan_as_json_uses_the_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "part-0"
    path.write_text("".join(f"3 {n} {n} 5\n" for n in range(2000)))
    assert main(["plan", *QUICK, "--sample", str(path), "--batch", "100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["sample"]["ids_per_example"] == 3.0
    assert found["step"]["keys"] == pytest.approx(101, abs=1)
    assert found["recommended"] == "half_async"
    assert found["machine"]["cpu"] == "AMD EPYC"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 1, "give --rows and --dim"),
        (["--calibrate", "/none/here.json"], 1, "'/none/here.json': /none is missing"),
        (["--calibrate", "."], 1, "--calibrate '.': a directory; give a file"),
        (["--rows", "-5", "--dim", "8"], 2, "argument --rows: expected a number >= 0, got '-5'"),
        (["--rows", "0", "--dim", "8"], 2, "argument --rows: expected a number > 0"),
        (["--rows", "many", "--dim", "8"], 2, "expected a number such as 2e9, got 'many'"),
        (["--rows", "1e6", "--dim", "0"], 2, "--dim: expected a whole number >= 1"),
        (["--rows", "1e6", "--dim", "8", "--optimizer", "adagrat"], 1, "did you mean 'adagrad'"),
        (["--rows", "1e6", "--dim", "8", "--sample", "no-such-file"], 1, "no-such-file"),
        (["--rows", "1e6", "--dim", "8", "--machine", "no-such"], 1, "is neither a file nor one"),
        (["--rows", "1e6", "--dim", "8", "--modes", "fast"], 1, "got 'fast'"),
        (["--try"], 1, "--try needs a script"),
        (["--try", "no-such.py"], 1, "no such file"),
        (["--modes", "fast", "--try", __file__], 1, "got 'fast'"),
    ],
)
def test_wrong_input_is_named(
    words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        ended = main(["plan", *words])
    except SystemExit as error:
        ended = int(error.code or 0)
    assert ended == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("auc", "is_held_out", "text"),
    [
        (0.7, True, "AUC: on held-out data after this time."),
        (0.7, False, "AUC: on the last training batches after this time."),
        (None, False, "AUC: not measured, which needs labels of 0 and 1."),
    ],
)
def test_a_trial_says_what_its_auc_is_of(auc: float | None, is_held_out: bool, text: str) -> None:
    result = ModeResult(mode="async", examples=1000, loss=0.5, auc=auc, is_held_out=is_held_out)
    assert text in "\n".join(plan._trial_lines([result], "async", []))
