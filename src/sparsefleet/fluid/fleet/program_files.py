"""The tools in `fluid.incubate.fleet.utils`: FleetUtil, program files, and an HDFS barrier."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet.fluid.executor.executor import Executor
from sparsefleet.fluid.feeding.data_feeder import DataFeeder
from sparsefleet.fluid.fleet.program_fleet import fleet
from sparsefleet.fluid.framework import Program, Variable
from sparsefleet.fluid.framework.dtypes import dtype_name
from sparsefleet.fluid.framework.lod_tensor import create_lod_tensor
from sparsefleet.fluid.framework.places import CPUPlace
from sparsefleet.fluid.framework.program_text import draw_block_graphviz
from sparsefleet.fluid.framework.scope import Scope, global_scope, scope_guard
from sparsefleet.fluid.io.file_systems import HDFSClient
from sparsefleet.fluid.io.inference_model import load_inference_model, read_program
from sparsefleet.fluid.io.saving import is_persistable, save_vars
from sparsefleet.fluid.io.variable_file import VariableFile
from sparsefleet.metrics.auc import auc_from_counts

__all__ = [
    "FleetUtil",
    "check_all_trainers_ready",
    "check_pruned_program_vars",
    "check_saved_vars_try_dump",
    "graphviz",
    "load_program",
    "load_var",
    "op_freq_statistic",
    "parse_program",
    "program_type_trans",
    "save_program",
    "save_var",
]


_log = logging.getLogger("sparsefleet.fluid")
_WAIT_S = 10.0


def load_program(model_filename: str, is_text: bool = False) -> Program:
    """Return the program in a file, written either by sparsefleet or by PaddlePaddle 1.x."""
    del is_text  # sparsefleet's files are text
    return Program.from_document(read_program(model_filename).document)


def save_program(
    program: Program, model_filename: str = "__model__", is_text: bool = False
) -> None:
    """Write a program to a file. If is_text, the file is human-readable but cannot be loaded."""
    data = str(program).encode() if is_text else program.serialize_to_string()
    with open(model_filename, "wb") as file:
        file.write(data)


def save_var(
    np_array: Any, var_name: str, shape_list: Sequence[int], dtype: Any, save_path: str
) -> None:
    """Write an array to its own file, as the value of variable `var_name`."""
    folder, name = os.path.split(save_path)
    program = Program()
    variable = program.global_block().create_var(var_name, shape_list, dtype, persistable=True)
    scope = Scope()
    with scope_guard(scope):
        scope.var(var_name).get_tensor().set(np.asarray(np_array, variable.dtype), CPUPlace())
        save_vars(None, folder or ".", program, [variable], filename=name)


def load_var(var_name: str, shape_list: Sequence[int], dtype: Any, save_path: str) -> list[Any]:
    """Return a list that holds the array of a variable saved in its own file."""
    del shape_list
    return [VariableFile(Path(save_path)).read(var_name).astype(dtype_name(dtype), copy=False)]


def program_type_trans(prog_dir: str, prog_fn: str, is_text: bool) -> str:
    """Convert a program file between binary and text; return the new file's name."""
    program = load_program(os.path.join(prog_dir, prog_fn), is_text)
    made = f"{prog_fn}.bin" if is_text else f"{prog_fn}.pbtxt"
    save_program(program, os.path.join(prog_dir, made), not is_text)
    return made


def check_pruned_program_vars(train_prog: Program, pruned_prog: Program) -> bool:
    """Return whether a pruned program's persistent variables match the whole program's."""
    fits = True
    for variable in filter(is_persistable, pruned_prog.list_vars()):
        whole = train_prog.global_block().vars.get(variable.name)
        if whole is None:
            _log.error("variable '%s' is not in the training program", variable.name)
        elif (whole.shape, whole.dtype) != (variable.shape, variable.dtype):
            _log.error(
                "variable '%s' is %s, but %s in the training program",
                variable.name,
                variable,
                whole,
            )
            fits = False
    return fits


def graphviz(block: Any, output_dir: str = "", filename: str = "debug") -> None:
    """Draw a block to a .dot file, and to a .pdf if the `dot` command exists."""
    path = os.path.join(output_dir, f"{filename}.dot")
    draw_block_graphviz(block, path=path)
    try:
        command = ["dot", "-Tpdf", path, "-o", os.path.join(output_dir, f"{filename}.pdf")]
        subprocess.run(command, check=False, capture_output=True)
    except OSError as error:
        _log.warning("%s was written, but not converted to PDF: %s", path, error)


def parse_program(program: Program, output_dir: str) -> None:
    """Write lists of operators and variables to ops.log, vars_all.log and vars_persistable.log."""
    everything = list(program.list_vars())
    kept = [one for one in everything if is_persistable(one)]
    lists: dict[str, tuple[str, list[Any]]] = {
        "vars_persistable.log": ("persistable vars", [_described(one) for one in kept]),
        "vars_all.log": ("all vars", [_described(one) for one in everything]),
        "ops.log": (
            "ops",
            [
                {
                    "type": op.type,
                    "input_arg_names": op.input_arg_names,
                    "output_arg_names": op.output_arg_names,
                }
                for op in program.global_block().ops
            ],
        ),
    }
    for name, (title, items) in lists.items():
        with open(os.path.join(output_dir, name), "w", encoding="utf-8") as file:
            file.write(f"{title}:\n" + "".join(f"{item}\n" for item in items))


def _described(variable: Variable) -> dict[str, Any]:
    fields = ("name", "shape", "lod_level", "dtype", "type")
    return {field: getattr(variable, field) for field in fields}


def check_saved_vars_try_dump(
    dump_dir: str,
    dump_prog_fn: str,
    is_text_dump_program: bool,
    feed_config: Any,
    fetch_config: Any,
    batch_size: int = 1,
    save_filename: str | None = None,
) -> list[Any]:
    """Load a saved model and run it once; return the fetched values.

    feed_config: feeded_vars_names, feeded_vars_dims, feeded_vars_types and feeded_vars_filelist
    (files of numbers; random numbers by default). fetch_config: fetch_vars_names, which may be
    None.
    """
    del is_text_dump_program
    with scope_guard(Scope()):
        exe = Executor()
        program, feeds, targets = load_inference_model(
            dump_dir, exe, model_filename=dump_prog_fn, params_filename=save_filename
        )
        block = program.global_block()
        names = feed_config.feeded_vars_names or feeds
        if fetch_config.fetch_vars_names is not None:
            targets = [block.var(name) for name in fetch_config.fetch_vars_names]
        variables = [block.var(name) for name in names]
        shapes = [_sizes(dims) for dims in feed_config.feeded_vars_dims]
        for variable, shape in zip(variables, shapes, strict=True):
            if tuple(variable.shape[1:]) != shape:
                raise RuntimeError(
                    f"feed variable '{variable.name}': the program has shape {variable.shape[1:]}, "
                    f"but the configuration has {shape}"
                )
        if feed_config.feeded_vars_filelist:
            columns = [
                _numbers(path, batch_size, shape)
                for path, shape in zip(feed_config.feeded_vars_filelist, shapes, strict=True)
            ]
            feed = DataFeeder(variables, CPUPlace()).feed(list(zip(*columns, strict=True)))
        else:
            kinds = feed_config.feeded_vars_types
            feed = {
                variable.name: _random(variable, (batch_size, *shape), kind)
                for variable, shape, kind in zip(variables, shapes, kinds, strict=True)
            }
        return exe.run(program, feed=feed, fetch_list=targets, return_numpy=False)


def _sizes(dims: int | Sequence[int]) -> tuple[int, ...]:
    return (dims,) if isinstance(dims, int) else tuple(dims)


def _numbers(path: str, count: int, shape: tuple[int, ...]) -> Any:
    with open(path, encoding="utf-8") as file:
        values = np.array(file.read().split(), dtype=np.float64)
    wanted = count * int(np.prod(shape))
    if len(values) < wanted:
        raise RuntimeError(f"{path}: found {len(values)} numbers, expected {wanted}")
    return values[:wanted].reshape(count, *shape)


def _random(variable: Variable, shape: tuple[int, ...], kind: Any) -> Any:
    values = np.random.random(shape).astype(kind)
    return create_lod_tensor(values, [[1] * len(values)]) if variable.lod_level else values


def op_freq_statistic(program: Program) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Count each operator and each pair `a->b` of consecutive operators, most frequent first."""
    if not isinstance(program, Program):
        raise TypeError(f"program must be a fluid.Program, got {type(program).__name__}")
    parameters = {one.name for one in program.all_parameters()}
    makers: dict[str, str] = {}
    single: Counter[str] = Counter()
    pairs: Counter[str] = Counter()
    for op in program.global_block().ops:
        single[op.type] += bool(set(op.output_arg_names) - parameters)
        for name in op.input_arg_names:
            if name in makers and name not in parameters:
                pairs[f"{makers[name]}->{op.type}"] += 1
        makers.update(dict.fromkeys(op.output_arg_names, op.type))
    return [one for one in single.most_common() if one[1]], pairs.most_common()


def check_all_trainers_ready(ready_path: str, epoch: int) -> None:
    """Wait until all workers have created a file for this epoch in an HDFS folder.

    HADOOP_HOME, FS_NAME and FS_UGI name the client and the file system. Without hadoop, this
    function returns at once because the listing is empty; prefer `fleet.barrier_worker`, which
    needs no files.
    """
    configs = {"fs.default.name": os.getenv("FS_NAME"), "hadoop.job.ugi": os.getenv("FS_UGI")}
    own = f"ready.{epoch}.{fleet.worker_index()}.done"
    with open(own, "w", encoding="utf-8"):
        pass
    client = HDFSClient(os.getenv("HADOOP_HOME"), {k: v for k, v in configs.items() if v})
    if not client.is_dir(ready_path):
        client.makedirs(ready_path)
    client.upload(ready_path, own, overwrite=True, retry_times=1)
    while len(client.ls(ready_path)) % fleet.worker_num():
        time.sleep(_WAIT_S)


class FleetUtil:
    """Prints and logs on the first worker, and computes metrics over all workers."""

    def __init__(self, mode: str = "transpiler") -> None:
        if mode not in ("pslib", "transpiler"):
            raise ValueError(f"mode must be 'pslib' or 'transpiler', got {mode!r}")

    def rank0_print(self, s: object) -> None:
        """Print on the first worker."""
        if fleet.worker_index() == 0:
            print(s)
            sys.stdout.flush()

    def rank0_info(self, s: object) -> None:
        """Log an info message on the first worker."""
        if fleet.worker_index() == 0:
            _log.info("%s", s)

    def rank0_error(self, s: object) -> None:
        """Log an error on the first worker."""
        if fleet.worker_index() == 0:
            _log.error("%s", s)

    def set_zero(
        self,
        var_name: str,
        scope: Scope | None = None,
        place: Any = None,
        param_type: str = "int64",
    ) -> None:
        """Set a variable in the scope, such as the counts of an AUC, to zero."""
        del place
        tensor = self._tensor(var_name, scope or global_scope())
        tensor.set(np.zeros(tensor.shape(), param_type))

    def get_global_auc(
        self,
        scope: Scope | None = None,
        stat_pos: str = "_generated_var_2",
        stat_neg: str = "_generated_var_3",
    ) -> float:
        """Return the AUC over all workers. Must be called by all workers.

        stat_pos, stat_neg: names of the last two states that `layers.auc` returns.
        """
        positives, negatives = (
            self._total(np.array(self._tensor(name, scope or global_scope()), np.float64))
            for name in (stat_pos, stat_neg)
        )
        return auc_from_counts(positives.reshape(-1), negatives.reshape(-1))

    def print_global_auc(
        self,
        scope: Scope | None = None,
        stat_pos: str = "_generated_var_2",
        stat_neg: str = "_generated_var_3",
        print_prefix: str = "",
    ) -> None:
        """Print `get_global_auc` on the first worker."""
        value = self.get_global_auc(scope, stat_pos, stat_neg)
        self.rank0_print(f"{print_prefix} global auc = {value}")

    def _total(self, mine: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.zeros_like(mine)
        fleet.all_reduce_worker(mine, total)
        return total

    def _tensor(self, name: str, scope: Scope) -> Any:
        found = scope.find_var(name)
        if found is None:
            raise ValueError(f"there is no variable '{name}' in the scope")
        return found.get_tensor()
