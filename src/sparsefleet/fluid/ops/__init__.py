"""Operators by family: the functions of torch that they are. Loaded by the registry."""

__all__ = ()
