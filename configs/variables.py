"""Environment variables that stock MXNet 1.9.1 and Horovod 0.28.1 read, and variables that only forks of them read.

Both libraries silently ignore a variable that is misspelt or that only a fork reads, so a cluster file with such a
variable would not do what it says. Variables with other prefixes (NCCL_*, OMP_*, CUDA_*, a site's own) are not checked,
because their libraries come with the site.
*Sources*: the strings in the two CPU libraries; MXNet's page of environment variables, for those that only CUDA builds
read; the strings present in and absent from the CUDA binary; the submissions of 2019 to 2023, for the forks' variables.
"""

import difflib
import json
import mmap
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from configs.errors import ConfigError

_MXNET = """
BACKWARD_DO_MIRROR CPU_PARALLEL_RAND_COPY CPU_PARALLEL_SIZE CPU_PRIORITY_NTHREADS CPU_TEMP_COPY CPU_WORKER_NTHREADS
CUDA_ALLOW_TENSOR_CORE CUDA_LIB_CHECKING CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION CUDNN_AUTOTUNE_DEFAULT
CUDNN_LIB_CHECKING DISABLE_MKLDNN_CONV_OPT DISABLE_MKLDNN_FC_OPT DISABLE_MKLDNN_FUSE_CONV_BN
DISABLE_MKLDNN_FUSE_CONV_RELU DISABLE_MKLDNN_FUSE_CONV_SUM DISABLE_MKLDNN_FUSE_FC_ELTWISE
DISABLE_MKLDNN_QEM_FLOAT_OUTPUT DISABLE_MKLDNN_QEM_FUSE_ALL DISABLE_MKLDNN_QFC_FLOAT_OUTPUT
DISABLE_MKLDNN_QFC_FUSE_ALL DISABLE_MKLDNN_QTRANSFORMER_FLOAT_OUTPUT DISABLE_MKLDNN_QTRANSFORMER_FUSE_ALL
DISABLE_MKLDNN_TRANSFORMER_OPT ELIMINATE_COMMON_EXPR ENABLE_CUDA_GRAPHS ENABLE_CYTHON ENABLE_GPU_P2P ENFORCE_CYTHON
ENFORCE_DETERMINISM ENGINE_INFO ENGINE_TYPE EXEC_BULK_EXEC_INFERENCE EXEC_BULK_EXEC_MAX_NODE_TRAIN
EXEC_BULK_EXEC_MAX_NODE_TRAIN_BWD EXEC_BULK_EXEC_MAX_NODE_TRAIN_FWD EXEC_BULK_EXEC_TRAIN EXEC_INPLACE_GRAD_SUM_CAP
EXEC_VERBOSE_LOGGING FC_TRUE_FP16 GLUON_REPO GPU_COPY_NTHREADS GPU_MEM_LARGE_ALLOC_ROUND_SIZE GPU_MEM_POOL_PAGE_SIZE
GPU_MEM_POOL_RESERVE GPU_MEM_POOL_ROUND_LINEAR_CUTOFF GPU_MEM_POOL_TYPE GPU_PARALLEL_RAND_COPY GPU_TEMP_COPY
GPU_WORKER_NSTREAMS GPU_WORKER_NTHREADS HOME INFER_STORAGE_TYPE_VERBOSE_LOGGING KVSTORE_BIGARRAY_BOUND
KVSTORE_DIST_ROW_SPARSE_VERBOSE KVSTORE_GPUARRAY_BOUND KVSTORE_LOGTREE KVSTORE_REDUCTION_NTHREADS KVSTORE_SERIAL_PUSH
KVSTORE_SLICE_THRESHOLD KVSTORE_TREE_ARRAY_BOUND KVSTORE_TREE_BACKTRACK KVSTORE_TREE_LINK_USAGE_PENALTY
KVSTORE_USETREE LIBRARY_PATH MEM_PLAN_VERBOSE_LOGGING MKLDNN_CACHE_NUM MKLDNN_DEBUG MKLDNN_ENABLED
MKLDNN_FORCE_FC_AB_FORMAT MKLDNN_QFC_DYNAMIC_PARAMS MP_OPENCV_NUM_THREADS MP_WORKER_NTHREADS OMP_MAX_THREADS
OPTIMIZER_AGGREGATION_SIZE OUTPUT_TUNING_DATA PROFILER_AUTOSTART PROFILER_MODE QUANTIZATION_VERBOSE
RNN_USE_WEIGHT_CACHE SAFE_ACCUMULATION STORAGE_FALLBACK_LOG_VERBOSE SUBGRAPH_BACKEND SUBGRAPH_VERBOSE
TUNING_WEIGHT_SCALE UPDATE_AGGREGATION_SIZE UPDATE_ON_KVSTORE USE_FUSION USE_MKLDNN_RNN
USE_NUM_CORES_OPERATOR_TUNING USE_OPERATOR_TUNING VERBOSE_TUNING_INFO
"""

_HOROVOD = """
ADASUM_MPI_CHUNK_SIZE AUTOTUNE AUTOTUNE_BAYES_OPT_MAX_SAMPLES AUTOTUNE_GAUSSIAN_PROCESS_NOISE AUTOTUNE_LOG
AUTOTUNE_STEPS_PER_SAMPLE AUTOTUNE_WARMUP_SAMPLES BATCH_D2D_MEMCOPIES CACHE_CAPACITY CONTROLLER CPU_OPERATIONS
CROSS_RANK CROSS_SIZE CYCLE_TIME DISABLE_GROUP_FUSION DYNAMIC_PROCESS_SETS ELASTIC ELASTIC_TIMEOUT
ENABLE_ASYNC_COMPLETION ENABLE_XLA_OPS FUSION_THRESHOLD GLOO_IFACE GLOO_RENDEZVOUS_ADDR GLOO_RENDEZVOUS_PORT
GLOO_TIMEOUT_SECONDS HIERARCHICAL_ALLGATHER HIERARCHICAL_ALLREDUCE HOSTNAME LOCAL_RANK LOCAL_SIZE LOG_HIDE_TIME
LOG_LEVEL MPI_THREADS_DISABLE NUM_NCCL_STREAMS RANK SIZE STALL_CHECK_DISABLE STALL_CHECK_TIME_SECONDS
STALL_SHUTDOWN_TIME_SECONDS START_TIMEOUT THREAD_AFFINITY TIMELINE TIMELINE_MARK_CYCLES TORUS_ALLREDUCE
"""

_LIBRARIES = {"MXNET": ("MXNet 1.9.1", _MXNET), "HOROVOD": ("Horovod 0.28.1", _HOROVOD)}

KNOWN = frozenset(f"{prefix}_{name}" for prefix, (_, names) in _LIBRARIES.items() for name in names.split())
"""All MXNET_* and HOROVOD_* names that a cluster file may set."""

_FORKED = {
    "MXNET_EXEC_ENABLE_ADDTO": "use MXNET_EXEC_INPLACE_GRAD_SUM_CAP",
    "MXNET_EXPERIMENTAL_ENABLE_CUDA_GRAPH": "use MXNET_ENABLE_CUDA_GRAPHS",
    "MXNET_USE_TENSORRT": "this build has no TensorRT; leave it out",
    "MXNET_ASYNC_GPU_ENGINE": "only NVIDIA's container reads it; use engine.backward_bulk_nodes for overlap",
    "MXNET_NHWC_BATCHNORM_LAUNCH_MARGIN": "only NVIDIA's fused batch norm reads it; leave it out",
    "MXNET_CUDNN_SUPPLY_NORMCONV_CONSTANTS": "only NVIDIA's normalized convolution reads it; leave it out",
    "MXNET_L2_NORM_NUM_BLOCKS": "only the 2019 record's own kernels read it; leave it out",
    "MXNET_L2_NORM_NUM_THREADS": "only the 2019 record's own kernels read it; leave it out",
    "MXNET_HOROVOD_NUM_GROUPS": "only NVIDIA's scripts read it; use communication.bucket_bytes",
    "HOROVOD_NUM_STREAMS": "use HOROVOD_NUM_NCCL_STREAMS",
    "HOROVOD_GROUPED_ALLREDUCES": "use communication.bucket_bytes",
    "HOROVOD_ALLREDUCE_MODE": "only the 2019 record's fork reads it; use communication.allreduce: torus",
    "HOROVOD_TWO_STAGE_LOOP": "only the 2019 record's fork reads it; use communication.allreduce: torus",
    "HOROVOD_FIXED_PAYLOAD": "only the 2019 record's fork reads it; HOROVOD_CACHE_CAPACITY saves most negotiation",
    "HOROVOD_MULTIPLE_TRANSFER": "only the 2019 record's fork reads it; use communication.bucket_bytes",
    "HOROVOD_PREPARE": "only the 2019 record's fork reads it; leave it out, Horovod starts in the background anyway",
}
"""Variable that only forks of the libraries read -> what to do instead."""


def require_known(name: str) -> None:
    """Raise an error if ``name`` is an MXNET_* or HOROVOD_* variable that the library does not read.

    Where the environment was made over a site's own MXNet and Horovod, the variables in these libraries count too.

    Raises:
        ConfigError: The message names the nearest variable that the library reads, or what replaces a fork's variable.
    """
    prefix, _, rest = name.partition("_")
    library, names = _LIBRARIES.get(prefix, ("", ""))
    if not library or name in KNOWN or is_read_by_site(prefix.lower(), name):
        return
    # Names are compared without the prefix, which alone would make any two of them similar.
    match = difflib.get_close_matches(rest, names.split(), n=1)
    remedy = _FORKED.get(name) or (f"did you mean '{prefix}_{match[0]}'?" if match else "leave it out")
    raise ConfigError("environment", name, f"variables that the stock {library} reads; it ignores this one", remedy)


@cache
def is_read_by_site(package: str, name: str) -> bool:
    """Return whether this environment was made over a site's own libraries, and one of the package has the name."""
    try:
        setup = json.loads(Path(sys.prefix, "setup.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    found = find_spec(package) if isinstance(setup, dict) and setup.get("base") else None
    for folder in (found.submodule_search_locations if found else None) or []:
        # NVIDIA's containers have the package in /opt/mxnet/python and its library in /opt/mxnet/lib.
        beside = Path(folder).parent.parent / "lib"
        libraries = [*Path(folder).rglob("*.so"), *beside.glob(f"lib{package}*.so")]
        if any(_has_text(path, name) for path in libraries):
            return True
    return False


def _has_text(path: Path, text: str) -> bool:
    """Return whether a library has a text among its constants, where it ends with a zero byte."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(text.encode() + b"\0") >= 0
