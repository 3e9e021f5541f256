"""A test for ReFrame 4.10: its sanity is the verdict of ``./run.sh accept``, its performance that of accept.json.

    reframe -c docs/examples/accept_reframe.py -r -S AcceptMachine.cluster=$PWD/my-cluster.yaml

With a scheduler in ReFrame's own configuration, give the nodes of the cluster file by ``-S AcceptMachine.num_tasks=8``
and ``num_tasks_per_node=1``: one copy of the program runs, and starts the ranks of all nodes.
"""

import json
from pathlib import Path
from typing import Any

import reframe
from reframe.core.backends import getlauncher
from reframe.core.builtins import run_before, sanity_function, variable
from reframe.utility import sanity


@reframe.simple_test
class AcceptMachine(reframe.RunOnlyRegressionTest):
    """Accept a machine, and compare its figures with the bands of ``reference``."""

    descr = "accept a machine by ResNet-50's step, allreduce, bits and accuracy"
    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    sourcesdir = None
    cluster = variable(str, value="laptop")
    minutes = variable(float, value=2.0)
    options = variable(str, value="")
    executable = str(Path(__file__).resolve().parents[2] / "run.sh")
    # System -> figure -> value, the shares by which it may be below and above, and its unit. Take yours from a machine
    # that you trust. These are of two cores of an AMD EPYC that other programs used, too.
    reference = {"generic": {"images_per_s": (300, -0.6, None, "images/s")}}

    @run_before("run")
    def set_command(self) -> None:
        """Call the program once, without the launcher of the partition, and keep its outputs in the stage folder."""
        self.job.launcher = getlauncher("local")()
        out = str(Path(self.stagedir) / "accept")
        self.executable_opts = ["accept", "--cluster", self.cluster, "--minutes", f"{self.minutes:g}", "--out", out]
        self.executable_opts += self.options.split()

    @sanity_function
    def passes(self) -> bool:
        """Return whether the verdict is pass, and say the verdict's words if not."""
        document = self._document()
        words = document.get("words", f"no verdict, see {self.stagedir}/{self.stderr}")
        # Some schedulers tell no exit status.
        is_well = document.get("verdict") == "pass" and self.job.exitcode in (0, None)
        return sanity.assert_true(is_well, words)

    @run_before("performance")
    def set_figures(self) -> None:
        """Take the figures that this machine has; energy is null where its counters cannot be read."""
        document = self._document()
        rates = {check["topic"]: check["value"] for check in document["checks"] if not check["host"]}
        figures = {
            "images_per_s": (rates.get("rate"), "images/s"),
            "allreduce": (rates.get("allreduce of buckets"), "GB/s"),
            "images_per_joule": (document["energy"]["images_per_joule"], "images/J"),
        }
        self.perf_variables = {
            name: sanity.make_performance_function(sanity.defer(value), unit)
            for name, (value, unit) in figures.items()
            if value is not None
        }

    def _document(self) -> dict[str, Any]:
        path = Path(self.stagedir) / "accept" / "accept.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
