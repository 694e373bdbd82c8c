"""Who is compared, by the names that records have them under."""

OURS = "sparsefleet"
PADDLE = "PaddlePaddle"
TORCH = "torch"
GENSIM = "gensim"
PRODUCTS = "products"
