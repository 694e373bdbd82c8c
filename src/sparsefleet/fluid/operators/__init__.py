"""Operators and layers by family: the torch function and the layer that adds it to a program."""

__all__ = ()
