"""Check 1: the export is the whole model except for the parts that no target needs."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, fx

from sparsefleet.serving.export.manifest import describe
from sparsefleet.serving.export.recorded_graph import LOOK_UP
from sparsefleet.serving.verify.case import Case, OfflineModel, dense_of
from sparsefleet.serving.verify.report import CheckResult, Finding, counted
from sparsefleet.serving.verify.side import Side

__all__ = ["PruningCheck"]


class PruningCheck:
    """Checks that feeds suffice for the targets, nothing trained is missing, and shapes match."""

    def of_export(self, case: Case) -> CheckResult:
        model = case.model
        findings = [*_feeds(model), *_targets(model), *_lookups(model), *_parameters(model)]
        schema = model.schema
        text = (
            f"{counted(len(schema.targets), 'target')} from {counted(len(schema.inputs), 'feed')}, "
            f"{counted(len(schema.lookups), 'lookup')}, "
            f"{counted(len(model.parameters), 'parameter')}"
        )
        return CheckResult.of("pruning", model.name, text, findings)

    def of_side(self, case: Case, side: Side) -> CheckResult | None:
        dense, tables = side.dense(), side.tables()
        if side.role != "training" or (dense is None and tables is None):
            return None
        findings = [] if dense is None else _dense_against(case, dense)
        findings += _tables_against(case, side)
        text = f"{counted(len(dense or {}), 'trained parameter')}, "
        text += counted(len(tables or {}), "trained table")
        return CheckResult.of("pruning", side.name, text, findings)


def _feeds(model: OfflineModel) -> list[Finding]:
    """Compare the schema's arrays with the graph's placeholders, in order."""
    wanted = [
        (name, item.dtype if number == 0 else "int64")
        for item in model.schema.inputs
        for number, name in enumerate(item.arrays)
    ]
    nodes = [node for node in model.graph.graph.nodes if node.op == "placeholder"]
    if len(nodes) != len(wanted):
        return [
            Finding(
                name="feeds and graph differ",
                what=f"feeds {', '.join(name for name, _ in wanted)}",
                found=f"a graph that takes {len(nodes)} arrays: {', '.join(map(str, nodes))}",
                wanted=f"{len(wanted)} arrays",
                advice="export again, because a target needs an undeclared feed or a declared feed "
                "is not needed",
            )
        ]
    findings = []
    for place, ((name, dtype), node) in enumerate(zip(wanted, nodes, strict=True)):
        found = (_name_in_graph(str(node.target)), _dtype(node))
        if found != (_plain(name), dtype):
            findings.append(
                Finding(
                    name="feeds and graph differ",
                    what=f"feed {place}",
                    found=f"{found[0]} ({found[1]}) in the graph",
                    wanted=f"{name} ({dtype}) as declared",
                )
            )
        elif not node.users:
            findings.append(
                Finding(
                    name="unused feed",
                    what=f"feed '{name}'",
                    found="no target needs it",
                    wanted="only feeds that a target needs",
                    severity="warning",
                )
            )
    return findings


def _plain(name: str) -> str:
    """Return the placeholder name of an array: the name of its input, as an identifier."""
    base = name.removesuffix(".values").removesuffix(".offsets")
    return "".join(c if c.isalnum() or c == "_" else "_" for c in base)


def _name_in_graph(target: str) -> str:
    """Return the input name in a placeholder's name: 'tags' for `input_3_tags`."""
    prefix, _, rest = target.partition("_")
    return rest.partition("_")[2] if prefix == "input" else target


def _dtype(node: fx.Node) -> str:
    value = node.meta.get("val")
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else "unknown"


def _targets(model: OfflineModel) -> list[Finding]:
    outputs: Any = model.graph.graph.output_node().args[0]
    targets = model.schema.targets
    if len(outputs) != len(targets):
        return [
            Finding(
                name="targets and graph differ",
                what=f"targets {', '.join(target.name for target in targets)}",
                found=f"{len(outputs)} outputs of the graph",
                wanted=f"{len(targets)}",
            )
        ]
    findings = []
    for target, node in zip(targets, outputs, strict=True):
        value = node.meta.get("val") if isinstance(node, fx.Node) else None
        if not isinstance(value, Tensor):
            continue
        shape = tuple(size if isinstance(size, int) else "varies" for size in value.shape)
        declared = tuple(size if isinstance(size, int) else "varies" for size in target.shape)
        if (_dtype(node), shape) != (target.dtype, declared):
            findings.append(
                Finding(
                    name="targets and graph differ",
                    what=f"target '{target.name}'",
                    found=f"{describe(_dtype(node), shape)} in the graph",
                    wanted=f"{describe(target.dtype, declared)} as declared",
                )
            )
    return findings


def _lookups(model: OfflineModel) -> list[Finding]:
    declared = [
        (lookup.table, model.manifest.table(lookup.table).dim, lookup.padding_id, lookup.unknown)
        for lookup in model.schema.lookups
    ]
    nodes = [node for node in model.graph.graph.nodes if node.target is LOOK_UP]
    found = [tuple(node.args[1:]) for node in nodes]
    if found == declared:
        return []
    return [
        Finding(
            name="lookups and graph differ",
            what="lookups (table, width, padding, unknown)",
            found=f"{found} in the graph",
            wanted=f"{declared} as declared",
        )
    ]


def _parameters(model: OfflineModel) -> list[Finding]:
    """Compare the names, shapes and types in the graph with those in the parameter file."""
    graph = {
        name: (array.dtype.name, array.shape)
        for name, array in dense_of(model.exported_graph).items()
    }
    file = {name: (x.dtype.name, x.shape) for name, x in model.parameters.items()}
    return [
        Finding(
            name="parameters and graph differ",
            what=f"parameter '{name}'",
            found=_shown(file.get(name)) + " in the file",
            wanted=_shown(graph.get(name)) + " as in the graph",
        )
        for name in sorted(graph.keys() | file.keys())
        if graph.get(name) != file.get(name)
    ]


def _shown(facts: tuple[str, tuple[int, ...]] | None) -> str:
    return "nothing" if facts is None else describe(*facts)


def _dense_against(case: Case, dense: dict[str, Any]) -> list[Finding]:
    """Compare the export's parameters with the trained ones, `dense`.

    Integer tensors, such as batch counts, are not trained, so the export may lack them.
    """
    exported = case.model.dense
    findings = [
        Finding(
            name="trained parameter missing",
            what=f"parameter '{name}'",
            found="nothing in the export",
            wanted=describe(tensor.dtype.name, tensor.shape),
            advice="if the omission is intended, pass --pruned PATTERN",
        )
        for name, tensor in dense.items()
        if name not in exported and tensor.dtype.kind == "f" and not _is_pruned(case, name)
    ]
    for name, tensor in exported.items():
        if name not in dense:
            found, wanted = describe(tensor.dtype.name, tensor.shape), "nothing"
        elif tensor.shape != dense[name].shape:
            found, wanted = str(list(tensor.shape)), str(list(dense[name].shape))
        else:
            continue
        kind = "parameter not trained" if wanted == "nothing" else "parameter shape differs"
        what = f"parameter '{name}'"
        findings.append(Finding(name=kind, what=what, found=found, wanted=wanted))
    return findings


def _tables_against(case: Case, side: Side) -> list[Finding]:
    trained = side.tables() or {}
    exported = {entry.name: entry.dim for entry in case.model.manifest.tables}
    findings = [
        Finding(
            name="trained table missing",
            what=f"table '{name}'",
            found="nothing in the export",
            wanted=f"rows of {facts.dim} values",
            advice="if the omission is intended, pass --pruned PATTERN",
        )
        for name, facts in trained.items()
        if name not in exported and not _is_pruned(case, name)
    ]
    findings += [
        Finding(
            name="table not trained",
            what=f"table '{name}'",
            found=f"rows of {dim} values",
            wanted=f"nothing, since {side.name} has no such table",
        )
        for name, dim in exported.items()
        if name not in trained
    ]
    return findings


def _is_pruned(case: Case, name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in case.config.pruned)
