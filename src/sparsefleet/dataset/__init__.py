"""The public data sets that Fluid examples train on, as readers. Each is loaded at first use."""

from sparsefleet.fluid.unknown_names import known_names

__getattr__ = known_names(
    __name__,
    "dataset",
    {
        "cifar": "sparsefleet.dataset.cifar",
        "common": "sparsefleet.dataset.common",
        "conll05": "sparsefleet.dataset.conll05",
        "imdb": "sparsefleet.dataset.imdb",
        "imikolov": "sparsefleet.dataset.imikolov",
        "mnist": "sparsefleet.dataset.mnist",
        "movielens": "sparsefleet.dataset.movielens",
        "uci_housing": "sparsefleet.dataset.uci_housing",
        "wmt16": "sparsefleet.dataset.wmt16",
    },
)

__all__ = [
    "cifar",
    "common",
    "conll05",
    "imdb",
    "imikolov",
    "mnist",
    "movielens",
    "uci_housing",
    "wmt16",
]
