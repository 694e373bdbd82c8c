"""Tables in this process."""

from __future__ import annotations

from sparsefleet import _core
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
