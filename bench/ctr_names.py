"""Who is compared, by the names that records have them under."""

OURS = "sparsefleet"
OURS_BY_TORCH = "sparsefleet by torch operators"
"""Where an operator of ours has a twin that torch's operators make up."""
PADDLE = "PaddlePaddle"
TORCH = "torch"
GENSIM = "gensim"
PRODUCTS = "products"
