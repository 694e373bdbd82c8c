"""Made-up figures in the format of a benchmark run."""

from __future__ import annotations

from typing import Any

SPREAD = [3.0, 2.0, 5.0]


def section(rate: float, cpu_us: float) -> dict[str, float]:
    return {
        "examples_per_s": rate,
        "cpu_us_per_example": cpu_us,
        "server_cpu_us_per_example": cpu_us / 10,
    }


def side(rate: float, cpu_us: float = 40.0, mib: int = 400) -> dict[str, Any]:
    """Five repeats around a median of `rate` at batch 1000, and of half of it at 100."""
    factors = (1.0, 0.9, 1.1, 0.8, 1.2)
    return {
        "error": None,
        "startup_s": 2.5,
        "worker_bytes": mib << 20,
        "server_bytes": 100 << 20,
        "sections": {
            "1000": [section(rate * factor, cpu_us) for factor in factors],
            "100": [section(rate / 2 * factor, cpu_us * 2) for factor in factors],
        },
    }


def failed_side(error: str) -> dict[str, Any]:
    empty = {"startup_s": 0.0, "worker_bytes": 0, "server_bytes": 0, "sections": {}}
    return {"error": error, **empty}


def growth_figure(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "title": f"Growth of {name}",
        "x_label": name,
        "y_label": "ns",
        "is_x_log": True,
        "is_y_log": False,
        "about": "invented",
        "series": {"pull": [[10, *SPREAD], [100, *SPREAD]], "push": [[10, *SPREAD]]},
        "errors": {"geo": "RuntimeError: exited with code 9"},
    }


def ctr_groups() -> dict[str, dict[str, Any]]:
    floor = {
        "products 2x1": side(60_000),
        "products 1x2": side(50_000),
        "dense 2x1": side(56_000),
    }
    ddp = {"torch DDP 2": side(20_000, 60.0)}
    return {
        "local": {
            **floor,
            "torch local 2": side(40_000, 45.0),
            "sparsefleet local 2": side(54_000, 38.0),
            "PaddlePaddle local 2": side(13_000, 144.0, 900),
        },
        "rounds": {
            **floor,
            **ddp,
            "sparsefleet sync 2x2": side(30_000),
            "sparsefleet half_async 2x2": failed_side(
                "RuntimeError: exited with code -9\nlast words"
            ),
            "PaddlePaddle sync 2x2": side(10_000, 150.0, 900),
        },
        "background": {**floor, **ddp, "sparsefleet async 2x2": side(48_000)},
        "files": {"sparsefleet local 2, files": side(50_000)},
    }


def all_figures() -> dict[str, dict[str, Any]]:
    """Return figures for every part."""
    growths = ("rows", "width", "batch", "servers", "workers", "delay")
    parts = {
        **{f"ctr-{group}": {group: sides} for group, sides in ctr_groups().items()},
        **{f"growth-{name}": {name: growth_figure(name)} for name in growths},
        "quality": quality(),
        "word2vec": word2vec(),
        "skip-gram": skip_gram(),
        "collective": {"sides": {"sparsefleet 2 ranks": told()}},
        **scripts_of_their_own(),
    }
    return {name: {"machine": "a machine", **figures} for name, figures in parts.items()}


def skip_gram() -> dict[str, Any]:
    rates = {"sparsefleet": [3.0, 2.0, 4.0], "gensim": [2.0, 1.0, 2.0]}
    row = ["sparsefleet", "3", "2 to 4", "1.5x", "0.3", "0.1", "1%"]
    return {"ratio": 1.5, "rates": rates, "rows": [row]}


def told() -> dict[str, Any]:
    return {"rate": SPREAD, "unit": "pairs/s", "cpu_us": SPREAD, "error": None}


def quality() -> dict[str, Any]:
    sides = {
        "sparsefleet local 1": {"auc": 0.7},
        "sparsefleet async 2x2": {
            "auc": 0.699,
            "deviation": 0.002,
            "difference": -0.001,
            "standard_error": 0.0004,
        },
        "PaddlePaddle geo 2x2": {"error": "RuntimeError: hung"},
    }
    about = {"examples": 1000, "batch": 100, "lr": 0.5, "row_lr": 5.0, "seeds": 5}
    books = {"missing": "interactions.tsv: found neither this file nor interactions.tsv.gz"}
    return {"generated": {**about, "best": 0.83, "sides": sides}, "books": books}


def word2vec() -> dict[str, Any]:
    sides = {
        "sparsefleet geo 2x2": told(),
        "gensim 2": told(),
        "PaddlePaddle geo 2x2": {"error": "skipped: no Python 3.7"},
    }
    return {
        "sides": sides,
        "by_batch": {"100": sides},
        "tables": [{"title": "scores", "columns": ["", "WordSim"], "rows": [["ours", "0.6"]]}],
        "notes": ["Invented."],
    }


def scripts_of_their_own() -> dict[str, dict[str, Any]]:
    """Return figures in each form."""
    passes = {"ours, 1 thread": [[600.0, 1.4]], "torch, in process": [[20.0, 50.0]]}
    door = {"Fluid": [[1.0, 2.0]]}
    taken = {"2600": {"lookup 1": SPREAD}, "100": {"lookup 1": SPREAD}}
    sgd = {"ns_per_row": taken, "memory_ratio": 1.1, "resident_ratio": 1.2}
    answer = {"p50_ms": 1.0, "p99_ms": 2.0, "requests": 10, "seconds": 1.0, "errors": 0}
    delays = {"updates": 3, "first_s": 1.0, "median_s": 0.5, "largest_s": 0.9}
    return {
        "tables": {"rows": 10, "dim": 4, "sgd": sgd},
        "rows": {"tables": [{"title": "bits", "columns": ["", "bytes"], "rows": [["bf16", "2"]]}]},
        "transport": {"rows": 10, "dim": 4, "100": {"pull tls": SPREAD}},
        "reader": {
            **dict.fromkeys(("multi_slot", "criteo", "parquet"), passes),
            "training": {"from memory": [[100.0, 30.0, 0.1]]},
            "memory": {"one id a slot": 1.1},
        },
        "checkpoint": {"save, MB/s": 600.0},
        "doors": {"examples": 100, "1000": door, "100": door, "sync 1000": door},
        "serving": {"serving": {"files, 1 client": answer}},
        "freshness": {"rows": 10, "examples_per_s": 1.0, **delays},
    }
