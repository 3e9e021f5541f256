"""What is said of a run, or against it, before it begins. Imports neither a framework nor the simulator."""

from contextlib import suppress
from pathlib import Path

from configs.errors import ConfigError, UserError
from configs.load import resolve_path
from configs.machine_limits import free_bytes
from configs.plan import plan_run
from configs.registry import ENGINES
from configs.schema import Cluster, Recipe
from data.manifest import load_manifest
from train.networks.arch import network_of


def require_fixed_step(recipe: Recipe, cluster: Cluster) -> None:
    """Raise ConfigError if a cluster cannot compute a recipe's step, or not with the CUDA graphs that it asks for.

    Layers such as dropout draw by a seed that the host sets. Each idea says what else differs from step to step.
    """
    for idea in recipe.ideas:
        idea.require_place(recipe, cluster)
    _require_shared_statistics(recipe, cluster)
    graphs = cluster.engine.cuda_graphs
    if graphs == "none":
        return
    drawing = [layer.kind.name for layer in network_of(recipe.model).layers if layer.kind.draws]
    problems = [f"{recipe.model.name}, which has {each}" for each in drawing]
    problems += filter(None, (idea.variation(recipe) for idea in recipe.ideas))
    if problems:
        raise ConfigError("cluster.engine.cuda_graphs", graphs, f"none for {problems[0]}")


def _require_shared_statistics(recipe: Recipe, cluster: Cluster) -> None:
    """Raise ConfigError if batch norms span several ranks, and the ranks cannot compute statistics together."""
    plan, communication = plan_run(recipe, cluster.world_size), cluster.communication
    ranks = plan.norm_ranks
    if ranks == 1:
        return
    if cluster.ranks_per_node % ranks:
        lacking = f"whose number divides the {cluster.ranks_per_node} of a node"
    elif cluster.engine.compile or cluster.engine.batch_norm == "fused":
        lacking = "without cluster.engine.compile, and with cluster.engine.batch_norm=framework"
    elif communication.kind != "torch_distributed" or communication.backend == "mpi":
        lacking = "under cluster.engine.name=torch and cluster.communication.kind=torch_distributed, by gloo or nccl"
    else:
        return
    raise ConfigError(
        "batch.bn_span",
        recipe.batch.bn_span,
        f"{plan.per_rank_batch_size}, the images of a rank; or several ranks, here {ranks}, {lacking}",
        "set batch.bn_span=null, or fewer ranks",
    )


def checkpoint_bytes(recipe: Recipe) -> int:
    """Return the least bytes of a checkpoint: of weights, statistics and the states of ideas, all in float32.

    A file is a few per cent larger, by names and the ranks' places among the images, and much larger where an optimizer
    keeps more than moments. See `train.checkpoint.Checkpoints` for what is in it.
    """
    network = network_of(recipe.model)
    shapes = [each.shape for each in network.parameters]
    statistics = sum(each.size for each in network.statistics)
    states = sum(idea.state_numbers(recipe, shapes, statistics) for idea in recipe.ideas)
    return 4 * (network.num_parameters + network.num_constants + statistics + states)


def no_room_for_checkpoint(recipe: Recipe, cluster: Cluster, run_folder: Path) -> str | None:
    """Return why a run surely could not save its trained network, or None.

    A new checkpoint is whole before an older one is deleted, so a run that is resumed needs the room, too.

    Args:
        recipe: The recipe.
        cluster: The machines.
        run_folder: The folder of the run, which need not exist.
    """
    if not ENGINES[cluster.engine.name].computes:  # a rehearsal invents short tensors
        return None
    place = next(each for each in (run_folder, *run_folder.absolute().parents) if each.is_dir())
    kinds = cluster.checkpoint.kinds
    needed = len(kinds) * checkpoint_bytes(recipe)
    if (free := free_bytes(place)) is None or free >= needed:
        return None
    return (
        f"{run_folder}: its disk has {free / 1e6:,.2f} MB free, and {recipe.name} needs {needed / 1e6:,.2f} MB "
        f"for {' and '.join(kinds)}; free some space, or choose another disk (--run-dir, cluster.paths.runs)"
    )


def classless_outputs(recipe: Recipe, cluster: Cluster) -> str | None:
    """Return a line if the network has more outputs than the data set has classes.

    None if not, or if nothing is packed yet on this machine.
    """
    if recipe.data.source == "synthetic":
        return None
    folder, outputs = resolve_path(cluster.paths.data) / recipe.data.name, recipe.model.num_classes
    with suppress(UserError, OSError):  # What is wrong with the folder, the run says by itself.
        found = len(load_manifest(folder).class_names)
        if found < outputs:
            return (
                f"{folder}: {found} classes, the recipe says model.num_classes: {outputs}; no image belongs to the "
                f"other outputs: --set model.num_classes={found}, unless the network is meant to have them"
            )
    return None


def slow_values(cluster: Cluster) -> list[str]:
    """Return a line for each value for which there is a faster one. CPUs, and engines that only wait, have none."""
    if cluster.device == "cpu" or not ENGINES[cluster.engine.name].computes:
        return []
    engine, communication = cluster.engine, cluster.communication
    # Horovod sums the tensors of GPUs by NCCL, whatever library connects the ranks.
    is_by_gloo = (
        communication.kind == "torch_distributed" and communication.backend == "gloo" and cluster.world_size > 1
    )
    rows = [
        (engine.precision == "float32", "engine.precision=float32", "engine.precision=float16"),
        (engine.layout == "NCHW", "engine.layout=NCHW", "engine.layout=NHWC"),
        (is_by_gloo, "communication.backend=gloo", "communication.backend=nccl"),
    ]
    return [f"cluster.{slow} usually makes steps longer; set cluster.{fast}" for is_slow, slow, fast in rows if is_slow]
