"""Whether a recipe's step can be the same work every time, as CUDA graphs need it."""

from configs.errors import ConfigError
from configs.optimizers import Adam, Lars, Sgd
from configs.schema import Cluster, Recipe
from train.networks.arch import network_of


def require_fixed_step(recipe: Recipe, cluster: Cluster) -> None:
    """Raise ConfigError if ``engine.cuda_graphs`` asks for graphs of a step that is not the same work every time.

    Dropout draws by a seed that the host sets, an optimizer with an update rule of its own computes with numbers of
    the host, and only some steps update the average of the weights. Ranks that are not synchronous would have
    different averages, and have no common gradient that an optimizer could divide among them.
    """
    graphs, half_life = cluster.engine.cuda_graphs, recipe.optimizer.average_half_life_steps
    if half_life is not None and not cluster.communication.is_synchronous:
        raise ConfigError("optimizer.average_half_life_steps", half_life, "null where ranks are asynchronous")
    if recipe.optimizer.divides_work and not cluster.communication.is_synchronous:
        raise ConfigError("optimizer.name", recipe.optimizer.name, "adam, lars or sgd where ranks are asynchronous")
    if graphs == "none":
        return
    problem = ""
    if any(layer.kind == "dropout" for layer in network_of(recipe.model).layers):
        problem = f"{recipe.model.name}, which has dropout"
    elif not isinstance(recipe.optimizer, Adam | Lars | Sgd):
        problem = f"the optimizer {recipe.optimizer.name}, which computes on the host"
    elif half_life is not None:
        problem = "averaged weights (optimizer.average_half_life_steps)"
    if problem:
        raise ConfigError("cluster.engine.cuda_graphs", graphs, f"none for {problem}")
