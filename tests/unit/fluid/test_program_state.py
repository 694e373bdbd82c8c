"""Programs and their variables under one prefix."""

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
def trained() -> tuple[Any, Any, dict[str, Any]]:
    ids = fluid.data("ids", [None, 1], "int64")
    rows = L.embedding(ids, [9, 2], is_sparse=True, param_attr="table")
    loss = L.mean(L.square(L.fc(rows, 1) - 1.0))
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())
    feed = {"ids": np.array([[1], [2], [1]])}
    exe.run(feed=feed)
    return exe, loss, feed


def test_training_goes_on_as_if_it_had_not_stopped(trained: Any, tmp_path: Path) -> None:
    exe, loss, feed = trained
    prefix = str(tmp_path / "models" / "step")
    main = fluid.default_main_program()
    fluid.save(main, prefix)
    names = sorted(path.name for path in (tmp_path / "models").iterdir())
    assert names == ["step.pdmodel", "step.pdopt", "step.pdparams"]
    wanted = [exe.run(feed=feed, fetch_list=[loss])[0] for _ in range(2)]
    for target in (main, fluid.CompiledProgram(main)):
        with fluid.scope_guard(fluid.Scope()):
            fluid.load(target, prefix, exe)
            found = [exe.run(feed=feed, fetch_list=[loss])[0] for _ in range(2)]
        assert found == wanted
    model = fluid.Program.parse_from_string(Path(prefix + ".pdmodel").read_bytes())
    assert [op.type for op in model.global_block().ops] == [
        op.type for op in main.global_block().ops
    ]


def test_a_state_is_read_changed_and_set(trained: Any, tmp_path: Path) -> None:
    prefix = str(tmp_path / "model")
    main = fluid.default_main_program()
    fluid.io.save(main, prefix)
    state = fluid.io.load_program_state(prefix)
    assert set(state) >= {"fc_0.w_0", "fc_0.w_0_moment_0", "table//keys", "learning_rate_0"}
    state["fc_0.w_0"] = np.full((2, 1), 7, "float32")
    with fluid.scope_guard(fluid.Scope()):
        with pytest.warns(UserWarning, match="lost"):
            fluid.io.set_program_state(main, {**state, "lost": np.ones(1)})
        assert value("fc_0.w_0").tolist() == [[7.0], [7.0]]
        loaded = value("table")[[1, 2]]
    np.testing.assert_array_equal(loaded, value("table")[[1, 2]])
    with pytest.raises(RuntimeError, match=r"'fc_0.w_0': saved with shape \(2,\)"):
        fluid.io.set_program_state(main, {"fc_0.w_0": np.ones(2, "float32")})


def test_folders_and_files_of_other_functions_are_read(trained: Any, tmp_path: Path) -> None:
    exe = trained[0]
    main = fluid.default_main_program()
    fluid.io.save_persistables(exe, tmp_path / "many", fluid.CompiledProgram(main))
    fluid.io.save_params(exe, tmp_path, main, filename="one")
    wanted = value("fc_0.w_0")
    parameters = fluid.io.get_program_parameter(main)
    for given, variables in ((tmp_path / "many", None), (tmp_path / "one", parameters)):
        with fluid.scope_guard(fluid.Scope()):
            fluid.load(main, str(given), exe, variables)
            np.testing.assert_array_equal(value("fc_0.w_0"), wanted)
    assert {v.name for v in fluid.io.get_program_persistable_vars(main)} > {
        v.name for v in parameters
    }
    with pytest.raises(ValueError, match="give var_list"):
        fluid.load(main, str(tmp_path / "one"))


def test_what_is_not_there_or_is_broken_is_told(trained: Any, tmp_path: Path) -> None:
    main = fluid.default_main_program()
    with pytest.raises(AssertionError, match="folder/prefix"):
        fluid.save(main, f"{tmp_path}/")
    with pytest.raises(FileNotFoundError, match=r"none\.pdparams: no such file"):
        fluid.load(main, str(tmp_path / "none"))
    (tmp_path / "bad.pdparams").write_bytes(b"\x80\x03}q\x00.")
    with pytest.raises(CorruptFileError, match="pickle"):
        fluid.load(main, str(tmp_path / "bad"))
    fluid.save(main, str(tmp_path / "model"))
    (tmp_path / "model.pdopt").unlink()
    with pytest.raises(RuntimeError, match=r"nothing is saved for .*learning_rate_0"):
        fluid.load(main, str(tmp_path / "model"))
