"""Operators by family: their torch functions, and the layers that add them to a program."""

__all__ = ()
