"""From Fluid's strategies to the modes that carry them out."""

from __future__ import annotations

from sparsefleet.fleet.strategies import DistributedStrategy
from sparsefleet.modes import AsyncConfig, GeoConfig, ModeConfig

__all__ = ["mode_of_strategy", "threads_of_strategy"]

_NAP_S = 0.01  # Fluid's sender naps this long for each of its send_wait_times


def mode_of_strategy(strategy: DistributedStrategy) -> str | ModeConfig:
    """The mode with the knobs of the strategy's trainer runtime config.

    Whether async adds or averages merged gradients follows from the optimizer, as
    communicator_is_sgd_optimizer was meant to say; only "0" changes that.
    """
    flags = strategy.get_trainer_runtime_config().get_communicator_flags()
    if strategy.mode_name == "geo":
        steps = strategy.get_program_config().geo_sgd_need_push_nums
        return GeoConfig(push_interval_steps=steps)
    if strategy.mode_name != "async":
        return strategy.mode_name
    return AsyncConfig(
        max_merge=int(flags["communicator_max_merge_var_num"]),
        queue_size=int(flags["communicator_send_queue_size"]),
        wait_s=int(flags["communicator_send_wait_times"]) * _NAP_S,
        steps_before_refresh=int(flags["communicator_min_send_grad_num_before_recv"]),
        merge="mean" if flags["communicator_is_sgd_optimizer"] == "0" else "auto",
    )


def threads_of_strategy(strategy: DistributedStrategy) -> int:
    """Training threads of a worker."""
    return int(strategy.get_execute_strategy().num_threads)
