"""The `sparsefleet` command, one module per subcommand."""

__all__ = ()
