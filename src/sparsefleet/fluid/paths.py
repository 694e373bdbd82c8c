"""Fluid's module paths that differ from this package's layout.

Programs import `fluid.clip` or `fluid.incubate.fleet.base.role_maker`; the code lives in folders
named after what it does. One finder maps the former to the latter.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from sparsefleet.fluid.unknown_names import unknown_names

if TYPE_CHECKING:
    from importlib.abc import InspectLoader, MetaPathFinder
else:  # importlib.abc takes longer to import than all of this module
    InspectLoader = MetaPathFinder = object

__all__ = ["AliasLoader", "paths", "provide_paths"]

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
    "input": "operators.input",
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

_STRATEGIES = {
    "AsyncStrategy": "fleet.strategies",
    "DistributeTranspilerConfig": "fleet.settings",
    "DistributedStrategy": "fleet.strategies",
    "GeoStrategy": "fleet.strategies",
    "HalfAsyncStrategy": "fleet.strategies",
    "ServerRuntimeConfig": "fleet.settings",
    "StrategyFactory": "fleet.strategies",
    "SyncStrategy": "fleet.strategies",
    "TrainerRuntimeConfig": "fleet.settings",
}
_CONTRIB_LAYERS = {
    "BasicGRUUnit": "operators.cells",
    "BasicLSTMUnit": "operators.cells",
    "basic_gru": "operators.basic_rnn",
    "basic_lstm": "operators.basic_rnn",
    "ctr_metric_bundle": "operators.contrib",
    "fused_elemwise_activation": "operators.contrib",
    "fused_embedding_seq_pool": "operators.contrib",
    "index_sample": "operators.lookups",
    "match_matrix_tensor": "operators.matching",
    "multiclass_nms2": "operators.suppression",
    "partial_concat": "operators.contrib",
    "partial_sum": "operators.contrib",
    "rank_attention": "operators.matching",
    "search_pyramid_hash": "operators.matching",
    "sequence_topk_avg_pooling": "operators.matching",
    "shuffle_batch": "operators.contrib",
    "sparse_embedding": "operators.contrib",
    "tdm_child": "operators.contrib",
    "tdm_sampler": "operators.contrib",
    "tree_conv": "operators.matching",
    "var_conv_2d": "operators.matching",
}
_CONTRIB_DECODERS = {
    "BeamSearchDecoder": "operators.state_decoder",
    "InitState": "operators.state_decoder",
    "StateCell": "operators.state_decoder",
    "TrainingDecoder": "operators.state_decoder",
}
_PARAMETER_SERVER = "incubate.fleet.parameter_server"

# Maps a path to its names other than the paths below it. Each name maps to the module that defines
# it, followed by a colon and the name in that module if it differs.
_NAMES: dict[str, dict[str, str]] = {
    "paddle.distributed.fs_wrapper": {
        "BDFS": "io.file_systems",
        "FS": "io.file_systems",
        "LocalFS": "io.file_systems",
    },
    "layers.utils": dict.fromkeys(
        (
            "assert_same_structure",
            "convert_shape_to_list",
            "convert_to_list",
            "copy_mutable_vars",
            "flatten",
            "hold_mutable_vars",
            "is_sequence",
            "map_structure",
            "pack_sequence_as",
        ),
        "operators.blocks",
    ),
    "contrib.extend_optimizer.extend_optimizer_with_weight_decay": {
        "extend_with_decoupled_weight_decay": "optimizer.wrappers"
    },
    "regularizer": dict.fromkeys(
        ("L1Decay", "L1DecayRegularizer", "L2Decay", "L2DecayRegularizer", "Regularizer"),
        "framework.param_attr",
    ),
    "default_scope_funcs": dict.fromkeys(
        (
            "enter_local_scope",
            "find_var",
            "get_cur_scope",
            "leave_local_scope",
            "scoped_function",
            "var",
        ),
        "framework.scope",
    ),
    "contrib.memory_usage_calc": {"memory_usage": "framework.program_text"},
    "incubate.fleet.utils.fleet_util": {"FleetUtil": "fleet.program_files"},
    "communicator": {
        "Communicator": "fleet.distribute_transpiler",
        "DistributedMode": "fleet.distribute_transpiler",
        "wait_server_ready": "fleet.distribute_transpiler",
    },
    "contrib": {
        **_CONTRIB_LAYERS,
        **_CONTRIB_DECODERS,
        "HDFSClient": "io.file_systems",
        "distributed_batch_reader": "paddle.reader.decorators",
        "extend_with_decoupled_weight_decay": "optimizer.wrappers",
        "memory_usage": "framework.program_text",
        "multi_download": "io.file_systems",
        "multi_upload": "io.file_systems",
        "op_freq_statistic": "fleet.program_files",
    },
    "contrib.decoder": _CONTRIB_DECODERS,
    "contrib.extend_optimizer": {"extend_with_decoupled_weight_decay": "optimizer.wrappers"},
    "contrib.decoder.beam_search_decoder": _CONTRIB_DECODERS,
    "contrib.layers": _CONTRIB_LAYERS,
    "contrib.layers.metric_op": _CONTRIB_LAYERS,
    "contrib.layers.nn": _CONTRIB_LAYERS,
    "contrib.layers.rnn_impl": _CONTRIB_LAYERS,
    "contrib.mixed_precision": {
        "AutoMixedPrecisionLists": "optimizer.mixed_precision",
        "decorate": "optimizer.mixed_precision",
    },
    "contrib.reader": {"distributed_batch_reader": "paddle.reader.decorators"},
    "contrib.utils": {
        "HDFSClient": "io.file_systems",
        "multi_download": "io.file_systems",
        "multi_upload": "io.file_systems",
    },
    "contrib.utils.hdfs_utils": {
        "HDFSClient": "io.file_systems",
        "multi_download": "io.file_systems",
        "multi_upload": "io.file_systems",
    },
    "dataloader": {
        "BatchSampler": "feeding.data_loader",
        "Dataset": "feeding.data_loader",
    },
    "dataloader.batch_sampler": {"BatchSampler": "feeding.data_loader"},
    "dataloader.dataset": {"Dataset": "feeding.data_loader"},
    "dygraph.backward_strategy": {"BackwardStrategy": "dygraph.eager"},
    "incubate": {},
    "incubate.fleet": {},
    "incubate.fleet.base": {},
    "incubate.fleet.base.fleet_base": {
        "DistributedOptimizer": "fleet.program_fleet:ProgramOptimizer",
        "Fleet": "fleet.program_fleet:ProgramFleet",
        "Mode": "fleet.program_fleet",
    },
    "incubate.fleet.base.mode": {"Mode": "fleet.program_fleet"},
    "incubate.fleet.base.role_maker": {
        "GeneralRoleMaker": "fleet.role_makers",
        "PaddleCloudRoleMaker": "fleet.role_makers",
        "Role": "fleet.role_makers",
        "RoleMakerBase": "fleet.role_makers",
        "UserDefinedCollectiveRoleMaker": "fleet.role_makers",
        "UserDefinedRoleMaker": "fleet.role_makers",
    },
    "incubate.fleet.collective": {
        "Collective": "fleet.collective_fleet",
        "CollectiveOptimizer": "fleet.fleet_optimizer",
        "DistributedStrategy": "fleet.collective_strategy",
        "TrainStatus": "fleet.collective_fleet",
        "fleet": "fleet.collective_fleet",
    },
    _PARAMETER_SERVER: {},
    f"{_PARAMETER_SERVER}.distribute_transpiler": {
        **_STRATEGIES,
        "DistributedTranspiler": "fleet.program_fleet:ProgramFleet",
        "TranspilerOptimizer": "fleet.program_fleet:ProgramOptimizer",
        "fleet": "fleet.program_fleet",
    },
    f"{_PARAMETER_SERVER}.distribute_transpiler.distributed_strategy": _STRATEGIES,
    f"{_PARAMETER_SERVER}.distribute_transpiler.distributed_strategy_factory": {
        "DistributedStrategyFactory": "fleet.strategies",
        "StrategyFactory": "fleet.strategies",
    },
    f"{_PARAMETER_SERVER}.pslib": {
        "DownpourOptimizer": "fleet.pslib_fleet:PslibOptimizer",
        "FLEET_GLOBAL_DICT": "fleet.pslib_fleet",
        "PSLib": "fleet.pslib_fleet:PslibFleet",
        "_fleet_embedding": "fleet.pslib_fleet",
        "_fleet_embedding_v2": "fleet.pslib_fleet",
        "_prepare_params": "fleet.pslib_fleet",
        "fleet": "fleet.pslib_fleet",
        "fleet_embedding": "fleet.pslib_fleet",
    },
    f"{_PARAMETER_SERVER}.pslib.optimizer_factory": {"FLEET_GLOBAL_DICT": "fleet.pslib_fleet"},
    "incubate.fleet.utils": {},
    "incubate.fleet.utils.hdfs": {"HDFSClient": "io.file_systems:FleetHDFSClient"},
    "layer_helper_base": {"LayerHelperBase": "operators.layer_helper:LayerHelper"},
    "paddle.reader.decorator": dict.fromkeys(
        (
            "ComposeNotAligned",
            "buffered",
            "cache",
            "chain",
            "compose",
            "firstn",
            "map_readers",
            "multiprocess_reader",
            "shuffle",
            "xmap_readers",
        ),
        "paddle.reader",
    ),
    "paddle.check_import_scipy": {"check_import_scipy": "framework.old_helpers"},
    "paddle.utils": {"Ploter": "paddle.plotting"},
    "paddle.utils.plot": {"PlotData": "paddle.plotting", "Ploter": "paddle.plotting"},
    "parallel_executor": dict.fromkeys(
        ("BuildStrategy", "ExecutionStrategy", "ParallelExecutor"), "executor.executor"
    ),
    "proto": {},
    "reader": {
        "BatchSampler": "feeding.data_loader",
        "DataLoader": "feeding.data_loader",
        "DataLoaderBase": "feeding.loader",
        "Dataset": "feeding.data_loader",
        "GeneratorLoader": "feeding.generator_loader",
        "PyReader": "feeding.generator_loader",
        "default_collate_fn": "feeding.data_loader",
    },
    "trainer_factory": {"FetchHandlerMonitor": "executor.dataset_training"},
    "transpiler": {
        "DistributeTranspiler": "fleet.distribute_transpiler",
        "DistributeTranspilerConfig": "fleet.settings",
        "HashName": "fleet.settings",
        "RoundRobin": "fleet.settings",
        "memory_optimize": "fleet.distribute_transpiler",
        "release_memory": "fleet.distribute_transpiler",
    },
    "transpiler.details": {
        "block_to_code": "framework.program_text",
        "delete_ops": "framework.program_text",
        "find_op_by_input_arg": "framework.program_text",
        "find_op_by_output_arg": "framework.program_text",
        "op_to_code": "framework.program_text",
        "program_to_code": "framework.program_text",
        "variable_to_code": "framework.program_text",
        "wait_server_ready": "fleet.distribute_transpiler",
    },
    "transpiler.details.checkport": {"wait_server_ready": "fleet.distribute_transpiler"},
    "transpiler.memory_optimization_transpiler": {
        "memory_optimize": "fleet.distribute_transpiler",
        "release_memory": "fleet.distribute_transpiler",
    },
    "transpiler.ps_dispatcher": {
        "HashName": "fleet.settings",
        "PSDispatcher": "fleet.settings",
        "RoundRobin": "fleet.settings",
    },
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
        names = _NAMES[self._path]
        refuse = unknown_names(f"fluid.{self._path}")

        def load(name: str) -> Any:
            if name in below:
                return importlib.import_module(f"{module.__name__}.{name}")
            if name not in names:
                return refuse(name)
            home, _, real = names[name].partition(":")
            return getattr(importlib.import_module(f"{_ROOT}.{home}"), real or name)

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
