"""The sides of bench/collective.py, by name."""

from __future__ import annotations

from dataclasses import dataclass

from sparsefleet.collective import AmpConfig, CollectiveStrategy, LocalSgdConfig

BUCKET_MB = 0.5
"""Several buckets for either model, each with more than one layer or with a large one."""


@dataclass(frozen=True, slots=True)
class SideSpec:
    """One way to train together."""

    title: str
    size: int
    """Ranks."""
    strategy: CollectiveStrategy | None
    """None means plain torch."""


def _local(steps: int) -> SideSpec:
    strategy = CollectiveStrategy(local_sgd=LocalSgdConfig(warm_steps=0, steps=steps))
    return SideSpec(f"LocalSGD, {steps}", 2, strategy)


SIDES: dict[str, SideSpec] = {
    "ddp": SideSpec("torch DDP", 2, None),
    "fused": SideSpec("fused (default)", 2, CollectiveStrategy()),
    "by-size": SideSpec(
        f"fused, {BUCKET_MB:g} MB", 2, CollectiveStrategy(fuse_memory_mb=BUCKET_MB)
    ),
    "by-layer": SideSpec("fused by layer", 2, CollectiveStrategy(fuse_memory_mb=-1)),
    "rings": SideSpec("by layer, 2 rings", 2, CollectiveStrategy(fuse_memory_mb=-1, num_rings=2)),
    "unfused": SideSpec("unfused", 2, CollectiveStrategy(fuse_all_reduce=False)),
    "bf16": SideSpec("fused, bfloat16", 2, CollectiveStrategy(amp=AmpConfig())),
    "local-1": _local(1),
    "local-2": _local(2),
    "local-4": _local(4),
    "local-8": _local(8),
    "ddp-4": SideSpec("torch DDP, 2x2", 4, None),
    "fused-4": SideSpec("fused, 2x2", 4, CollectiveStrategy()),
    "hierarchical": SideSpec("hierarchical, 2x2", 4, CollectiveStrategy(hierarchical=True)),
}
QUICK_SIDES = ("ddp", "fused", "rings", "bf16", "local-4", "ddp-4", "fused-4", "hierarchical")
"""One side of each kind."""
