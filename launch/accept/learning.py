"""The short run of all ranks of an acceptance, by ``./run.sh train``: synthetic classes to a target."""

import shutil
import subprocess
import sys
from pathlib import Path

from configs.interrupts import interrupt_left_to_child
from configs.load import dump, load_recipe
from configs.programs import Program, command_of
from configs.schema import Cluster
from launch.accept.judgement import Learned
from logs.disk import write_text
from logs.folder import RunFolder

_LEAST_PER_RANK, _LEAST_BATCH, _STEPS_PER_EPOCH = 8, 64, 16
"""Batch norm needs some images of a rank."""


def learn(cluster: Cluster, folder: Path) -> Learned:
    """Train on all ranks of a cluster in a folder for the run, and return how it ended."""
    per_rank = max(_LEAST_PER_RANK, _LEAST_BATCH // cluster.world_size)
    batch = per_rank * cluster.world_size
    sizes = [f"batch.global_size={batch}", f"data.train_samples={_STEPS_PER_EPOCH * batch}"]
    evaluated = [f"data.eval_samples={max(256, cluster.world_size)}"]
    recipe = load_recipe(str(Path(__file__).with_name("learning.yaml")), [*sizes, *evaluated])
    run, target = RunFolder(folder), recipe.run.target_top1
    # An earlier acceptance may have had the same outputs, and a run that has ended cannot begin again.
    if run.is_begun and run.settings[0].name == recipe.name:
        shutil.rmtree(folder)
    config = str(folder.with_name("learning.yaml"))
    engine = cluster.engine.model_copy(update={"compile": False, "cuda_graphs": "none"})  # a minute for few steps
    write_text(Path(config), dump(recipe, cluster.model_copy(update={"engine": engine})))
    command = command_of(Program.TRAIN_VERB, "train", config, "--cluster", config, "--run-dir", str(folder))
    with interrupt_left_to_child(says_so=True):
        # The verdict alone goes to the standard output.
        status = subprocess.run(command, stdout=sys.stderr, check=False).returncode
    assert target is not None
    if not run.has_summary:
        return Learned(None, recipe.run.epochs, None, target, f"the run ended with status {status}, see {folder}")
    summary = run.summary()
    is_reached = summary.top1 is not None and summary.top1 >= target
    failure = (
        "" if status == 0 or (summary.top1 is not None and not is_reached) else summary.failure or f"status {status}"
    )
    return Learned(summary.epochs if is_reached else None, recipe.run.epochs, summary.top1, target, failure)
