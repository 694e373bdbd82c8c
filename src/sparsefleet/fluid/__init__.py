"""Fluid's names, each loaded on first use, so that a script loads only the parts it needs."""

from sparsefleet.fluid.paths import by_name, known_names, provide_paths

provide_paths()

_modules = (
    "average backward clip compiler contrib core dataset dygraph evaluator executor framework "
    "incubate initializer input io layer_helper layers metrics nets optimizer "
    "parallel_executor param_attr profiler proto regularizer transpiler unique_name"
)

_homes = by_name(
    {
        "sparsefleet.fluid.dygraph": (
            "BCELoss BatchNorm BilinearTensorProduct Conv2D Conv2DTranspose Conv3D "
            "Conv3DTranspose Dropout Embedding GRUUnit GroupNorm InstanceNorm L1Loss Layer "
            "LayerNorm Linear MSELoss NCE NLLLoss PRelu Pool2D SpectralNorm VarBase"
        ),
        "sparsefleet.fluid.dygraph.eager": (
            "disable_dygraph disable_imperative enable_dygraph enable_imperative"
        ),
        "sparsefleet.fluid.dygraph.saving": "load_dygraph save_dygraph",
        "sparsefleet.fluid.executor.compiler": "BuildStrategy CompiledProgram ExecutionStrategy",
        "sparsefleet.fluid.executor.dataset_training": "FetchHandler",
        "sparsefleet.fluid.executor.executor": "Executor ParallelExecutor PeriodicFetch",
        "sparsefleet.fluid.feeding.data_feeder": "DataFeeder",
        "sparsefleet.fluid.feeding.dataset": (
            "DatasetFactory FileInstantDataset InMemoryDataset QueueDataset"
        ),
        "sparsefleet.fluid.feeding.dataset_base": "DataFeedDesc",
        "sparsefleet.fluid.fleet.distribute_transpiler": (
            "DistributeTranspiler memory_optimize release_memory"
        ),
        "sparsefleet.fluid.fleet.settings": "DistributeTranspilerConfig",
        "sparsefleet.fluid.framework": (
            "Parameter Program default_main_program default_startup_program device_guard "
            "in_dygraph_mode name_scope program_guard"
        ),
        "sparsefleet.fluid.framework.flags": "get_flags set_flags",
        "sparsefleet.fluid.framework.lod_tensor": (
            "LoDTensor LoDTensorArray Tensor create_lod_tensor create_random_int_lodtensor"
        ),
        "sparsefleet.fluid.framework.param_attr": "ParamAttr WeightNormParamAttr",
        "sparsefleet.fluid.framework.places": (
            "CPUPlace CUDAPinnedPlace CUDAPlace cpu_places cuda_pinned_places cuda_places "
            "is_compiled_with_cuda"
        ),
        "sparsefleet.fluid.framework.scope": "Scope global_scope scope_guard",
        "sparsefleet.fluid.framework.variable": "Variable data",
        "sparsefleet.fluid.io.program_state": "load load_program_state save set_program_state",
        "sparsefleet.fluid.input": "embedding one_hot",
        "sparsefleet.fluid.optimizer.backward": "append_backward gradients",
        "sparsefleet.fluid.paddle.version": "require_version",
    }
) | {name: f"sparsefleet.fluid.{name}" for name in _modules.split()}

__getattr__ = known_names(__name__, "fluid", _homes)

__all__ = sorted(_homes)
