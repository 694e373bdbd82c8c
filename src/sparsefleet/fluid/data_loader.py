"""The door to all loaders."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from sparsefleet.fluid.generator_loader import GeneratorLoader
from sparsefleet.fluid.variable import Variable
from sparsefleet.reader.background import WAIT_S

__all__ = ["DataLoader"]


class DataLoader:
    """Makes loaders.

    >>> from sparsefleet import fluid
    >>> ads = fluid.data("ads", [None, 1], "int64")
    >>> loader = DataLoader.from_generator(feed_list=[ads], capacity=2)
    >>> loader = loader.set_sample_generator(
    ...     lambda: ((n,) for n in range(4)), batch_size=2, places=fluid.CPUPlace()
    ... )
    >>> [batch["ads"].numpy()[:, 0].tolist() for batch in loader]
    [[0, 1], [2, 3]]
    """

    @staticmethod
    def from_generator(
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
        *,
        wait_s: float = WAIT_S,
    ) -> GeneratorLoader:
        """A loader of batches from a Python generator; arguments as of `GeneratorLoader`.

        use_multiprocess: of Fluid's imperative mode only; `reader.multiprocess_reader` reads in
            processes.
        """
        if use_multiprocess:
            warnings.warn(
                "use_multiprocess=True is for Fluid's imperative mode and does nothing here; "
                "sparsefleet.reader.multiprocess_reader reads in processes of their own",
                stacklevel=2,
            )
        return GeneratorLoader(
            feed_list,
            capacity,
            use_double_buffer,
            iterable,
            return_list,
            drop_last=drop_last,
            wait_s=wait_s,
        )
