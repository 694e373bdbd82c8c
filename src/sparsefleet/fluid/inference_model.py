"""A program with its parameters, cut down to what predictions need."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from sparsefleet.fluid.compiler import plain_program
from sparsefleet.fluid.executor import Executor
from sparsefleet.fluid.framework import Program, Variable, default_main_program
from sparsefleet.fluid.saving import load_persistables, save_persistables

__all__ = ["load_inference_model", "save_inference_model"]

_MODEL = "__model__"


def save_inference_model(
    dirname: str | os.PathLike[str],
    feeded_var_names: str | Sequence[str],
    target_vars: Variable | Sequence[Variable],
    executor: Executor,
    main_program: Program | None = None,
    model_filename: str | None = None,
    params_filename: str | None = None,
    export_for_deployment: bool = True,
    program_only: bool = False,
) -> list[str]:
    """Saves the part of the program from the fed variables to the targets; names to fetch.

    Each target is fetched as `save_infer_model/scale_<i>.tmp_0`, as in Fluid.
    """
    del export_for_deployment
    feeds = [feeded_var_names] if isinstance(feeded_var_names, str) else list(feeded_var_names)
    targets = [target_vars] if isinstance(target_vars, Variable) else list(target_vars)
    if not all(isinstance(name, str) for name in feeds):
        raise ValueError(f"feeded_var_names must be names, got {feeded_var_names!r}")
    if not targets or not all(isinstance(target, Variable) for target in targets):
        raise ValueError(f"target_vars must be variables, at least one; got {target_vars!r}")
    program = plain_program(main_program) or default_main_program()
    if any(op.type == "auc" for op in program.global_block().ops):
        warnings.warn(
            "the program counts an AUC: set its states to zero before you use them again",
            stacklevel=2,
        )
    pruned = program.clone(for_test=True).prune([t.name for t in targets], feeds)
    fetches = [_add_fetch(pruned, target, number) for number, target in enumerate(targets)]
    folder = Path(dirname)
    folder.mkdir(parents=True, exist_ok=True)
    document = {"program": json.loads(pruned.to_json()), "feeds": feeds, "fetches": fetches}
    (folder / (model_filename or _MODEL)).write_text(json.dumps(document), encoding="utf-8")
    if program_only:
        warnings.warn("only the program was saved, without parameters", stacklevel=2)
    else:
        save_persistables(executor, folder, pruned, params_filename)
    return fetches


def load_inference_model(
    dirname: str | os.PathLike[str],
    executor: Executor,
    model_filename: str | None = None,
    params_filename: str | None = None,
    pserver_endpoints: Sequence[str] | None = None,
) -> tuple[Program, list[str], list[Variable]]:
    """What `save_inference_model` saved: the program, names to feed, variables to fetch."""
    del pserver_endpoints
    path = Path(dirname) / (model_filename or _MODEL)
    if not path.is_file():
        raise ValueError(f"{path}: no such file; it is where the program should be saved")
    document = json.loads(path.read_text(encoding="utf-8"))
    program = Program.from_json(json.dumps(document["program"]))
    executor.make_tables(program)
    load_persistables(executor, dirname, program, params_filename)
    block = program.global_block()
    return program, document["feeds"], [block.var(name) for name in document["fetches"]]


def _add_fetch(program: Program, target: Variable, number: int) -> str:
    block = program.global_block()
    name = f"save_infer_model/scale_{number}.tmp_0"
    block.create_var(name, dtype=target.dtype)
    block.append_op("scale", {"X": target.name}, {"Out": name}, {"scale": 1.0, "bias": 0.0})
    return name
