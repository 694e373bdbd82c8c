"""The older front of loaders."""

from __future__ import annotations

from collections.abc import Sequence

from sparsefleet.fluid.generator_loader import GeneratorLoader
from sparsefleet.fluid.places import Place
from sparsefleet.fluid.variable import Variable
from sparsefleet.reader.resumable import ReaderFunction

__all__ = ["PyReader"]


class PyReader(GeneratorLoader):
    """A loader whose generators are set by `decorate_*`; see `fluid.io.DataLoader.from_generator`.

    >>> from sparsefleet import fluid
    >>> ads = fluid.data("ads", [None, 1], "int64")
    >>> reader = PyReader([ads], capacity=2, return_list=True)
    >>> samples = lambda: ((number,) for number in range(4))
    >>> reader.decorate_sample_generator(samples, batch_size=2, places=fluid.CPUPlace())
    >>> [ads.numpy()[:, 0].tolist() for (ads,) in reader()]
    [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        feed_list: Sequence[Variable] | None = None,
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
    ) -> None:
        super().__init__(feed_list, capacity, use_double_buffer, iterable, return_list)

    def decorate_sample_generator(
        self,
        sample_generator: ReaderFunction,
        batch_size: int,
        drop_last: bool = True,
        places: Place | Sequence[Place] | None = None,
    ) -> None:
        """As `set_sample_generator`."""
        self.set_sample_generator(sample_generator, batch_size, drop_last, places)

    def decorate_sample_list_generator(
        self, reader: ReaderFunction, places: Place | Sequence[Place] | None = None
    ) -> None:
        """As `set_sample_list_generator`."""
        self.set_sample_list_generator(reader, places)

    def decorate_batch_generator(
        self, reader: ReaderFunction, places: Place | Sequence[Place] | None = None
    ) -> None:
        """As `set_batch_generator`."""
        self.set_batch_generator(reader, places)

    # What fluid.layers.py_reader called the same.
    decorate_paddle_reader = decorate_sample_list_generator
    decorate_tensor_provider = decorate_batch_generator
