from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from sparsefleet.cli.main import main
from sparsefleet.data.features import Categorical, Features
from sparsefleet.errors import ConfigError, InputFileError, InputMissingError
from sparsefleet.zoo import CtrDnn
from sparsefleet.zoo.recipes import RECIPES, Recipe, Settings, find_recipe
from sparsefleet.zoo.recipes.movielens import auc_of, hits_of
from sparsefleet.zoo.recipes.recipe import DataFile, Part, Prepared, Published

ROOT = Path(__file__).resolve().parents[3]
SHARED_DATA = ROOT.parent / "shared" / "data"
FEATURES = Features(Categorical("ad"), label="click")
CONTENT = "".join(f"{ad},{ad % 2}\n" for ad in range(400)).encode()
FILE = DataFile(
    path="log/clicks.csv",
    source="https://example.com/clicks",
    md5=hashlib.md5(CONTENT).hexdigest(),
)


def prepare(directory: Path, seed: int) -> Prepared:
    rows = np.array([line.split(",") for line in FILE.lines(directory)], np.int64)
    columns = {"ad": rows[:, 0] % 40, "click": rows[:, 1].astype(np.float32)}
    part = Part(FEATURES, columns)
    return Prepared(
        part, part, lambda p, t: auc_of(p, t["click"]) | {"mean": float(p.astype(float).mean())}
    )


TINY = Recipe(
    name="tiny",
    title="clicks on even and odd ads",
    files=(FILE,),
    protocol="all examples",
    prepare=prepare,
    model=lambda tables: CtrDnn(FEATURES, hidden=(8,), tables=tables),
    loss=nn.functional.binary_cross_entropy_with_logits,
    settings=Settings(batch_size=50, epochs=10, lr=0.01),
    published=(Published(metric="auc", value=0.75, where="a paper"),),
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "clicks.csv").write_bytes(CONTENT)
    return tmp_path


def test_a_recipe_trains_and_reports_ours_beside_the_published_figure(data: Path) -> None:
    report = TINY.run(data, quiet=True)
    assert report.figures["auc"] > 0.95
    assert report.examples == 4000
    report.write(data / "out")
    again = json.loads((data / "out" / "report.json").read_text())
    assert again["figures"] == report.figures
    assert again["settings"]["batch_size"] == 50
    page = (data / "out" / "report.md").read_text()
    assert f"| auc | {report.figures['auc']:.4f} | 0.7500 | a paper |" in page


def test_a_page_shows_importance_calibration_and_slices_by_text(data: Path) -> None:
    features = Features(Categorical("site", hash_seed=3), label="click")
    texts = np.array(["ulm", "bonn"] * 100)
    part = Part(features, {"site": texts, "click": (texts == "ulm").astype(np.float32)})
    recipe = replace(
        TINY,
        prepare=lambda *_: Prepared(part, part, lambda p, t: auc_of(p, t["click"])),
        model=lambda tables: CtrDnn(features, hidden=(8,), tables=tables),
    )
    report = recipe.run(data, by_slot=True, quiet=True)
    assert report.slots is not None
    assert report.slots.importance["site"]["loss"] > 0.1
    assert {one.value for one in report.slots.slices} == {"bonn", "ulm"}
    report.write(data / "out")
    page = (data / "out" / "report.html").read_text()
    assert "<td>ulm</td>" in page
    assert "slots" not in json.loads((data / "out" / "report.json").read_text())


def test_the_same_seed_gives_the_same_figures(data: Path) -> None:
    settings = Settings(batch_size=50, epochs=1)
    first, again, other = (
        TINY.run(data, seed=seed, settings=settings, quiet=True).figures for seed in (1, 1, 2)
    )
    assert first == again != other


def test_data_may_be_gzipped_but_not_another_version(data: Path) -> None:
    path = data / FILE.path
    (data / "log" / "clicks.csv.gz").write_bytes(gzip.compress(CONTENT))
    path.unlink()
    assert FILE.read(data) == CONTENT
    path.write_bytes(b"other")
    with pytest.raises(
        InputFileError, match=r"clicks.csv: the MD5 checksum is .*expected .*example.com"
    ):
        TINY.check(data)
    path.unlink()
    (data / "log" / "clicks.csv.gz").unlink()
    with pytest.raises(
        InputMissingError, match=r"found neither this file.*https://example.com/clicks.*--data"
    ):
        TINY.check(data)
    with pytest.raises(ConfigError, match="no such directory"):
        TINY.check(data / "nowhere")


def test_damaged_data_names_the_file_and_what_to_do(data: Path) -> None:
    (data / FILE.path).unlink()
    packed = data / "log" / "clicks.csv.gz"
    for content in (gzip.compress(CONTENT)[:-20], b"no gzip"):
        packed.write_bytes(content)
        with pytest.raises(InputFileError, match=r"clicks.csv.gz: not a complete gzip"):
            TINY.check(data)
    any_file = DataFile(path="log/latin.csv", source="a friend", md5=None)
    (data / any_file.path).write_bytes("M\u00fcnchen".encode("latin-1"))
    with pytest.raises(InputFileError, match=r"latin.csv: byte 1 is not UTF-8 text; .* a friend"):
        any_file.lines(data)


def test_lines_end_only_at_newlines_and_quotes_are_part_of_tab_separated_values(
    tmp_path: Path,
) -> None:
    file = DataFile(path="books.tsv", source="a friend", md5=None)
    (tmp_path / file.path).write_bytes(b'a\x0cb\tc\r\n\n"d\x1c\te\n')
    assert file.lines(tmp_path) == ["a\x0cb\tc", "", '"d\x1c\te']
    (tmp_path / file.path).write_bytes(b"")
    assert file.lines(tmp_path) == []


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_reads_its_real_data_where_it_is_present(name: str) -> None:
    recipe = find_recipe(name)
    try:
        recipe.check(SHARED_DATA)
    except (ConfigError, InputMissingError):
        pytest.skip(f"no data of {name} in {SHARED_DATA}")
    prepared = recipe.prepare(SHARED_DATA, 0)
    assert len(prepared.train) > 500
    assert len(prepared.test) > 500


def test_a_line_of_another_form_is_named(tmp_path: Path) -> None:
    path = tmp_path / "amazon" / "ratings_Video_Games.csv"
    path.parent.mkdir()
    path.write_text("A1,B1,5.0,1390176000\nA2,B1,5.0\n")
    with pytest.raises(InputFileError, match=r"Games.csv, line 2: expected a user.*'A2,B1,5.0'"):
        find_recipe("games_sasrec").prepare(tmp_path, 0)


@pytest.mark.parametrize("name", RECIPES)
def test_each_recipe_names_data_protocol_and_model(name: str) -> None:
    recipe = find_recipe(name)
    assert recipe.name == name
    assert all(file.source and file.path for file in recipe.files)
    assert recipe.protocol
    assert isinstance(recipe.model(recipe.settings.tables(seed=0)), nn.Module)


def test_hits_count_ties_against_us() -> None:
    scores = np.array([[0.5, 0.5, 0.1], [0.9, 0.1, 0.2], [0.1, 0.2, 0.3]])
    assert hits_of(scores, 1)["hit_rate@1"] == pytest.approx(1 / 3)
    assert hits_of(scores, 2)["ndcg@2"] == pytest.approx((1 + 1 / np.log2(3)) / 3)
    assert hits_of(scores, 2)["auc"] == pytest.approx(0.5)


def test_the_command_lists_shows_and_refuses(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["recipe", "ls"]) == 0
    assert "census_wide_deep" in capsys.readouterr().out
    assert main(["recipe", "show", "census_wide_deep"]) == 0
    shown = capsys.readouterr().out
    assert "published: auc 0.9058" in shown
    assert "archive.ics.uci.edu" in shown
    assert main(["recipe", "run", "census_wide_deep", "--data", str(tmp_path)]) == 1
    assert "adult/adult.data: found neither this file" in capsys.readouterr().err
    assert main(["recipe", "show", "census"]) == 1
    assert "no recipe is named 'census'; the names are avazu_deepfm," in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epochs", "0"], "--epochs must be an int in 1..2147483647, got 0"),
        (["--batch-size", "-5"], "--batch-size must be an int in 1..2147483647, got -5"),
        (["--mode", "asinc"], "got 'asinc'; did you mean 'async'?"),
        (["--seed", "-1"], "seed must be an int >= 0, got -1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("job", [[], ["--servers", "1", "--workers", "2"]], ids=["alone", "job"])
def test_wrong_settings_are_refused_before_anything_is_read_or_started(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: list[str],
    message: str,
    job: list[str],
) -> None:
    command = ["recipe", "run", "census_wide_deep", "--data", str(tmp_path), *words, *job]
    assert main(command) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [{"lr": 0.0}, {"table_lr": -1.0}, {"table_std": float("nan")}])
def test_settings_that_cannot_train_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=f"Settings.{next(iter(wrong))} must be a finite number"):
        Settings(**wrong)  # type: ignore[arg-type]


def test_training_a_recipe_does_not_load_torchs_compiler(tmp_path: Path) -> None:
    path = tmp_path / FILE.path
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    script = (
        "import sys; from pathlib import Path; from tests.unit.zoo.test_recipes import TINY\n"
        f"TINY.run(Path({str(tmp_path)!r}), seed=0, quiet=True)\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
