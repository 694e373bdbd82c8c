"""How far a training has come, beside its checkpoint."""

from __future__ import annotations

__all__ = ["TrainStatus"]


class TrainStatus:
    """The last epoch that is done; -1 before the first.

    >>> TrainStatus(3).next()
    4
    """

    def __init__(self, epoch_no: int = -1) -> None:
        self._epoch_no = epoch_no

    def next(self) -> int:
        """The epoch to go on with."""
        return self._epoch_no + 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TrainStatus) and self._epoch_no == other._epoch_no

    def __hash__(self) -> int:
        return hash(self._epoch_no)

    def __repr__(self) -> str:
        return f"TrainStatus({self._epoch_no})"
