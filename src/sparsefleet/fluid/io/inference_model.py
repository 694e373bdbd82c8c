"""Inference models: programs pruned to what inference needs, with their parameters."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from sparsefleet.fluid.executor.compiler import plain_program
from sparsefleet.fluid.executor.executor import Executor
from sparsefleet.fluid.framework import Program, ProgramError, Variable, default_main_program
from sparsefleet.fluid.framework.program_desc import SavedProgram, program_of_desc
from sparsefleet.fluid.io.saving import (
    SavePart,
    TableLayout,
    is_persistable,
    load_persistables,
    save_model,
    writes_model,
)

__all__ = ["load_inference_model", "read_program", "save_inference_model"]

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
    *,
    table_layout: TableLayout | None = None,
) -> list[str]:
    """Save the part of the program from the fed variables to the targets; return names to fetch.

    Each target is fetched as `save_infer_model/scale_<i>.tmp_0`, as in Fluid. When training with
    servers, only worker 0 writes files; on other workers, this function only logs a warning. For
    `table_layout`, see `save_vars`.

    With export_for_deployment=False, save the whole program, with everything it needs to train, in
    a file `__model__.main_program` for `Program.parse_from_string`; targets are then optional.
    """
    del executor
    feeds = [feeded_var_names] if isinstance(feeded_var_names, str) else list(feeded_var_names)
    targets = [target_vars] if isinstance(target_vars, Variable) else list(target_vars or ())
    if not all(isinstance(name, str) for name in feeds):
        raise ValueError(f"feeded_var_names must be names, got {feeded_var_names!r}")
    is_short = export_for_deployment and not targets
    if is_short or not all(isinstance(target, Variable) for target in targets):
        raise ValueError(f"target_vars must be one or more variables, got {target_vars!r}")
    program = plain_program(main_program) or default_main_program()
    if any(op.type == "auc" for op in program.global_block().ops):
        warnings.warn(
            "please ensure that you have set the auc states to zeros before saving inference model",
            stacklevel=2,
        )
    if export_for_deployment:
        pruned = program.clone(for_test=True).prune([t.name for t in targets], feeds)
    else:
        pruned = program.clone()
    fetches = [_add_fetch(pruned, target, number) for number, target in enumerate(targets)]
    document = json.loads(pruned.to_json())
    name = model_filename or _MODEL
    if export_for_deployment:
        document = {"program": document, "feeds": feeds, "fetches": fetches}
    else:
        name += ".main_program"
    parts = []
    if program_only:
        warnings.warn("only the program was saved, without parameters", stacklevel=2)
    else:
        kept = sorted(filter(is_persistable, pruned.list_vars()), key=lambda found: found.name)
        parts = [SavePart(kept, params_filename)]
    if writes_model(program, dirname):
        documents = {name: json.dumps(document)}
        save_model(pruned, dirname, parts, documents=documents, table_layout=table_layout)
    return fetches


def load_inference_model(
    dirname: str | os.PathLike[str],
    executor: Executor,
    model_filename: str | None = None,
    params_filename: str | None = None,
    pserver_endpoints: Sequence[str] | None = None,
) -> tuple[Program, list[str], list[Variable]]:
    """Load an inference model; return the program, the names to feed and the variables to fetch.

    The model may have been saved by PaddlePaddle 1.x.
    """
    del pserver_endpoints
    path = Path(dirname) / (model_filename or _MODEL)
    if not path.is_file():
        raise ValueError(f"{path}: no such file; expected a saved program")
    saved = read_program(path)
    program = Program.from_document(saved.document)
    executor.make_tables(program)
    load_persistables(executor, dirname, program, params_filename)
    block = program.global_block()
    return program, saved.feeds, [block.var(name) for name in saved.fetches]


def read_program(path: str | os.PathLike[str]) -> SavedProgram:
    """Return the program in a `__model__` file, saved by sparsefleet or PaddlePaddle 1.x."""
    data = Path(path).read_bytes()
    if data.lstrip()[:1] != b"{":
        return program_of_desc(data, str(path))
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProgramError(f"{path} is not a program: {error}") from error
    if "program" not in document:  # from Program.serialize_to_string
        return SavedProgram(document, [], [])
    try:
        return SavedProgram(document["program"], document["feeds"], document["fetches"])
    except KeyError as error:
        raise ProgramError(f"{path} is not a program: it has no {error}") from error


def _add_fetch(program: Program, target: Variable, number: int) -> str:
    block = program.global_block()
    name = f"save_infer_model/scale_{number}.tmp_0"
    block.create_var(name, dtype=target.dtype)
    block.append_op("scale", {"X": target.name}, {"Out": name}, {"scale": 1.0, "bias": 0.0})
    return name
