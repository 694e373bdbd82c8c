"""Saved programs as data."""

from sparsefleet.fluid.proto import framework_pb2

__all__ = ["framework_pb2"]
