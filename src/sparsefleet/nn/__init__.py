"""Embeddings for torch modules whose rows live in tables, and scaling of images sent as bytes."""

from sparsefleet.nn.binding import apply_gradients, bind, discard_gradients
from sparsefleet.nn.embedding_dots import embedding_dots
from sparsefleet.nn.image_scaling import ImageScaling
from sparsefleet.nn.import_embedding import import_embedding, import_embeddings
from sparsefleet.nn.sparse_embedding import SparseEmbedding
from sparsefleet.nn.sparse_embedding_bag import SparseEmbeddingBag

__all__ = [
    "ImageScaling",
    "SparseEmbedding",
    "SparseEmbeddingBag",
    "apply_gradients",
    "bind",
    "discard_gradients",
    "embedding_dots",
    "import_embedding",
    "import_embeddings",
]
