"""Programs to graphs of torch functions."""

__all__: list[str] = []
