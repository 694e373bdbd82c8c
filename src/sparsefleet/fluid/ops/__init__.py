"""Operators by family: the functions of torch that they are."""

__all__: list[str] = []
