"""Sizes a job with a model of the fleet, measured machine costs, and trial runs of a script."""

from sparsefleet.planning.costs import MachineCosts, known_machines, load_machine, save_machine
from sparsefleet.planning.fleet_model import Prediction, predict
from sparsefleet.planning.simulation import Crowding
from sparsefleet.planning.workload import MODES, FleetShape, JobShape, gbit

__all__ = [
    "Crowding",
    "FleetShape",
    "JobShape",
    "MODES",
    "MachineCosts",
    "Prediction",
    "gbit",
    "known_machines",
    "load_machine",
    "predict",
    "save_machine",
]
