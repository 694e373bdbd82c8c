"""Modules and names by which Fluid programs reach layers."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from sparsefleet import fluid
from sparsefleet.fluid.framework import ProgramError

L = fluid.layers

NAMES = [
    "contrib.layers.ctr_metric_bundle",
    "contrib.layers.index_sample",
    "contrib.layers.shuffle_batch",
    "contrib.layers.tdm_child",
    "contrib.layers.tdm_sampler",
    "contrib.memory_usage",
    "contrib.mixed_precision.decorate",
    "contrib.mixed_precision.decorator.decorate",
    "core.op_proto_and_checker_maker.OpRole",
    "core.op_proto_and_checker_maker.kOpRoleVarAttrName",
    "device_guard",
    "framework.cuda_places",
    "framework.switch_main_program",
    "initializer.NumpyArray",
    "layers.collective._c_allgather",
    "layers.collective._c_allreduce",
    "layers.control_flow.While",
    "layers.device.get_places",
    "layers.learning_rate_scheduler",
    "layers.loss.nce",
    "layers.nn.fc",
    "layers.ops.sigmoid",
    "layers.sequence_lod.sequence_pool",
    "layers.tensor.concat",
    "nets.img_conv_group",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_public_programs_use_is_there(name: str) -> None:
    found: Any = fluid
    for part in name.split("."):
        found = getattr(found, part)
    assert found is not None


@pytest.mark.parametrize("module", ["nn", "tensor", "ops", "loss", "metric_op", "sequence_lod"])
def test_a_module_of_fluid_has_the_layers(module: str) -> None:
    found = importlib.import_module(f"sparsefleet.fluid.layers.{module}")
    assert found.fc is L.fc
    assert "concat" in found.__all__
    with pytest.raises(AttributeError, match=r"fluid.layers.no_such_layer is not supported"):
        found.no_such_layer  # noqa: B018


def test_layers_for_ranks_give_their_input_when_there_is_one() -> None:
    x = fluid.data("x", [None, 2])
    total = L.collective._c_allreduce(x)
    rows = L.collective._c_allgather(x, nranks=1)
    array = np.ones((3, 2), "float32")
    found = fluid.Executor().run(feed={"x": array}, fetch_list=[total, rows])
    assert all((each == array).all() for each in found)
    both = L.collective._c_allgather(x, nranks=2)
    with pytest.raises(ProgramError, match="nranks=2, but this job has 1"):
        fluid.Executor().run(feed={"x": array}, fetch_list=[both])
    with pytest.raises(ProgramError, match="reduce_type must be sum, max, min or prod"):
        L.collective._c_allreduce(x, reduce_type="mean")
    with pytest.raises(ProgramError, match="3 rows, which cannot be divided evenly"):
        L.collective._c_reducescatter(fluid.data("odd", [3, 2]), nranks=2)


def test_a_layer_that_a_user_writes_with_the_helper() -> None:
    def doubled(
        input: Any,  # noqa: A002
        param_attr: Any = None,
        bias_attr: Any = None,
        act: Any = None,
        name: Any = None,
    ) -> Any:
        helper = fluid.layer_helper.LayerHelper("doubled", **locals())
        dtype = helper.input_dtype()
        weight = helper.create_parameter(attr=helper.param_attr, shape=[3, 2], dtype=dtype)
        out = helper.create_variable_for_type_inference(dtype)
        inputs = {"X": helper.input(), "Y": weight}
        helper.append_op(type="mul", inputs=inputs, outputs={"Out": out}, attrs={})
        return helper.append_activation(helper.append_bias_op(out))

    out = doubled(fluid.data("x", [None, 3]), act="relu", bias_attr=fluid.ParamAttr(name="shift"))
    assert out.name == "doubled_0.tmp_2"
    assert out.shape == (-1, 2)
    names = [parameter.name for parameter in fluid.default_main_program().all_parameters()]
    assert names == ["doubled_0.w_0", "shift"]


def test_flags_can_be_set_and_read() -> None:
    fluid.set_flags({"FLAGS_benchmark": True})
    assert fluid.get_flags(["FLAGS_benchmark"]) == {"FLAGS_benchmark": True}
    with pytest.raises(ValueError, match="must start with FLAGS_"):
        fluid.set_flags({"check": 1})


def test_a_device_is_cpu_or_gpu() -> None:
    with fluid.device_guard("gpu:0"):
        L.fill_constant([1], "float32", 1.0)
    with pytest.raises(ProgramError, match="'cpu', 'gpu' or None, got 'tpu'"):
        with fluid.device_guard("tpu"):
            pass


def test_the_imperative_mode_is_off_until_somebody_asks() -> None:
    assert not fluid.in_dygraph_mode()
    fluid.enable_dygraph()
    assert fluid.in_dygraph_mode()
    fluid.disable_dygraph()
    assert not fluid.in_dygraph_mode()


def test_switching_programs_gives_the_one_before() -> None:
    other, old = fluid.Program(), fluid.default_main_program()
    assert fluid.framework.switch_main_program(other) is old
    assert fluid.default_main_program() is other
    assert fluid.framework.switch_main_program(old) is other


def test_numbers_on_the_diagonal_of_random_first_values() -> None:
    first = fluid.initializer.Uniform(0.0, 1.0, 0, 2, 3, diag_val=7.0)
    L.create_parameter([3, 2], "float32", "w", fluid.ParamAttr(initializer=first))
    exe = fluid.Executor()
    exe.run(fluid.default_startup_program())
    flat = np.array(fluid.global_scope().find_var("w").get_tensor()).ravel()
    assert np.flatnonzero(flat == 7.0).tolist() == [0, 4]
