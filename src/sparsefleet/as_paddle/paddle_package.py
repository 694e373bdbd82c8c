"""What is in the package `paddle`, and how it comes in."""

from __future__ import annotations

import sys

from sparsefleet.as_paddle.alias_finder import AliasFinder
from sparsefleet.as_paddle.old_numpy import restore_numpy
from sparsefleet.as_paddle.old_python import restore_python
from sparsefleet.fluid.fetch_printing import print_as_fluid
from sparsefleet.fluid.unknown_names import known_names

__all__ = ["provide"]

_HOMES = {
    "__version__": "sparsefleet.as_paddle.version",
    "batch": "sparsefleet.reader",
    "compat": "sparsefleet.as_paddle.compat",
    "dataset": "sparsefleet.dataset",
    "distributed": "sparsefleet.distributed",
    "enable_static": "sparsefleet.as_paddle.static_mode",
    "fluid": "sparsefleet.fluid",
    "reader": "sparsefleet.reader",
    "version": "sparsefleet.as_paddle.version",
}

__getattr__ = known_names("paddle", "paddle", _HOMES)


def provide(package: str) -> None:
    """Makes `import paddle.fluid...` work, old spellings of Python and NumPy, and logs.

    package: the name under which the package is imported; other than "paddle", it is some tool
        that looks through all modules, and nothing is done.
    """
    if package != "paddle":
        return
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, AliasFinder("paddle", _HOMES))
    restore_python()
    restore_numpy()
    print_as_fluid()
