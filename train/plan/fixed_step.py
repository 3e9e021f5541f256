"""Whether a cluster can compute a recipe's step, and as the same work every time where it asks for CUDA graphs."""

from configs.errors import ConfigError
from configs.schema import Cluster, Recipe
from train.networks.arch import network_of


def require_fixed_step(recipe: Recipe, cluster: Cluster) -> None:
    """Raise ConfigError if a cluster cannot compute a recipe's step, or not with the CUDA graphs that it asks for.

    Layers such as dropout draw by a seed that the host sets. Each idea says what else differs from step to step.
    """
    for idea in recipe.ideas:
        idea.require_place(recipe, cluster)
    graphs = cluster.engine.cuda_graphs
    if graphs == "none":
        return
    drawing = [layer.kind.name for layer in network_of(recipe.model).layers if layer.kind.draws]
    problems = [f"{recipe.model.name}, which has {each}" for each in drawing]
    problems += filter(None, (idea.variation(recipe) for idea in recipe.ideas))
    if problems:
        raise ConfigError("cluster.engine.cuda_graphs", graphs, f"none for {problems[0]}")
