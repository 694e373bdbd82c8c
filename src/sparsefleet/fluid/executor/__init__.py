"""Run programs: one by one, over a Dataset, and on several places at once."""

from sparsefleet.fluid.paths import known_names

__getattr__ = known_names(
    __name__,
    "fluid.executor",
    {
        "Executor": "sparsefleet.fluid.executor.executor",
        "FetchHandler": "sparsefleet.fluid.executor.dataset_training",
        "_fetch_var": "sparsefleet.fluid.executor.executor",
        "as_numpy": "sparsefleet.fluid.executor.executor",
        "global_scope": "sparsefleet.fluid.framework.scope",
        "scope_guard": "sparsefleet.fluid.framework.scope",
    },
)

__all__ = ["Executor", "FetchHandler", "as_numpy", "global_scope", "scope_guard"]
