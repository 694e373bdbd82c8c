"""The rows that a worker's next mini-batches want come back with the push of the present ones.

Letters: N keys, D row width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sparsefleet.modes.mode_setting import StepGradients
from sparsefleet.store import TableSpec
from sparsefleet.store.arrays import Floats, Keys


class RowsAhead:
    """What the copies of all threads want, asked for as one.

    A key that several threads want is asked for by each, as their own pulls would: what counts
    pulls of a key counts the same.
    """

    def __init__(self, copies: Sequence[StepGradients], tables: Mapping[str, TableSpec]) -> None:
        self._copies = copies
        self.rows: dict[str, tuple[Keys, Floats]] = {}
        """Table to keys uint64[N] and room for their rows float32[N, D], as a push takes them."""
        for table in dict.fromkeys(table for copy in copies for table in copy.wanted):
            parts = [copy.wanted[table] for copy in copies if table in copy.wanted]
            keys = parts[0] if len(parts) == 1 else np.concatenate(parts)
            self.rows[table] = keys, np.empty((len(keys), tables[table].dim), np.float32)

    def hand_out(self) -> None:
        """After the push: each copy gets its rows."""
        for table, (_, rows) in self.rows.items():
            end = 0
            for copy in self._copies:
                if table in copy.wanted:
                    begin, end = end, end + len(copy.wanted[table])
                    copy.brought[table] = rows[begin:end]
