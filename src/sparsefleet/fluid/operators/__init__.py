"""Operators and layers by family, with the torch function and the layer that adds it to a
program.
"""

__all__ = ()
