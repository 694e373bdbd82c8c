"""Errors name the user's line, what was given and what was expected."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.fluid.framework import Operator, ProgramError

L = fluid.layers


def here() -> int:
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_an_unknown_argument_of_a_layer() -> None:
    x = fluid.data("x", [None, 4])
    with pytest.raises(TypeError, match=re.escape(f"{__file__}:{here() + 1}: layers.fc")) as error:
        L.fc(x, 3, activation="relu")  # type: ignore[call-arg]
    assert "'activation'" in str(error.value)
    assert "num_flatten_dims, param_attr, bias_attr, act, name" in str(error.value)


def test_shapes_that_do_not_fit() -> None:
    x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 5])
    with pytest.raises(ProgramError, match=re.escape(f"{__file__}:{here() + 1}: ")) as error:
        L.elementwise_add(x, y)
    assert "x [-1, 4], y [-1, 5]" in str(error.value)


def test_something_that_is_not_a_variable() -> None:
    with pytest.raises(TypeError, match=r"x must be a Variable in the program, got 3"):
        L.relu(3)


def test_shapes_that_do_not_fit_only_at_run_time() -> None:
    x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 4])
    total = L.elementwise_add(x, y)
    line = here() - 1
    feed = {"x": np.ones((2, 4), "float32"), "y": np.ones((3, 4), "float32")}
    with pytest.raises(ProgramError, match=f":{line}: elementwise_add: .*\\(2, 4\\), \\(3, 4\\)"):
        fluid.Executor().run(feed=feed, fetch_list=[total])


def test_an_operator_that_is_not_supported() -> None:
    block = fluid.default_main_program().global_block()
    with pytest.raises(ProgramError, match="unpool: operator not supported"):
        block.append_op("unpool", {}, {})
    block.ops.append(Operator("unpool", {}, {}))
    with pytest.raises(ProgramError, match="unpool"):
        fluid.Executor().run(fetch_list=["x"])


def test_names_of_fluid_that_are_not_here() -> None:
    for module, name in ((fluid, "ParallelWorld"), (L, "unpool"), (fluid.optimizer, "Dpsgd")):
        with pytest.raises(AttributeError, match=f"{name} is not supported.*coming_from_fluid"):
            getattr(module, name)


def test_a_layer_on_sequences_without_sequences() -> None:
    x = fluid.data("x", [None, 4], lod_level=1)
    pooled = L.sequence_pool(x, "sum")
    with pytest.raises(ProgramError, match="sequence_pool: .* has no LoD"):
        fluid.Executor().run(feed={"x": np.ones((2, 4), "float32")}, fetch_list=[pooled])


def test_a_loss_that_is_not_a_scalar() -> None:
    out = L.fc(fluid.data("x", [None, 4]), 3)
    with pytest.raises(ProgramError, match=r"must have shape \[1\], got \[-1, 3\]"):
        fluid.optimizer.SGD(0.1).minimize(out)


def test_nothing_to_train() -> None:
    with pytest.warns(UserWarning, match="does not depend on any parameter"):
        fluid.optimizer.SGD(0.1).minimize(L.mean(fluid.data("x", [None, 4])))


def _runs() -> dict[str, tuple[Callable[[], object], type[Exception], str]]:
    exe = fluid.Executor()
    x = np.ones((2, 4), "float32")
    return {
        "not fed": (lambda: exe.run(fetch_list=["out"]), ProgramError, "'x', which was not fed"),
        "shape": (
            lambda: exe.run(feed={"x": x[:, :3]}),
            ValueError,
            r"shape \(2, 3\), expected \(-1, 4\)",
        ),
        "dtype": (
            lambda: exe.run(feed={"x": x.astype("float64")}),
            ValueError,
            "dtype float64, expected float32",
        ),
        "list": (lambda: exe.run(feed={"x": [[1.0]]}), RuntimeError, "LoDTensor"),
        "no dict": (lambda: exe.run(feed=3), TypeError, "must be a dict"),
        "unknown fetch": (
            lambda: exe.run(feed={"x": x}, fetch_list=["lost"]),
            ProgramError,
            "no variable 'lost'",
        ),
        "fetch of a number": (lambda: exe.run(fetch_list=[3]), TypeError, "got 3"),
        "uninitialised": (
            lambda: exe.run(feed={"x": x}, fetch_list=["out"]),
            ProgramError,
            "'w' has no value.*startup program",
        ),
        "no program": (lambda: exe.run(3), TypeError, "fluid.Program"),  # type: ignore[arg-type]
    }


@pytest.mark.parametrize("what", _runs())
def test_runs_that_cannot_be(what: str) -> None:
    x = fluid.data("x", [None, 4])
    L.assign(L.fc(x, 2, param_attr="w"), fluid.layers.create_tensor("float32", name="out"))
    run, kind, message = _runs()[what]
    with pytest.raises(kind, match=message):
        run()


BAD_LAYERS: dict[str, tuple[Callable[[], object], str]] = {
    "size of a text": (lambda: L.fc(fluid.data("x", [None, 4]), "3"), r"\[4, '3'\]"),  # type: ignore[arg-type]
    "no variable": (lambda: L.fc(3, 2), "layers.fc: "),  # type: ignore[arg-type]
    "size of a number": (
        lambda: L.embedding(fluid.data("ids", [None, 1], "int64"), 10),  # type: ignore[arg-type]
        "layers.embedding: ",
    ),
    "dtype": (lambda: L.cast(fluid.data("x", [None, 4]), "float31"), "layers.cast: .*'float31'"),
    "shape": (lambda: fluid.data("x", 3), "'x': shape must be a list or tuple, got 3"),  # type: ignore[arg-type]
    "attr": (lambda: L.fc(fluid.data("x", [None, 4]), 2, param_attr=3), "layers.fc: param_attr"),
}


@pytest.mark.parametrize("what", BAD_LAYERS)
def test_wrong_arguments_are_reported_at_the_users_line(what: str) -> None:
    layer, message = BAD_LAYERS[what]
    with pytest.raises((TypeError, ValueError), match=rf"^{re.escape(__file__)}:\d+: .*{message}"):
        layer()


def test_errors_of_the_users_functions_are_their_own() -> None:
    def body(i: object) -> object:
        raise KeyError("mine")

    begin = L.fill_constant([1], "int64", 0)
    with pytest.raises(KeyError, match="^'mine'$"):
        L.while_loop(lambda i: L.less_than(i, begin), body, [begin])


@pytest.mark.parametrize(
    "what", ["shape", "dtype", "list", "text", "unknown fetch", "uninitialised"]
)
def test_wrong_runs_are_reported_at_the_users_line(what: str) -> None:
    out = L.fc(fluid.data("x", [None, 4]), 2, param_attr="w")
    layer_line = here() - 1
    x = np.ones((2, 4), "float32")
    feeds = {"shape": x[:, :3], "dtype": x.astype("int64"), "list": [[1.0]], "text": "a"}
    fetch = ["lost"] if what == "unknown fetch" else [out]
    run_line = here() + 2
    with pytest.raises((TypeError, ValueError, RuntimeError)) as error:
        fluid.Executor().run(feed={"x": feeds.get(what, x)}, fetch_list=fetch)
    line = layer_line if what == "uninitialised" else run_line
    assert str(error.value).startswith(f"{__file__}:{line}: ")


@pytest.mark.parametrize(
    ("loss", "dtype"),
    [
        (lambda x, y: L.cross_entropy(L.softmax(L.concat([x, x], 1)), y), "int64"),
        (lambda x, y: L.softmax_with_cross_entropy(L.concat([x, x], 1), y), "int64"),
        (lambda x, y: L.bpr_loss(L.concat([x, x], 1), y), "int64"),
        (lambda x, y: L.accuracy(L.concat([x, x], 1), y), "int64"),
        (lambda x, y: L.log_loss(x, y), "float32"),
        (lambda x, y: L.huber_loss(x, y, 1.0), "float32"),
        (lambda x, y: L.smooth_l1(x, y), "float32"),
        (lambda x, y: L.kldiv_loss(x, y, "mean"), "float32"),
        (lambda x, y: L.rank_loss(x, x, y), "float32"),
        (lambda x, y: L.margin_rank_loss(x, x, y), "float32"),
    ],
)
def test_a_loss_does_not_spread_fewer_labels_over_its_rows(
    loss: Callable[..., fluid.Variable], dtype: str
) -> None:
    x, y = fluid.data("x", [None, 1]), fluid.data("y", [None, 1], dtype)
    found = loss(x, y)
    feed = {"x": np.full((2, 1), 0.5, "float32"), "y": np.zeros((1, 1), dtype)}
    with pytest.raises(ProgramError, match=r"must|2 rows and 1 labels"):
        fluid.Executor().run(feed=feed, fetch_list=[found])
    feed["y"] = np.zeros((2, 1), dtype)
    fluid.Executor().run(feed=feed, fetch_list=[found])


def test_labels_of_floats_are_refused_where_classes_are_wanted() -> None:
    x, y = fluid.data("x", [None, 3]), fluid.data("y", [None, 1])
    loss = L.cross_entropy(L.softmax(x), y)
    feed = {"x": np.ones((2, 3), "float32"), "y": np.zeros((2, 1), "float32")}
    with pytest.raises(ProgramError, match=r"cross_entropy: .* must be int64, got .*; cast them"):
        fluid.Executor().run(feed=feed, fetch_list=[loss])


def test_what_fc_cannot_multiply() -> None:
    with pytest.raises(TypeError, match="input must be a Variable in the program, got array"):
        L.fc(np.ones((2, 4), "float32"), 3)
    with pytest.raises(TypeError, match="input must have the dtype float16 .* got int64"):
        L.fc(fluid.data("ids", [None, 4], "int64"), 3)


def test_the_size_of_an_embedding_is_a_pair() -> None:
    with pytest.raises(ProgramError, match=r"size must be \[ids, width\], got 10"):
        L.embedding(fluid.data("ids", [None, 1], "int64"), 10)  # type: ignore[arg-type]


def test_names_that_are_near_and_feeds_that_were_given_are_reported() -> None:
    x, y = fluid.data("x", [None, 4]), fluid.data("y", [None, 4])
    total = L.mean(x + y)
    feed = {"x": np.ones((2, 4), "float32")}
    with pytest.raises(ProgramError, match="needs 'y', which was not fed; fed were x"):
        fluid.Executor().run(feed=feed, fetch_list=[total])
    with pytest.raises(ProgramError, match="no variable 'maen_0.*similar names: mean_0"):
        fluid.Executor().run(feed=feed, fetch_list=["maen_0.tmp_0"])
