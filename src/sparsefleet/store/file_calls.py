"""How the tables of a store become files, and files tables."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, cast

from sparsefleet.store.rows import Rows
from sparsefleet.store.table_spec import DenseSpec, TableSpec

if TYPE_CHECKING:
    from sparsefleet.store.store import Store


class FileCalls(ABC):
    """The calls of a store that save and load its tables; a part of ``Store``."""

    @property
    @abstractmethod
    def specs(self) -> Mapping[str, TableSpec | DenseSpec]:
        """The tables that were defined by this store object."""

    def save(
        self,
        directory: str | os.PathLike[str],
        *,
        tables: Collection[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        timeout_s: float = 3600.0,
    ) -> None:
        """Writes a checkpoint of the tables as of this moment; pushes may go on meanwhile.

        ``tables`` names some of those defined here; None is all. Each server writes its own rows:
        all of them, and this process, must see ``directory``, a path or an address that fsspec
        knows. Returns when the checkpoint is in force; until then, and after an error, the one that
        was there before is. Where several servers are pushed to meanwhile, each is cut at a moment
        of its own, all within the call; for one of all see docs/checkpoints.md.

        >>> import numpy as np, tempfile
        >>> from sparsefleet.store import LocalStore, TableSpec
        >>> first, second = LocalStore(), LocalStore()
        >>> for store in (first, second):
        ...     store.define(TableSpec(name="ads", dim=2))
        >>> rows = first.pull("ads", np.array([3, 5]))
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     first.save(directory)
        ...     second.load(directory)
        >>> bool((second.pull("ads", np.array([3, 5]), train=False) == rows).all())
        True
        """
        # Arrow takes a while to load: only who saves pays for it.
        from sparsefleet.store.store_save import StoreSave

        save = StoreSave(
            cast("Store", self),
            directory,
            tables=tables,
            storage_options=storage_options,
            timeout_s=timeout_s,
        )
        save.open()
        save.write()
        save.commit(save.dense_tensors(), step=0)

    def load(
        self,
        directory: str | os.PathLike[str],
        *,
        tables: Collection[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        timeout_s: float = 3600.0,
    ) -> None:
        """Replaces what the tables defined here hold by what a checkpoint does.

        Whatever number of servers saved it; each server and this process must see it. ``tables``
        names some of those defined here. All of it is checked before the first row changes; what
        does not fit raises ``CheckpointMismatchError``.
        """
        from sparsefleet.store.store_load import load_tables

        load_tables(
            cast("Store", self),
            directory,
            tables=tables,
            storage_options=storage_options,
            timeout_s=timeout_s,
        )

    def import_table(
        self,
        table: str,
        path: str | os.PathLike[str],
        *,
        key_column: str | None = None,
        has_header: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> int:
        """Sets rows of a table to the vectors in a CSV or Parquet file; returns how many.

        The file has a column of keys (`key_column`, else `key`, else the first) and one of
        vectors or one for each value, see ``sparsefleet.checkpoint.import_table``. Of a key that
        is there twice the last vector stays. Rows that are not in it stay; the optimizer state
        of those that are begins anew. Not all or nothing: what was read before an error stays.

        >>> import pathlib, tempfile
        >>> import numpy as np
        >>> from sparsefleet.store import LocalStore, TableSpec
        >>> file = pathlib.Path(tempfile.mkdtemp()) / "vectors.csv"
        >>> size = file.write_text("key,v0,v1\\n7,0.5,1.5\\n9,2.5,3.5\\n")
        >>> store = LocalStore()
        >>> store.define(TableSpec(name="ads", dim=2))
        >>> store.import_table("ads", file)
        2
        >>> store.pull("ads", np.array([9]), train=False)
        array([[2.5, 3.5]], dtype=float32)
        """
        from sparsefleet.checkpoint import import_table

        store = cast("Store", self)
        count = 0
        for chunk in import_table(
            os.fspath(path),
            key_column=key_column,
            has_header=has_header,
            storage_options=storage_options,
        ):
            store.import_rows(table, Rows(*chunk))
            count += len(chunk.keys)
        return count
