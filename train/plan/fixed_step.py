"""Whether a cluster can compute a recipe's step, and as the same work every time where it asks for CUDA graphs."""

from configs.errors import ConfigError
from configs.optimizers import Adam, Lars, Sgd, Shampoo
from configs.schema import Cluster, Recipe
from train.networks.arch import network_of


def require_fixed_step(recipe: Recipe, cluster: Cluster) -> None:
    """Raise ConfigError if a cluster cannot compute a recipe's step, or not with the CUDA graphs that it asks for.

    Dropout draws by a seed that the host sets, an optimizer with an update rule of its own computes with numbers of
    the host, and only some steps update the average of the weights. Ranks that are not synchronous would have
    different averages, and have no common gradient that an optimizer could divide among them.
    """
    graphs, half_life = cluster.engine.cuda_graphs, recipe.optimizer.average_half_life_steps
    if half_life is not None and not cluster.communication.is_synchronous:
        raise ConfigError("optimizer.average_half_life_steps", half_life, "null where ranks are asynchronous")
    if recipe.optimizer.divides_work and not cluster.communication.is_synchronous:
        raise ConfigError("optimizer.name", recipe.optimizer.name, "adam, lars or sgd where ranks are asynchronous")
    if isinstance(recipe.optimizer, Shampoo) and cluster.engine.name == "mxnet":
        remedy = "or set cluster.engine.name to torch"
        raise ConfigError("optimizer.name", "shampoo", "adam, lars, muon or sgd under MXNet", remedy)
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
