"""Prints docs/metrics_reference.md, which lists all metrics of the code."""

from sparsefleet.monitor.series import reference_page

print(reference_page(), end="")
