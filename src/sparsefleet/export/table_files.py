"""The tables of a model, as files of an export."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import nn

from sparsefleet.errors import ConfigError
from sparsefleet.export.golden_rows import GoldenRows
from sparsefleet.export.manifest import InitialValues, TableEntry
from sparsefleet.export.pending_export import PendingExport
from sparsefleet.export.quantization import RowFormat
from sparsefleet.export.row_writer import write_rows
from sparsefleet.nn import SparseModule
from sparsefleet.store import Store, TableSpec

__all__ = ["ModelTable", "tables_of", "write_tables"]


class ModelTable(NamedTuple):
    """A table that a model looks up in."""

    spec: TableSpec
    store: Store


def tables_of(model: nn.Module, store: Store | None) -> dict[str, ModelTable]:
    """The tables of all sparse modules by name: in `store`, or where the modules have them."""
    tables: dict[str, ModelTable] = {}
    for path, module in model.named_modules():
        if not isinstance(module, SparseModule):
            continue
        if store is None:
            module.home.open(module.spec)
        own = store or module.home.store
        assert own is not None
        known = tables.setdefault(module.name, ModelTable(module.spec(), own))
        if known.store is not own:
            raise ConfigError(
                f"module '{path}' and another share table '{module.name}' but have stores of "
                "their own: bind the model to one store, or train it, before it is exported"
            )
    return tables


def write_tables(
    pending: PendingExport,
    tables: Mapping[str, ModelTable],
    row_format: RowFormat,
    golden: GoldenRows,
) -> tuple[TableEntry, ...]:
    """Writes the rows that there are: admitted ones, without optimizer state."""
    entries = []
    for index, (name, (spec, store)) in enumerate(tables.items()):
        path, num_rows, error = write_rows(
            pending,
            f"rows-{index}",
            golden.passing(name, store.rows(name)),
            table=name,
            dim=spec.dim,
            row_format=row_format,
        )
        entries.append(
            TableEntry(
                name=name,
                dim=spec.dim,
                rows=num_rows,
                format=row_format,
                file=pending.seal(path),
                initial=_initial_values(spec),
                largest_error=error.largest,
                mean_error=error.mean,
            )
        )
    return tuple(entries)


def _initial_values(spec: TableSpec) -> InitialValues:
    fields = spec.initializer.native_fields(spec.dim)
    return InitialValues(
        kind=str(fields["kind"]),  # type: ignore[arg-type]
        a=float(fields["a"]),
        b=float(fields["b"]),
        seed=spec.seed,
    )
