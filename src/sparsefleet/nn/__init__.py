"""Embeddings for torch modules whose rows live in tables, and pictures that come as bytes."""

from sparsefleet.nn.binding import bind, sparse_modules
from sparsefleet.nn.embedding_dots import embedding_dots
from sparsefleet.nn.image_scaling import ImageScaling
from sparsefleet.nn.import_embedding import import_embedding, import_embeddings
from sparsefleet.nn.lookup import Lookup
from sparsefleet.nn.lookup_plan import LookupPlan
from sparsefleet.nn.lookup_plans import LookupPlans
from sparsefleet.nn.plain_loop import apply_gradients, discard_gradients
from sparsefleet.nn.pulled_rows import Pull, PulledRows, pull_rows
from sparsefleet.nn.sparse_embedding import SparseEmbedding
from sparsefleet.nn.sparse_embedding_bag import SparseEmbeddingBag
from sparsefleet.nn.sparse_module import SparseModule
from sparsefleet.nn.step_rows import StepRows

__all__ = [
    "ImageScaling",
    "Lookup",
    "LookupPlan",
    "LookupPlans",
    "Pull",
    "PulledRows",
    "SparseEmbedding",
    "SparseEmbeddingBag",
    "SparseModule",
    "StepRows",
    "apply_gradients",
    "bind",
    "discard_gradients",
    "embedding_dots",
    "import_embedding",
    "import_embeddings",
    "pull_rows",
    "sparse_modules",
]
