"""Whether a cluster can compute a recipe's step, and as the same work every time where it asks for CUDA graphs."""

from configs.errors import ConfigError
from configs.plan import plan_run
from configs.schema import Cluster, Recipe
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
