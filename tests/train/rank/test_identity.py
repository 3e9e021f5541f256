"""Who a rank is, from each launcher's variables."""

import socket

import pytest

from configs.errors import UserError
from train.rank.identity import read_identity


def test_a_process_that_nobody_started_is_alone() -> None:
    identity = read_identity({})
    assert (identity.rank, identity.world_size, identity.launcher) == (0, 1, "none")


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [
        ({"HOROVOD_RANK": "5", "HOROVOD_SIZE": "8", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "4"}, "Horovod"),
        ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
          "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}, "Open MPI"),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "SLURM_PROCID": "0",
          "SLURM_STEP_NUM_TASKS": "2"}, "torchrun"),
        ({"RANK": "7", "WORLD_SIZE": "9", "SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1",
          "SLURM_NTASKS_PER_NODE": "4"}, "Slurm"),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "4"},
         "Slurm"),
    ],
)  # fmt: skip
def test_the_innermost_launcher_says_who_a_rank_is(variables: dict[str, str], launcher: str) -> None:
    identity = read_identity(variables)
    assert (identity.rank, identity.world_size, identity.local_rank, identity.local_size) == (5, 8, 1, 4)
    assert identity.launcher == launcher


def test_a_host_has_at_least_as_many_ranks_as_the_number_of_one_of_them_says() -> None:
    identity = read_identity({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "8", "HOROVOD_LOCAL_RANK": "3"})
    assert (identity.local_rank, identity.local_size) == (3, 4)
    assert read_identity({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "8"}).local_size == 1


@pytest.mark.parametrize(
    ("rank", "local_rank", "told"),
    [("-1", "0", "rank -1 of 8"), ("8", "0", "rank 8 of 8"), ("0", "-1", "rank 0 of 8")],
)
def test_numbers_that_no_rank_has_are_refused(rank: str, local_rank: str, told: str) -> None:
    with pytest.raises(UserError, match=rf"^Horovod says {told}; start the run through \./run\.sh train"):
        read_identity({"HOROVOD_RANK": rank, "HOROVOD_SIZE": "8", "HOROVOD_LOCAL_RANK": local_rank})


def test_a_batch_shell_of_slurm_is_no_rank() -> None:
    assert read_identity({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}).launcher == "none"


def test_slurm_names_the_node_and_the_kernel_does_where_slurm_does_not() -> None:
    assert read_identity({"SLURMD_NODENAME": "node7"}).host == "node7"
    assert read_identity({"SLURMD_NODENAME": "node7", "HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}).host == "node7"
    assert read_identity({}).host == socket.gethostname()
