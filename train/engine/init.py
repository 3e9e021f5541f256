"""Seeded initial weights, equal on every rank without a broadcast, and their checksum. Pure NumPy.

Each tensor draws from a random stream of its own, keyed by the seed and the tensor's name. Draws elsewhere, the number
of threads and the order of creation cannot change a tensor.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from configs.schema import Model
from train.networks.arch import Network
from train.networks.layer import Parameter

_MOST_NAMED = 20
"""Ranks that a message names."""


class RanksDiffer(RuntimeError):
    """Ranks hold different values of what is to be the same; the message names the ranks.

    Args:
        message: The message.
        ranks: The ranks that differ from most others; empty if no values are those of most ranks.
    """

    def __init__(self, message: str, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        super().__init__(message)


def initial_weights(network: Network, model: Model, seed: int, shrink: int = 1) -> dict[str, np.ndarray]:
    """Return every parameter by name, float32, in OIHW.

    Weights are N(0, 2 / fan-in) (He et al., arXiv:1502.01852), or with ``initial_kernels: lecun_uniform`` uniform with
    variance 1 / fan-in (LeCun et al., Efficient BackProp, 1998); the classifier's are N(0, classifier_std). Biases and
    betas are 0, save the classifier's; gammas are 1, save the last of each block, which is ``last_gamma``, or 0 with
    ``zero_gamma`` (Goyal et al., arXiv:1706.02677).

    Args:
        network: The layers.
        model: The recipe's block.
        seed: The seed of the run.
        shrink: If above 1, return only the beginning of each parameter, flat and so many times shorter.
    """
    last_gamma = 0.0 if model.zero_gamma else model.last_gamma
    constants = {f"{layer.name}_gamma": last_gamma for layer in network.layers if layer.ends_block}
    classifier = {each.name for each in network.layers[-1].parameters}
    constants[f"{network.layers[-1].name}_bias"] = model.classifier_bias

    def draw(parameter: Parameter) -> np.ndarray:
        shape = parameter.shape if shrink == 1 else (max(1, parameter.size // shrink),)
        if parameter.initial is not None:
            return np.full(shape, constants.get(parameter.name, parameter.initial), np.float32)
        fan_in = parameter.size / parameter.shape[0]
        stream = _stream(f"{seed}/weights/{parameter.name}")
        if parameter.name not in classifier and model.initial_kernels == "lecun_uniform":
            weights = 2 * stream.random(shape, np.float32) - 1
            weights *= np.float32(math.sqrt(3 / fan_in))
            return weights
        weights = stream.standard_normal(shape, np.float32)
        weights *= np.float32(model.classifier_std if parameter.name in classifier else math.sqrt(2 / fan_in))
        return weights

    with ThreadPoolExecutor() as pool:  # NumPy releases the interpreter lock while it draws.
        drawn = pool.map(draw, network.parameters)
        return {each.name: array for each, array in zip(network.parameters, drawn, strict=True)}


def _stream(name: str) -> np.random.Generator:
    key = hashlib.blake2b(name.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))


def checksum(weights: Iterable[tuple[str, np.ndarray]]) -> int:
    """Return an unsigned 64-bit digest of the names and bytes of all weights, in the order given.

    SHA-1 is enough, because nobody forges weights: 1.7 GB/s with processor support, BLAKE2b 0.8 GB/s (one EPYC core).
    """
    digest = hashlib.sha1(usedforsecurity=False)
    for name, array in weights:
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(array).data)
    return int.from_bytes(digest.digest()[:8], "little")


def require_equal(checksums: Sequence[int], when: str, what: str = "weights are", remedy: str = "") -> None:
    """Raise an error unless all ranks' checksums are equal.

    Args:
        checksums: One per rank.
        when: Moment of the comparison, for the message.
        what: Of which values the checksums are, with the verb.
        remedy: What to do, after a semicolon.

    Raises:
        RanksDiffer: The checksums differ; the message names the ranks that differ from the most common checksum.
    """
    (common, number), *others = Counter(checksums).most_common(2)
    if not others:
        return
    odd = [rank for rank, value in enumerate(checksums) if value != common]
    names = ", ".join(map(str, odd[:_MOST_NAMED])) + (" ..." if len(odd) > _MOST_NAMED else "")
    who = f"rank {names} {'differs' if len(odd) == 1 else 'differ'} from the other {number} of {len(checksums)}"
    if number == others[0][1]:
        odd, who = [], f"of {len(checksums)} ranks, no value is that of most"
    raise RanksDiffer(f"the ranks' {what} not the same {when}: {who} ({common:016x}){remedy}", odd)
