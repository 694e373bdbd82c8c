"""A parameter server for PyTorch on CPUs."""

__version__ = "0.1.0"
