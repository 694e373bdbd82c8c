"""Readers for the public data sets in Fluid's examples, each loaded on first use."""

from sparsefleet.fluid.paths import known_names

__getattr__ = known_names(
    __name__,
    "dataset",
    {
        "cifar": "sparsefleet.fluid.paddle.dataset.cifar",
        "common": "sparsefleet.fluid.paddle.dataset.common",
        "conll05": "sparsefleet.fluid.paddle.dataset.conll05",
        "flowers": "sparsefleet.fluid.paddle.dataset.flowers",
        "image": "sparsefleet.fluid.paddle.dataset.image",
        "imdb": "sparsefleet.fluid.paddle.dataset.imdb",
        "imikolov": "sparsefleet.fluid.paddle.dataset.imikolov",
        "mnist": "sparsefleet.fluid.paddle.dataset.mnist",
        "movielens": "sparsefleet.fluid.paddle.dataset.movielens",
        "uci_housing": "sparsefleet.fluid.paddle.dataset.uci_housing",
        "wmt14": "sparsefleet.fluid.paddle.dataset.wmt14",
        "wmt16": "sparsefleet.fluid.paddle.dataset.wmt16",
    },
)

__all__ = [
    "cifar",
    "common",
    "conll05",
    "flowers",
    "image",
    "imdb",
    "imikolov",
    "mnist",
    "movielens",
    "uci_housing",
    "wmt14",
    "wmt16",
]
