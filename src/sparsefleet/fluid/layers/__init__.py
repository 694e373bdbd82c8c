"""Layers of a program."""

from sparsefleet.fluid.layers.io import (
    create_py_reader_by_data,
    data,
    double_buffer,
    py_reader,
    read_file,
)

__all__ = ["create_py_reader_by_data", "data", "double_buffer", "py_reader", "read_file"]
