"""fluid.save and fluid.load."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sparsefleet import fluid

L = fluid.layers
IDS = np.array([3, 5, 7])


def scores(*, is_sparse: bool, train: bool) -> fluid.Variable:
    ids = fluid.data("ids", [None], "int64")
    rows = fluid.embedding(ids, [20, 4], is_sparse=is_sparse, param_attr="table")
    score = L.fc(rows, 1)
    if train:
        fluid.optimizer.Adam(0.1).minimize(L.mean(score))
    return score


def trained(steps: int = 3) -> fluid.Variable:
    score = scores(is_sparse=True, train=True)
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    for _ in range(steps):
        exe.run(feed={"ids": IDS}, fetch_list=[score])
    return score


def run_for_test(score: fluid.Variable, program: fluid.Program) -> list[float]:
    test = program.clone(for_test=True)
    (found,) = fluid.Executor().run(test, feed={"ids": IDS}, fetch_list=[score])
    return found[:, 0].tolist()


def test_training_resumes_where_it_was_saved(tmp_path: Path) -> None:
    score, program, exe = trained(), fluid.default_main_program(), fluid.Executor()
    fluid.save(program, str(tmp_path / "new" / "model"))
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {"model.pdparams", "model.pdopt", "model.pdmodel"}
    expected = [exe.run(feed={"ids": IDS}, fetch_list=[score])[0].tolist() for _ in range(3)]
    with fluid.scope_guard(fluid.Scope()):
        fluid.load(program, str(tmp_path / "new" / "model"), exe)
        found = [exe.run(feed={"ids": IDS}, fetch_list=[score])[0].tolist() for _ in range(3)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("is_sparse", [True, False])
def test_another_program_infers_without_a_start(is_sparse: bool, tmp_path: Path) -> None:
    score, path = trained(), str(tmp_path / "model")
    expected = run_for_test(score, fluid.default_main_program())
    fluid.save(fluid.default_main_program(), path)
    infer = fluid.Program()
    with fluid.program_guard(infer, fluid.Program()), fluid.unique_name.guard():
        again = scores(is_sparse=is_sparse, train=False)
    with fluid.scope_guard(fluid.Scope()):
        fluid.load(infer, path)
        assert run_for_test(again, infer) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("filename", [None, "all"])
def test_files_of_save_persistables_are_loaded_too(filename: str | None, tmp_path: Path) -> None:
    score, program = trained(), fluid.default_main_program()
    expected = run_for_test(score, program)
    fluid.io.save_persistables(fluid.Executor(), tmp_path, program, filename)
    with fluid.scope_guard(fluid.Scope()):
        fluid.load(program, str(tmp_path / filename if filename else tmp_path))
        assert run_for_test(score, program) == pytest.approx(expected, rel=1e-6)


def test_missing_files_and_prefixes_are_named(tmp_path: Path) -> None:
    trained(0)
    with pytest.raises(RuntimeError, match="nothing.pdparams: no such file"):
        fluid.load(fluid.default_main_program(), str(tmp_path / "nothing"))
    with pytest.raises(AssertionError, match="must be folder/prefix"):
        fluid.io.save(fluid.default_main_program(), f"{tmp_path}/")


@pytest.mark.parametrize("ending", [".pdparams", ".pdopt", ".pdmodel"])
def test_any_of_the_saved_files_stands_for_all(ending: str, tmp_path: Path) -> None:
    score, program = trained(), fluid.default_main_program()
    fluid.save(program, str(tmp_path / "model"))
    expected = run_for_test(score, program)
    with fluid.scope_guard(fluid.Scope()):
        fluid.load(program, str(tmp_path / f"model{ending}"), fluid.Executor())
        assert run_for_test(score, program) == expected
    names = set(fluid.load_program_state(str(tmp_path / f"model{ending}")))
    assert names == set(fluid.load_program_state(str(tmp_path / "model")))
