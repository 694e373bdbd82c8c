"""Fluid's names and module paths: where they are here, and errors for those not supported.

Programs import `fluid.clip` or `fluid.incubate.fleet.base.role_maker`; the code lives in folders
named after what it does. One finder maps the former to the latter.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from sparsefleet._lazy import lazy_names

__all__ = ["AliasLoader", "by_name", "known_names", "paths", "provide_paths", "unknown_names"]


def by_name(names: Mapping[str, str]) -> dict[str, str]:
    """Return a dict from name to module, given the names in each module, separated by spaces.

    >>> by_name({"math": "floor ceil"})
    {'floor': 'math', 'ceil': 'math'}
    """
    return {name: module for module, listed in names.items() for name in listed.split()}


_INSTEAD = {
    "incubate.fleet.base.role_maker.MPISymetricRoleMaker": (
        "processes are started without MPI; use PaddleCloudRoleMaker or GeneralRoleMaker"
    ),
    "load_op_library": "Fluid's C++ operators cannot be loaded; use layers.py_func",
    "optimizer.Dpsgd": "noisy updates are not supported; use SGD with a grad_clip",
    "optimizer.PipelineOptimizer": "a program runs on one machine's CPU; use fleet for several",
}
_INSTEAD["optimizer.DpsgdOptimizer"] = _INSTEAD["optimizer.Dpsgd"]

# Names that most Fluid modules import, so that programs find them in any module, by their home.
_IMPORTED = by_name(
    {
        "": "fluid",
        "executor.compiler": "CompiledProgram compiler",
        "executor.executor": "Executor ParallelExecutor",
        "fleet.distribute_transpiler": "wait_server_ready",
        "fleet.program_fleet": "Mode",
        "framework": (
            "Block Operator Parameter Program default_main_program default_startup_program "
            "device_guard framework in_dygraph_mode name_scope program_guard"
        ),
        "framework.core": "VarDesc convert_np_dtype_to_dtype_ core",
        "framework.initializer": "Constant Normal NumpyArrayInitializer Xavier",
        "framework.old_helpers": "autodoc deprecated get_logger templatedoc wrap_decorator",
        "framework.param_attr": "ParamAttr",
        "framework.scope": "global_scope",
        "framework.unique_name": "unique_name",
        "framework.variable": "Variable",
        "layers": "layers",
        "operators.layer_helper": (
            "LayerHelper check_dtype check_type check_variable_and_dtype convert_dtype"
        ),
        "optimizer.backward": "append_backward",
        "optimizer.clip": "append_gradient_clip_ops error_clip_callback",
        "paddle.compat": "cpt",
    }
)
_IMPORTED_MODULES = ("compiler", "core", "cpt", "fluid", "framework", "layers", "unique_name")


def unknown_names(module: str) -> Callable[[str], Any]:
    """Return a `__getattr__` for a module.

    It raises an error that says what to use instead of an unsupported name.
    """

    def refuse(name: str) -> Any:
        if f"{module}.{name}".removeprefix("fluid.") in paths():
            return importlib.import_module(f"sparsefleet.{module}.{name}")
        if name in _IMPORTED:
            home = importlib.import_module(f"sparsefleet.fluid.{_IMPORTED[name]}".rstrip("."))
            return home if name in _IMPORTED_MODULES else getattr(home, name)
        # Names that Python itself looks up are not API.
        instead = _INSTEAD.get(f"{module}.{name}".removeprefix("fluid."))
        hint = f": {instead}" if instead else ""
        listed = "; docs/coming_from_fluid.md lists what is supported"
        hint = "" if name.startswith("__") else hint + listed
        raise AttributeError(f"{module}.{name} is not supported by sparsefleet{hint}")

    return refuse


def known_names(package: str, module: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` that loads known names and calls `unknown_names` for all others."""
    load, refuse = lazy_names(package, homes), unknown_names(module)
    return lambda name: load(name) if name in homes else refuse(name)


if TYPE_CHECKING:
    from importlib.abc import InspectLoader, MetaPathFinder
else:  # importlib.abc takes longer to import than all of this module
    InspectLoader = MetaPathFinder = object


_ROOT = "sparsefleet.fluid"
_DATASET, _OLD_DATASET = "sparsefleet.fluid.paddle.dataset", "sparsefleet.dataset"

# Maps a path to the module it stands for.
_MODULES = {
    "annotations": "framework.old_helpers",
    "average": "metrics",
    "backward": "optimizer.backward",
    "clip": "optimizer.clip",
    "compiler": "executor.compiler",
    "contrib.op_frequence": "fleet.program_files",
    "contrib.mixed_precision.decorator": "optimizer.mixed_precision",
    "contrib.mixed_precision.fp16_lists": "optimizer.mixed_precision",
    "contrib.mixed_precision.fp16_utils": "optimizer.mixed_precision",
    "contrib.reader.distributed_reader": "paddle.reader.decorators",
    "core": "framework.core",
    "data_feed_desc": "feeding.dataset_base",
    "data_feeder": "feeding.data_feeder",
    "dataset": "feeding.dataset",
    "debugger": "framework.program_text",
    "dygraph.base": "dygraph.eager",
    "dygraph.checkpoint": "dygraph.saving",
    "dygraph.container": "dygraph.layer",
    "dygraph.jit": "dygraph.saving",
    "dygraph.layers": "dygraph.layer",
    "dygraph.learning_rate_scheduler": "dygraph.schedules",
    "incubate.data_generator": "feeding.data_generator",
    "incubate.fleet.utils.fleet_barrier_util": "fleet.program_files",
    "incubate.fleet.utils.utils": "fleet.program_files",
    "initializer": "framework.initializer",
    "install_check": "framework.old_helpers",
    "layer_helper": "operators.layer_helper",
    "layers.distributions": "operators.distributions",
    "layers.layer_function_generator": "framework.old_helpers",
    "learning_rate_decay": "layers",
    "lod_tensor": "framework.lod_tensor",
    "log_helper": "framework.old_helpers",
    "nets": "operators.nets",
    "op": "executor.operator_run",
    "param_attr": "framework.param_attr",
    "profiler": "executor.profiler",
    "proto.framework_pb2": "framework.framework_pb2",
    "transpiler.collective": "fleet.distribute_transpiler",
    "transpiler.details.program_utils": "framework.program_text",
    "transpiler.distribute_transpiler": "fleet.distribute_transpiler",
    "transpiler.geo_sgd_transpiler": "fleet.distribute_transpiler",
    "unique_name": "framework.unique_name",
    "wrapped_decorator": "framework.old_helpers",
}

_HDFS = {"io.file_systems": "HDFSClient multi_download multi_upload"}
_CONTRIB_DECODERS = {
    "operators.state_decoder": "BeamSearchDecoder InitState StateCell TrainingDecoder",
}
_STRATEGIES = {
    "fleet.settings": "DistributeTranspilerConfig ServerRuntimeConfig TrainerRuntimeConfig",
    "fleet.strategies": (
        "AsyncStrategy DistributedStrategy GeoStrategy HalfAsyncStrategy StrategyFactory "
        "SyncStrategy"
    ),
}
_CONTRIB_LAYERS = {
    "operators.basic_rnn": "basic_gru basic_lstm",
    "operators.cells": "BasicGRUUnit BasicLSTMUnit",
    "operators.contrib": (
        "ctr_metric_bundle fused_elemwise_activation fused_embedding_seq_pool partial_concat "
        "partial_sum shuffle_batch sparse_embedding tdm_child tdm_sampler"
    ),
    "operators.lookups": "index_sample",
    "operators.matching": (
        "match_matrix_tensor rank_attention search_pyramid_hash sequence_topk_avg_pooling "
        "tree_conv var_conv_2d"
    ),
    "operators.suppression": "multiclass_nms2",
}
_PARAMETER_SERVER = "incubate.fleet.parameter_server"

# Maps a path to its names other than the paths below it, by the module that defines them. A name
# that differs in that module is followed by = and the name there.
_NAMES: dict[str, dict[str, str]] = {
    "communicator": {
        "fleet.distribute_transpiler": "Communicator DistributedMode wait_server_ready",
    },
    "contrib": {
        **_CONTRIB_DECODERS,
        **_CONTRIB_LAYERS,
        "fleet.program_files": "op_freq_statistic",
        "framework.program_text": "memory_usage",
        "io.file_systems": "HDFSClient multi_download multi_upload",
        "optimizer.wrappers": "extend_with_decoupled_weight_decay",
        "paddle.reader.decorators": "distributed_batch_reader",
    },
    "contrib.decoder": _CONTRIB_DECODERS,
    "contrib.decoder.beam_search_decoder": _CONTRIB_DECODERS,
    "contrib.extend_optimizer": {"optimizer.wrappers": "extend_with_decoupled_weight_decay"},
    "contrib.extend_optimizer.extend_optimizer_with_weight_decay": {
        "optimizer.wrappers": "extend_with_decoupled_weight_decay",
    },
    "contrib.layers": _CONTRIB_LAYERS,
    "contrib.layers.metric_op": _CONTRIB_LAYERS,
    "contrib.layers.nn": _CONTRIB_LAYERS,
    "contrib.layers.rnn_impl": _CONTRIB_LAYERS,
    "contrib.memory_usage_calc": {"framework.program_text": "memory_usage"},
    "contrib.mixed_precision": {"optimizer.mixed_precision": "AutoMixedPrecisionLists decorate"},
    "contrib.reader": {"paddle.reader.decorators": "distributed_batch_reader"},
    "contrib.utils": _HDFS,
    "contrib.utils.hdfs_utils": _HDFS,
    "dataloader": {"feeding.data_loader": "BatchSampler Dataset"},
    "dataloader.batch_sampler": {"feeding.data_loader": "BatchSampler"},
    "dataloader.dataset": {"feeding.data_loader": "Dataset"},
    "default_scope_funcs": {
        "framework.scope": (
            "enter_local_scope find_var get_cur_scope leave_local_scope scoped_function var"
        ),
    },
    "dygraph.backward_strategy": {"dygraph.eager": "BackwardStrategy"},
    "incubate": {},
    "incubate.fleet": {},
    "incubate.fleet.base": {},
    "incubate.fleet.base.fleet_base": {
        "fleet.program_fleet": "DistributedOptimizer=ProgramOptimizer Fleet=ProgramFleet Mode",
    },
    "incubate.fleet.base.mode": {"fleet.program_fleet": "Mode"},
    "incubate.fleet.base.role_maker": {
        "fleet.role_makers": (
            "GeneralRoleMaker PaddleCloudRoleMaker Role RoleMakerBase "
            "UserDefinedCollectiveRoleMaker UserDefinedRoleMaker"
        ),
    },
    "incubate.fleet.collective": {
        "fleet.collective_fleet": "Collective TrainStatus fleet",
        "fleet.collective_strategy": "DistributedStrategy",
        "fleet.fleet_optimizer": "CollectiveOptimizer",
    },
    _PARAMETER_SERVER: {},
    f"{_PARAMETER_SERVER}.distribute_transpiler": {
        **_STRATEGIES,
        "fleet.program_fleet": (
            "DistributedTranspiler=ProgramFleet TranspilerOptimizer=ProgramOptimizer fleet"
        ),
    },
    f"{_PARAMETER_SERVER}.distribute_transpiler.distributed_strategy": _STRATEGIES,
    f"{_PARAMETER_SERVER}.distribute_transpiler.distributed_strategy_factory": {
        "fleet.strategies": "DistributedStrategyFactory StrategyFactory",
    },
    f"{_PARAMETER_SERVER}.pslib": {
        "fleet.pslib_fleet": (
            "DownpourOptimizer=PslibOptimizer FLEET_GLOBAL_DICT PSLib=PslibFleet "
            "_fleet_embedding _fleet_embedding_v2 _prepare_params fleet fleet_embedding"
        ),
    },
    f"{_PARAMETER_SERVER}.pslib.optimizer_factory": {"fleet.pslib_fleet": "FLEET_GLOBAL_DICT"},
    "incubate.fleet.utils": {},
    "incubate.fleet.utils.fleet_util": {"fleet.program_files": "FleetUtil"},
    "incubate.fleet.utils.hdfs": {"io.file_systems": "HDFSClient=FleetHDFSClient"},
    "input": {"operators.embedding": "embedding=embedding_of_ids one_hot=one_hot_of_ids"},
    "layer_helper_base": {"operators.layer_helper": "LayerHelperBase=LayerHelper"},
    "layers.utils": {
        "operators.blocks": (
            "assert_same_structure convert_shape_to_list convert_to_list copy_mutable_vars "
            "flatten hold_mutable_vars is_sequence map_structure pack_sequence_as"
        ),
    },
    "paddle.check_import_scipy": {"framework.old_helpers": "check_import_scipy"},
    "paddle.distributed.fs_wrapper": {"io.file_systems": "BDFS FS LocalFS"},
    "paddle.reader.decorator": {
        "paddle.reader": (
            "ComposeNotAligned buffered cache chain compose firstn map_readers "
            "multiprocess_reader shuffle xmap_readers"
        ),
    },
    "paddle.utils": {"paddle.plotting": "Ploter"},
    "paddle.utils.plot": {"paddle.plotting": "PlotData Ploter"},
    "parallel_executor": {"executor.executor": "BuildStrategy ExecutionStrategy ParallelExecutor"},
    "proto": {},
    "reader": {
        "feeding.data_loader": "BatchSampler DataLoader Dataset default_collate_fn",
        "feeding.generator_loader": "GeneratorLoader PyReader",
        "feeding.loader": "DataLoaderBase",
    },
    "regularizer": {
        "framework.param_attr": "L1Decay L1DecayRegularizer L2Decay L2DecayRegularizer Regularizer",
    },
    "trainer_factory": {"executor.dataset_training": "FetchHandlerMonitor"},
    "transpiler": {
        "fleet.distribute_transpiler": "DistributeTranspiler memory_optimize release_memory",
        "fleet.settings": "DistributeTranspilerConfig HashName RoundRobin",
    },
    "transpiler.details": {
        "fleet.distribute_transpiler": "wait_server_ready",
        "framework.program_text": (
            "block_to_code delete_ops find_op_by_input_arg find_op_by_output_arg op_to_code "
            "program_to_code variable_to_code"
        ),
    },
    "transpiler.details.checkport": {"fleet.distribute_transpiler": "wait_server_ready"},
    "transpiler.memory_optimization_transpiler": {
        "fleet.distribute_transpiler": "memory_optimize release_memory",
    },
    "transpiler.ps_dispatcher": {"fleet.settings": "HashName PSDispatcher RoundRobin"},
}


def paths() -> list[str]:
    """Return the dotted names of all modules that exist only as paths, relative to `fluid`."""
    return sorted([*_MODULES, *_NAMES])


def provide_paths() -> None:
    """Make the paths importable. Idempotent."""
    if not any(isinstance(finder, _PathFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PathFinder())
        sys.meta_path.append(_OldDatasetFinder())  # last, since other finders may wrap its results


class _PathFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if not fullname.startswith("sparsefleet.fluid."):
            return None
        below = fullname.removeprefix("sparsefleet.fluid.")
        if below in _MODULES:
            return ModuleSpec(fullname, _PathLoader(f"{_ROOT}.{_MODULES[below]}"))
        if below in _NAMES:
            is_package = any(path.startswith(f"{below}.") for path in paths())
            return ModuleSpec(fullname, _NamesLoader(below), is_package=is_package)
        return None


class AliasLoader(InspectLoader):
    """Loads a module by importing another module. Only `python -m` requests its code."""

    def __init__(self, real: str) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave module creation to Python."""

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._real)

    def get_source(self, fullname: str) -> str | None:
        del fullname
        return cast("str | None", _loader_of(self._real).get_source(self._real))

    def get_code(self, fullname: str) -> CodeType | None:
        del fullname
        return cast("CodeType | None", _loader_of(self._real).get_code(self._real))

    def is_package(self, fullname: str) -> bool:
        del fullname
        return bool(_loader_of(self._real).is_package(self._real))


class _PathLoader(AliasLoader):
    """Loads a module for a Fluid path. Missing names raise an error that says "not supported"."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        path = module.__name__.removeprefix("sparsefleet.")
        vars(sys.modules[module.__name__]).setdefault("__getattr__", unknown_names(path))


class _OldDatasetFinder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != _OLD_DATASET and not fullname.startswith(f"{_OLD_DATASET}."):
            return None
        from importlib.util import find_spec

        if find_spec(fullname.replace(_OLD_DATASET, _DATASET, 1)) is None:
            return None
        return ModuleSpec(fullname, _OldDatasetLoader(), is_package=fullname == _OLD_DATASET)


class _OldDatasetLoader(InspectLoader):
    """Loads a module of `sparsefleet.dataset`, the former location of `paddle.dataset` readers.

    The result is the same module, so settings in `sparsefleet.dataset.common` apply to all readers.
    """

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        if spec.name == _OLD_DATASET:
            return None  # a separate module, so that Python does not search for files below it
        if spec.name != f"{_OLD_DATASET}.common":
            importlib.import_module(f"{_OLD_DATASET}.common")
        found = importlib.import_module(spec.name.replace(_OLD_DATASET, _DATASET, 1))
        self._own_spec = found.__spec__
        return found

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ != _OLD_DATASET:
            module.__spec__ = self._own_spec  # Python replaced it
            return
        names = importlib.import_module(_DATASET).__all__

        def load(name: str) -> Any:
            if name not in names:
                return getattr(importlib.import_module(_DATASET), name)
            return importlib.import_module(f"{_OLD_DATASET}.{name}")

        vars(module).update(__path__=[], __all__=list(names), __getattr__=load)

    def get_source(self, fullname: str) -> str | None:
        real = fullname.replace(_OLD_DATASET, _DATASET, 1)
        return cast("str | None", _loader_of(real).get_source(real))


class _NamesLoader(InspectLoader):
    """Fills a module with names that are loaded on first use; `python -m` runs nothing."""

    def __init__(self, path: str) -> None:
        self._path = path

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave module creation to Python."""

    def exec_module(self, module: ModuleType) -> None:
        below = {
            path.rpartition(".")[2] for path in paths() if path.rpartition(".")[0] == self._path
        }
        names = {
            name.partition("=")[0]: (home, name.rpartition("=")[2])
            for home, listed in _NAMES[self._path].items()
            for name in listed.split()
        }
        refuse = unknown_names(f"fluid.{self._path}")

        def load(name: str) -> Any:
            if name in below:
                return importlib.import_module(f"{module.__name__}.{name}")
            if name not in names:
                return refuse(name)
            home, real = names[name]
            return getattr(importlib.import_module(f"{_ROOT}.{home}"), real)

        contents: dict[str, Any] = vars(module)
        contents["__doc__"] = f"The names in Fluid's module `fluid.{self._path}`."
        contents["__all__"] = sorted(n for n in below | set(names) if not n.startswith("_"))
        contents["__getattr__"] = load

    def get_source(self, fullname: str) -> str:
        del fullname
        return ""

    def get_code(self, fullname: str) -> CodeType:
        return compile("", fullname, "exec")

    def is_package(self, fullname: str) -> bool:
        del fullname
        return any(path.startswith(f"{self._path}.") for path in paths())


def _loader_of(name: str) -> Any:
    """Return the loader; an editable install has its own loader class."""
    from importlib.util import find_spec

    spec = find_spec(name)
    if spec is None or not hasattr(spec.loader, "get_code"):
        raise ImportError(f"{name} has no code to run", name=name)
    return spec.loader
