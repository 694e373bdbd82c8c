"""Inject faults into a running job and check its invariants afterwards."""

from sparsefleet.launch.chaos.chaos_run import ChaosReport, run_chaos
from sparsefleet.launch.chaos.injector import ChaosConfig, Fault, make_schedule

__all__ = ["ChaosConfig", "ChaosReport", "Fault", "make_schedule", "run_chaos"]
