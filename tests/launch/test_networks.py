"""Two machines whose first interface leads nowhere: their ranks meet within seconds all the same."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.registry import has_engine
from tests.launch.machines import NAMES, Machine, hosts_table, two_machines

pytestmark = [pytest.mark.ranks, pytest.mark.slow, pytest.mark.xdist_group("machines")]

_MET_S = 10
_FIRST = {
    "link-local": {"alpha": "169.254.7.1/16", "beta": "169.254.7.2/16"},
    "unreachable": {"alpha": "10.66.0.1/24", "beta": "10.66.0.2/24"},
    "unreachable, the head's only": {"alpha": "10.66.0.1/24"},
}
_PREFIX = "192.168.77."
"""Of the addresses that lead to the other machine. The others are smaller: of two ranks over Gloo, the one with the
smaller address listens."""
_START = """
import sys
from configs.load import load_cluster
from configs.rank_variables import rank_environment
from launch.start.commands import run_under

command, settings = sys.argv[1].split(), sys.argv[2:]
cluster = load_cluster("laptop", settings)
outcome = run_under(cluster, [*command, *settings], rank_environment(cluster), hosts=("alpha", "beta"))
sys.exit(outcome.exit_status)
"""
_ADD = """
#include <mpi.h>
#include <stdio.h>
int main(int count, char **words) {
  int rank, sum = 0;
  static int many[1 << 20];
  MPI_Init(&count, &words);
  double begin = MPI_Wtime();
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  int own = rank + 5;
  MPI_Allreduce(&own, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(MPI_IN_PLACE, many, 1 << 20, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  char path[4096];
  snprintf(path, sizeof path, "%s/met-%d", words[1], rank);
  FILE *told = fopen(path, "w");
  fprintf(told, "%d %.2f", sum, MPI_Wtime() - begin);
  fclose(told);
  return MPI_Finalize();
}
"""


@pytest.fixture(scope="module")
def machines(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Machine]]:
    """Run alpha and beta, whose first interface leads nowhere."""
    folder, tables = tmp_path_factory.mktemp("machines"), {name: hosts_table(name, prefix=_PREFIX) for name in NAMES}
    with two_machines(folder, tables, _PREFIX, first=_FIRST[request.param]) as found:
        yield found


def _meet(machine: Machine, folder: Path, command: str, *settings: str) -> None:
    """Start two ranks from a machine, and see that they have met in time."""
    common = ["num_nodes=2", "ranks_per_node=1", f"communication.timeout_s={3 * _MET_S}"]
    words = [f"cluster.{each}" for each in (*common, *settings)]
    try:
        done = machine.run(sys.executable, "-c", _START, f"{command} {folder}", *words)
    except subprocess.TimeoutExpired as error:
        pytest.fail(f"the ranks have not met: {error.stderr!r}")
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        total, seconds = (folder / f"met-{rank}").read_text(encoding="utf-8").split()
        assert total == "11"
        assert float(seconds) < _MET_S


@pytest.mark.parametrize(
    ("machines", "engine", "settings"),
    [
        ("unreachable", "torch", ["launcher=mpirun", "communication.kind=torch_distributed"]),
        # Without the interface, horovodrun may give its own search up, and the run is refused in one line.
        ("unreachable, the head's only", "mxnet",
         ["launcher=horovodrun", "communication.kind=horovod", "node.interface=eth0"]),
    ],
    indirect=["machines"],
    ids=["PyTorch over Gloo", "Horovod over Gloo"],
)  # fmt: skip
def test_ranks_meet_though_the_first_interface_leads_nowhere(
    machines: dict[str, Machine], engine: str, settings: list[str]
) -> None:
    if not has_engine(engine):
        pytest.skip(f"{engine} is not installed here")
    alpha = machines["alpha"]
    folder = alpha.shared / engine
    folder.mkdir()
    _meet(alpha, folder, f"{sys.executable} -m tests.launch.meeting", f"engine.name={engine}", *settings)


@pytest.mark.parametrize(
    ("machines", "more"),
    [("link-local", []), ("unreachable", ["node.interface=eth0"])],
    indirect=["machines"],
    ids=["link-local", "unreachable"],
)
def test_mpi_leaves_link_local_addresses_out_and_takes_the_interface_of_the_cluster_file(
    machines: dict[str, Machine], more: list[str]
) -> None:
    if missing := [each for each in ("mpirun", "mpicc", "ompi_info") if shutil.which(each) is None]:
        pytest.skip(f"not here: {', '.join(missing)}")
    alpha = machines["alpha"]
    program = alpha.shared / "add"
    subprocess.run(["mpicc", "-x", "c", "-", "-o", program], input=_ADD, text=True, check=True)
    engine = "torch" if has_engine("torch") else "mxnet"  # whose setting the program does not need
    kind = "torch_distributed" if engine == "torch" else "horovod"
    settings = [f"engine.name={engine}", f"communication.kind={kind}", "launcher=mpirun", "communication.backend=mpi"]
    folder = alpha.shared / "mpi"
    folder.mkdir()
    _meet(alpha, folder, str(program), *settings, *more)
