"""Variables and inference models in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.errors import CorruptFileError

L = fluid.layers


class Trained:
    """A small network with a table, after some steps of Adagrad."""

    def __init__(self) -> None:
        ids, y = fluid.data("ids", [None], "int64"), fluid.data("y", [None, 1])
        rows = fluid.embedding(ids, [10**9, 4], is_sparse=True, param_attr="table")
        self.predict = L.fc(rows, 1, act="sigmoid")
        self.loss = L.mean(L.log_loss(self.predict, y))
        fluid.optimizer.Adagrad(0.1).minimize(self.loss)
        self.exe = fluid.Executor()
        self.exe.run(fluid.default_startup_program())
        self.feed = {"ids": np.array([3, 5, 10**8]), "y": np.array([[1], [0], [1]], "float32")}
        self.train(5)

    def train(self, steps: int) -> list[float]:
        return [
            self.exe.run(feed=self.feed, fetch_list=[self.loss])[0].item() for _ in range(steps)
        ]


@pytest.mark.parametrize("filename", [None, "all"])
def test_training_resumes_where_it_was_saved(filename: str | None, tmp_path: Path) -> None:
    trained = Trained()
    fluid.io.save_persistables(trained.exe, tmp_path, filename=filename)
    expected = trained.train(3)
    with fluid.scope_guard(fluid.Scope()):
        trained.exe.run(fluid.default_startup_program())
        fluid.io.load_persistables(trained.exe, tmp_path, filename=filename)
        assert trained.train(3) == pytest.approx(expected, abs=1e-7)
    names = {path.name for path in tmp_path.iterdir()}
    kept = {"fc_0.b_0", "fc_0.b_0_moment_0", "fc_0.w_0", "fc_0.w_0_moment_0", "learning_rate_0"}
    assert names == ({"all"} if filename else kept | {"table"})


def test_parameters_alone_and_bytes() -> None:
    trained = Trained()
    content = fluid.io.save_params(trained.exe, None)
    assert isinstance(content, bytes)
    assert len(content) > 100


def test_an_inference_model_predicts_the_same_elsewhere(tmp_path: Path) -> None:
    trained = Trained()
    expected = trained.exe.run(
        fluid.default_main_program().clone(for_test=True), trained.feed, [trained.predict]
    )
    names = fluid.io.save_inference_model(tmp_path, ["ids"], [trained.predict], trained.exe)
    assert names == ["save_infer_model/scale_0.tmp_0"]
    assert {path.name for path in tmp_path.iterdir()} == {
        "__model__",
        "fc_0.b_0",
        "fc_0.w_0",
        "table",
    }
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor()
        program, feeds, fetches = fluid.io.load_inference_model(tmp_path, exe)
        found = exe.run(program, {feeds[0]: trained.feed["ids"]}, fetches)
    np.testing.assert_array_equal(found, expected)


def _mistakes(trained: Trained, folder: Path) -> dict[str, tuple[Any, type[Exception], str]]:
    io, exe, predict = fluid.io, trained.exe, trained.predict
    return {
        "missing": (lambda: io.load_persistables(exe, folder), RuntimeError, "no such file"),
        "no folder": (
            lambda: io.load_inference_model(folder / "lost", exe),
            ValueError,
            "no such file",
        ),
        "feeds": (
            lambda: io.save_inference_model(folder, [predict], [predict], exe),
            ValueError,
            "must be names",
        ),
        "targets": (
            lambda: io.save_inference_model(folder, ["ids"], [], exe),
            ValueError,
            "must be one or more variables",
        ),
        "out of the folder": (
            lambda: io.save_persistables(exe, folder, filename="../x"),
            ValueError,
            "points outside",
        ),
    }


@pytest.mark.parametrize("what", ["missing", "no folder", "feeds", "targets", "out of the folder"])
def test_what_cannot_be_saved_or_loaded(what: str, tmp_path: Path) -> None:
    call, kind, message = _mistakes(Trained(), tmp_path)[what]
    with pytest.raises(kind, match=message):
        call()


def test_files_that_do_not_fit_change_nothing(tmp_path: Path) -> None:
    trained = Trained()
    fluid.io.save_persistables(trained.exe, tmp_path)
    before = np.array(fluid.global_scope().find_var("fc_0.b_0").get_tensor())
    trained.train(1)
    after = np.array(fluid.global_scope().find_var("fc_0.b_0").get_tensor())
    assert (before != after).all()
    good = (tmp_path / "table").read_bytes()
    (tmp_path / "table").write_bytes(good[: len(good) // 2])
    with pytest.raises(CorruptFileError, match="table"):
        fluid.io.load_persistables(trained.exe, tmp_path)
    (tmp_path / "table").write_bytes((tmp_path / "fc_0.w_0").read_bytes())
    with pytest.raises(RuntimeError, match="expected a saved value for variable 'table'"):
        fluid.io.load_persistables(trained.exe, tmp_path)
    np.testing.assert_array_equal(
        np.array(fluid.global_scope().find_var("fc_0.b_0").get_tensor()), after
    )


def test_a_model_that_is_not_for_deployment_keeps_the_program_that_trains(tmp_path: Path) -> None:
    trained = Trained()
    assert not fluid.io.save_inference_model(
        tmp_path, [], [], trained.exe, export_for_deployment=False
    )
    wanted = trained.train(2)
    saved = (tmp_path / "__model__.main_program").read_bytes()
    with fluid.scope_guard(fluid.Scope()):
        trained.exe.run(fluid.default_startup_program())
        program = fluid.Program.parse_from_string(saved)
        fluid.io.load_persistables(trained.exe, tmp_path, program)
        found = [trained.exe.run(program, trained.feed, [trained.loss.name])[0] for _ in wanted]
    np.testing.assert_allclose(np.concatenate(found), wanted, rtol=1e-6)
