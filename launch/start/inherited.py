"""Which variables a run takes over from the shell of its caller: all but those of another job, and those of its ranks.

docs/environment.md is the list for users.
"""

import os

_OF_RANKS = (
    # A rank's number under another launcher. By such a variable a rank would take the number of a rank of another run.
    "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_", "HOROVOD_CROSS_", "HOROVOD_HOSTNAME", "HOROVOD_GLOO_RENDEZVOUS_",
    "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_", "WORLD_SIZE",
    "DMLC_",
    # Open MPI's and PMIx's own. OMPI_MCA_* and PMIX_MCA_* are settings of the site, and stay.
    "OMPI_APP_CTX_", "OMPI_ARGV", "OMPI_COMM_WORLD_", "OMPI_COMMAND", "OMPI_FILE_LOCATION", "OMPI_FIRST_RANKS",
    "OMPI_NUM_APP_CTX", "OMPI_UNIVERSE_SIZE", "OMPI_MCA_ess", "OMPI_MCA_initial_wdir", "OMPI_MCA_orte_app_num",
    "OMPI_MCA_orte_bound_at_launch", "OMPI_MCA_orte_ess_", "OMPI_MCA_orte_hnp_uri", "OMPI_MCA_orte_jobfam_session_dir",
    "OMPI_MCA_orte_launch", "OMPI_MCA_orte_local_daemon_uri", "OMPI_MCA_orte_num_nodes",
    "OMPI_MCA_orte_precondition_transports", "OMPI_MCA_orte_top_session_dir", "OMPI_MCA_pmix",
    "OMPI_MCA_shmem_RUNTIME_QUERY_hint", "PMIX_BFROP_", "PMIX_DSTORE_", "PMIX_GDS_MODULE", "PMIX_HOSTNAME", "PMIX_ID",
    "PMIX_NAMESPACE", "PMIX_RANK", "PMIX_SECURITY_MODE", "PMIX_SERVER_", "PMIX_SYSTEM_TMPDIR", "PMIX_VERSION",
    "PRTE_", "PMI_", "HYDRA_", "HYDI_", "MPIEXEC_", "MPI_LOCAL",
)  # fmt: skip
"""Beginnings of names."""

_OF_CORES = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_HW_SUBSET")
"""Names by which a shell binds threads: the first thread of every rank would be bound to the same core."""

_OF_JOBS = (
    "SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_", "PBS_", "LSB_", "LS_JOBPID", "LS_SUBCWD", "SGE_BINARY_PATH",
    "SGE_CWD_PATH", "SGE_JOB", "SGE_O_", "SGE_STD", "SGE_TASK", "PE_HOSTFILE", "JOB_ID", "JOB_NAME", "JOB_SCRIPT",
    "NHOSTS", "NQUEUES", "NSLOTS", "RESTARTED", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES",
)  # fmt: skip
"""Beginnings of names: the caller's own job, options for the scheduler's commands, and granted GPUs."""

_OF_CLIENTS = (
    "SLURM_CONF", "SLURM_JWT", "PBS_CONF_FILE", "PBS_DEFAULT", "PBS_EXEC", "PBS_HOME", "PBS_SERVER",
)  # fmt: skip
"""How the scheduler's commands find their server: names that stay."""

_OPTIONS = ("SBATCH_", "LSB_DEFAULT")


def without_ranks() -> dict[str, str]:
    """Return this process's variables without those that number the ranks of another launcher or bind threads."""
    names = [name for name in os.environ if name not in ("RANK", *_OF_CORES) and not name.startswith(_OF_RANKS)]
    return {name: os.environ[name] for name in names}


def without_jobs() -> dict[str, str]:
    """Return this process's variables without those of another job or another launcher."""
    return {
        name: value
        for name, value in without_ranks().items()
        if name in _OF_CLIENTS or (name not in ("PE", "QUEUE", "REQUEST") and not name.startswith(_OF_JOBS))
    }


def left_out_options() -> list[str]:
    """Return the names of variables by which the caller gives options to the scheduler, and which have no effect."""
    return sorted(name for name in os.environ if name.startswith(_OPTIONS))
