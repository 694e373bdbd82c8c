"""Tables in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.store.arrays import Floats, as_keys
from sparsefleet.store.store import Store

if TYPE_CHECKING:
    from sparsefleet.server.table_files import TableFiles


class LocalStore(Store):
    """A store without servers, for a laptop, a test, or one big machine.

    >>> from sparsefleet.store import LocalStore, TableSpec
    >>> with LocalStore() as store:
    ...     store.define(TableSpec(name="users", dim=4))
    ...     store.pull("users", [], train=False).shape
    (0, 4)
    """

    def __init__(self, *, timeout_s: float = 30.0) -> None:
        super().__init__(_core.Store.local(), timeout_s=timeout_s)
        self._files: TableFiles | None = None

    def command(
        self, server: int, name: str, body: bytes = b"", *, timeout_s: float | None = None
    ) -> bytes:
        """Like a server, answer the commands for saving and loading; others raise an error."""
        self._deadline(timeout_s)
        if self._files is None:
            from sparsefleet.server.table_files import TableFiles

            self._files = TableFiles(self._native)
        answer = self._files.calls().get(name)
        if answer is None or server != 0:
            return super().command(server, name, body, timeout_s=timeout_s)
        return answer(body)

    def live_dense(self, table: str) -> Floats:
        """Return the live values of a dense table, float32[size], which pushes change in place.

        The array stays valid after the store is closed. While another thread pushes, a read may
        see some elements from before the push and some from after it.

        >>> import numpy as np
        >>> from sparsefleet.optim import SGD
        >>> from sparsefleet.store import DenseSpec, LocalStore
        >>> store = LocalStore()
        >>> store.define(DenseSpec(name="mlp", size=2, optimizer=SGD(lr=1.0)))
        >>> values = store.live_dense("mlp")
        >>> result = store.push_dense("mlp", np.array([1.0, 2.0], np.float32))
        >>> values
        array([-1., -2.], dtype=float32)
        """
        return self._native.live_dense(table)

    def contains(self, table: str, keys: Any) -> NDArray[np.bool_]:
        """Return which of ``keys`` have a row: bool[keys.shape]. Creates no rows.

        >>> import numpy as np
        >>> from sparsefleet.store import LocalStore, TableSpec
        >>> store = LocalStore()
        >>> store.define(TableSpec(name="users", dim=4))
        >>> rows = store.pull("users", np.array([3]))
        >>> store.contains("users", np.array([3, 4]))
        array([ True, False])
        """
        asked = as_keys(table, keys)
        return self._native.contains(table, asked.reshape(-1)).reshape(asked.shape)
