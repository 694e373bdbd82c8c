from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from tests.support.checkpoints import save, two_tables

from sparsefleet.checkpoint import Checkpoint
from sparsefleet.checkpoint.names import step_name
from sparsefleet.cli.main import main


@pytest.fixture
def series(tmp_path: Path) -> Path:
    """A full checkpoint and a delta based on it."""
    first = str(tmp_path / step_name(100))
    save(first, two_tables(), num_shards=2, step=100)
    second = str(tmp_path / step_name(200))
    save(second, two_tables(1, 60), step=200, base=first, removed={"ads": [150]})
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["checkpoint", *arguments])
    return code, capsys.readouterr().out


def test_ls_lists_a_series(series: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "ls", str(series))
    assert code == 0
    assert f"delta on ../{step_name(100)}" in text
    code, text = run(capsys, "ls", str(series), "--json")
    first, second = json.loads(text)
    assert (first["step"], first["kind"], first["rows"]) == (100, "full", 300)
    assert (second["step"], second["kind"], second["problem"]) == (200, "delta", None)
    code, text = run(capsys, "ls", str(series / step_name(100)), "--json")
    assert [listed["step"] for listed in json.loads(text)] == [100]


def test_show_tells_tables_tensors_and_checksums(
    series: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(series / step_name(200))
    code, text = run(capsys, "show", path, "--files")
    assert code == 0
    for part in (
        "delta checkpoint at step 200",
        "adagrad(lr=0.1)",
        "sum[4]",
        "mlp.weight",
        "crc32:",
    ):
        assert part in text
    code, text = run(capsys, "show", path, "--json")
    assert json.loads(text) == json.loads((series / step_name(200) / "manifest.json").read_text())


def test_verify_ends_with_1_when_something_is_damaged(
    series: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "verify", str(series)) == (
        0,
        f"{series / step_name(100)}: no damage\n{series / step_name(200)}: no damage\n",
    )
    file = next((series / step_name(200)).glob("dense-*"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert run(capsys, "verify", "--quick", str(series))[0] == 0
    code, text = run(capsys, "verify", str(series), "--json")
    assert code == 1
    whole, damaged = json.loads(text)
    assert whole["problems"] == []
    assert damaged["problems"][0]["kind"] == "CorruptFileError"
    assert str(file) in damaged["problems"][0]["message"]
    (series / step_name(100) / "manifest.json").write_text("{")
    code, text = run(capsys, "ls", str(series))
    assert code == 1
    assert "expected JSON" in text
    assert run(capsys, "verify", str(series / step_name(100)))[0] == 1


def test_diff_ends_with_1_when_two_differ(series: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = str(series / step_name(100)), str(series / step_name(200))
    code, text = run(capsys, "diff", a, b, "--json", "--keys", "2")
    assert code == 1
    ads = json.loads(text)["tables"][0]
    assert (ads["changed"], ads["only_in_a"], ads["keys"]["only_in_a"]) == (60, 1, [150])
    assert len(ads["keys"]["changed"]) == 2
    code, text = run(capsys, "diff", a, b)
    assert code == 1
    assert "ads: only in a: 150" in text
    code, text = run(capsys, "diff", a, a)
    assert code == 0
    assert "same" in text


def test_export_and_compact(
    series: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(series / step_name(200))
    target = str(tmp_path / "ads.parquet")
    code, text = run(
        capsys, "export", path, "--table", "ads", "--output", target, "--columns", "values"
    )
    assert code == 0
    assert "199 rows" in text
    assert list(pd.read_parquet(target).columns) == ["key", "values"]
    code, text = run(capsys, "compact", path, "--output", str(tmp_path / "full"), "--json")
    assert code == 0
    assert json.loads(text)["kind"] == "full"
    code, text = run(capsys, "compact", path)
    assert code == 0
    assert "full checkpoint at step 200" in text
    assert run(capsys, "diff", path, str(tmp_path / "full"))[0] == 0
    Checkpoint.open(path).verify()


def test_urls_and_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    save(f"memory://cli/{step_name(1)}", two_tables(), step=1)
    code, text = run(capsys, "ls", "memory://cli", "--storage-options", "{}", "--json")
    assert code == 0
    assert json.loads(text)[0]["path"] == f"memory://cli/{step_name(1)}"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("ls",),
        ("fly", "x"),
        ("show", "nonsense://x"),
        ("ls", "x", "--storage-options", "[]"),
        ("ls", "x", "--storage-options", "{"),
        ("diff", "x", "y", "--keys", "-1"),
        ("export", "x"),
    ],
)
def test_a_wrong_command_line_ends_with_2(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["checkpoint", *arguments])
    assert caught.value.code == 2
    assert "usage: sparsefleet checkpoint" in capsys.readouterr().err


def test_export_asks_for_a_table_and_a_known_format(
    series: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(series / step_name(100))
    for arguments in (("--output", "x.csv"), ("--table", "ads", "--output", "x.txt")):
        with pytest.raises(SystemExit) as caught:
            main(["checkpoint", "export", path, *arguments])
        assert caught.value.code == 2
    assert main(["checkpoint", "show", str(series / "nowhere")]) == 1
    assert "expected a checkpoint, found no manifest.json" in capsys.readouterr().err
