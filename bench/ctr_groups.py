"""The sides of CTR-DNN by group; the sides of a group take turns."""

from __future__ import annotations

from ctr_names import DENSE, OURS, PADDLE, PRODUCTS, TORCH
from ctr_start import SideSpec, fleet

FLOOR = (
    SideSpec(engine=PRODUCTS, workers=2),
    SideSpec(engine=PRODUCTS, threads=2),
)
CEILING = SideSpec(engine=DENSE, workers=2)
DDP = SideSpec(engine=TORCH, workers=2)
ENCRYPTED: tuple[dict[str, str], ...] = (
    {"transport": "tls"},
    {"transport": "tls", "wire_dtype": "bf16"},
)
"""Between machines, with numbers of 32 or 16 bits."""
GROUPS: dict[str, tuple[SideSpec, ...]] = {
    "local": (
        *FLOOR,
        CEILING,
        SideSpec(engine=DENSE),
        *(SideSpec(engine=e, threads=t) for t in (1, 2) for e in (TORCH, OURS, PADDLE)),
    ),
    "rounds": (
        *FLOOR,
        CEILING,
        DDP,
        *(fleet(mode) for mode in ("sync", "half_async", "hybrid")),
        *(fleet("sync", **wire) for wire in ENCRYPTED),
        *(fleet(mode, PADDLE) for mode in ("sync", "half_async")),
    ),
    "background": (
        *FLOOR,
        CEILING,
        DDP,
        *(fleet(mode, engine) for mode in ("async", "geo") for engine in (OURS, PADDLE)),
        *(fleet("async", **wire) for wire in ENCRYPTED),
    ),
    "files": (
        *FLOOR,
        *(SideSpec(engine=OURS, threads=threads, from_files=True) for threads in (1, 2)),
        *(fleet(mode, from_files=True) for mode in ("sync", "half_async", "async", "geo")),
        SideSpec(engine=PADDLE, threads=2, from_files=True),
        fleet("async", PADDLE, from_files=True),
    ),
}
QUICK_SIDES = {
    "local": (
        "products 2x1", "dense 2x1", "torch local 2", "sparsefleet local 2", "PaddlePaddle local 2",
    ),
    "rounds": (
        "torch DDP 2", "sparsefleet sync 2x2", "sparsefleet sync 2x2, tls, bf16",
        "PaddlePaddle sync 2x2",
    ),
    "background": ("sparsefleet async 2x2", "sparsefleet geo 2x2"),
    "files": ("sparsefleet async 2x2, files", "PaddlePaddle local 2, files"),
}  # fmt: skip
"""One side of each kind: processes take seconds to start, and a quick run lasts only minutes."""
