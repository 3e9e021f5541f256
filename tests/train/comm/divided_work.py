"""What ranks that divide the work of an optimizer leave and compute, beside a rank alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from configs.optimizers import HyperParameters
from tests.engines import small_network
from train.comm.communicator import Communicator
from train.comm.shares import ALONE, Shares
from train.engine.build import build_optimizer
from train.rank.identity import Identity

_OPTIMIZERS = "{name: muon, weight_decay: 0.01}", "{name: shampoo, weight_decay: 0.01, block_size: 32}"


def write_divided(identity: Identity, communicator: Communicator, folder: Path) -> None:
    """Take steps alone and with divided work as one rank of those that have met; write how they compare."""
    rows = []
    for optimizer in _OPTIMIZERS:
        ways = ALONE, Shares(identity.rank, identity.world_size, lambda: communicator)
        (alone, whole), (divided, own) = (_state_after_steps(optimizer, shares) for shares in ways)
        rows.append([alone == divided, whole, own])
    (folder / f"divided-{identity.rank}.json").write_text(json.dumps(rows), encoding="utf-8")


def require_divided(ranks: int, folder: Path) -> None:
    """See that the ranks have the bits of a rank alone, and compute each piece once, no rank all of them."""
    told = [json.loads((folder / f"divided-{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]
    for optimizer, *rows in zip(_OPTIMIZERS, *told, strict=True):
        assert all(is_same for is_same, *_ in rows), optimizer
        alone = rows[0][1]
        assert sum(own for *_, own in rows) == alone, optimizer
        assert max(own for *_, own in rows) < alone, optimizer


def _state_after_steps(optimizer: str, shares: Shares) -> tuple[bytes, int]:
    """Return weights and state after three steps, and how many products and decompositions that took."""
    import torch

    pieces: list[Any] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*given: Any) -> Any:
            pieces.append(function)
            return function(*given)

        return count

    engine, recipe, network = small_network("torch", f"optimizer={optimizer}")
    random = np.random.default_rng(1)
    products = mock.patch.object(engine, "product", counted(engine.product))
    with products, mock.patch.object(torch.linalg, "eigh", counted(torch.linalg.eigh)):
        built = build_optimizer(engine, recipe.optimizer, network, rescale=0.5, arrivals=[], shares=shares)
        for step in range(3):
            for gradient in network.gradients:
                engine.overwrite(gradient, engine.from_host(random.standard_normal(gradient.shape, np.float32)))
            built.update(HyperParameters(0.1, 0.9, 0.01, step))
    state = [*network.read_weights().values(), *map(engine.to_host, built.momenta)]
    return b"".join(each.tobytes() for each in state), len(pieces)
