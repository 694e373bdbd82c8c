"""The engines being compared, by their names in records."""

OURS = "sparsefleet"
OURS_BY_TORCH = "sparsefleet by torch operators"
"""For operators of ours that can also be composed from torch's."""
PADDLE = "PaddlePaddle"
TORCH = "torch"
GENSIM = "gensim"
PRODUCTS = "products"
