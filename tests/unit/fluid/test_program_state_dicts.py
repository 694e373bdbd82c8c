"""States of programs as dicts of arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.errors import CorruptFileError

L = fluid.layers


def value(name: str) -> Any:
    return np.array(fluid.global_scope().find_var(name).get_tensor())


@pytest.fixture
def main() -> Any:
    """A program with a table, trained by one step."""
    rows = L.embedding(fluid.data("ids", [None, 1], "int64"), [9, 2], is_sparse=True)
    fluid.optimizer.Adagrad(0.1).minimize(L.mean(L.square(L.fc(rows, 1) - 1.0)))
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    exe.run(feed={"ids": np.array([[1], [2], [1]])})
    return fluid.default_main_program()


def test_a_state_is_read_changed_and_set(main: Any, tmp_path: Path) -> None:
    prefix = str(tmp_path / "model")
    fluid.io.save(fluid.CompiledProgram(main), prefix)
    state = fluid.io.load_program_state(prefix)
    keys = {"fc_0.w_0", "fc_0.w_0_moment_0", "embedding_0.w_0//keys", "learning_rate_0"}
    assert keys <= set(state)
    state["fc_0.w_0"] = np.full((2, 1), 7, "float32")
    with fluid.scope_guard(fluid.Scope()):
        with pytest.warns(UserWarning, match="lost"):
            fluid.io.set_program_state(main, {**state, "lost": np.ones(1)})
        assert value("fc_0.w_0").tolist() == [[7.0], [7.0]]
        loaded = value("embedding_0.w_0")[[1, 2]]
    np.testing.assert_array_equal(loaded, value("embedding_0.w_0")[[1, 2]])
    with pytest.raises(RuntimeError, match=r"'fc_0.w_0': saved with shape \(2,\)"):
        fluid.io.set_program_state(main, {"fc_0.w_0": np.ones(2, "float32")})


def test_folders_and_files_of_other_functions_are_read(main: Any, tmp_path: Path) -> None:
    exe = fluid.Executor(fluid.CPUPlace())
    fluid.io.save_persistables(exe, tmp_path / "many", fluid.CompiledProgram(main))
    fluid.io.save_params(exe, tmp_path, main, filename="one")
    parameters = fluid.io.get_program_parameter(main)
    assert {"fc_0.w_0", "fc_0.b_0", "embedding_0.w_0"} == {found.name for found in parameters}
    whole = fluid.io.load_program_state(str(tmp_path / "many"))
    assert "learning_rate_0" in whole
    assert set(fluid.io.load_program_state(str(tmp_path / "many"), parameters)) == set(
        fluid.io.load_program_state(str(tmp_path / "one"))
    )
    kept = {found.name for found in fluid.io.get_program_persistable_vars(main)}
    assert kept == {name.partition("//")[0] for name in whole}


def test_what_is_not_there_or_a_pickle_is_refused(main: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"none\.pdparams: no such file"):
        fluid.io.load_program_state(str(tmp_path / "none"))
    (tmp_path / "bad.pdparams").write_bytes(b"\x80\x03}q\x00.")
    with pytest.raises(CorruptFileError, match="pickle"):
        fluid.load(main, str(tmp_path / "bad"))
