"""Tables in this process."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparsefleet import _core
from sparsefleet.store.arrays import as_keys
from sparsefleet.store.store import Store


class LocalStore(Store):
    """A store without servers: for a laptop, a test, or one big machine.

    >>> from sparsefleet.store import LocalStore, TableSpec
    >>> with LocalStore() as store:
    ...     store.define(TableSpec(name="users", dim=4))
    ...     store.pull("users", [], train=False).shape
    (0, 4)
    """

    def __init__(self, *, timeout_s: float = 30.0) -> None:
        super().__init__(_core.Store.local(), timeout_s=timeout_s)

    def contains(self, table: str, keys: Any) -> NDArray[np.bool_]:
        """Which of ``keys`` have a row: bool[keys.shape]. None is created.

        >>> import numpy as np
        >>> from sparsefleet.store import LocalStore, TableSpec
        >>> store = LocalStore()
        >>> store.define(TableSpec(name="users", dim=4))
        >>> rows = store.pull("users", np.array([3]))
        >>> store.contains("users", np.array([3, 4]))
        array([ True, False])
        """
        keys = as_keys(table, keys)
        self._deadline(None)  # not in a fork
        return self._native.contains(table, keys.reshape(-1)).reshape(keys.shape)
