"""Updates by the compiled loops against those by PyTorch's operators, from the same steps."""

from typing import Any

import pytest

from configs.optimizers import Adam, AdamW, HyperParameters, Lars, Sgd
from tests.engines import random_batch, small_network
from train.engine.build import build_optimizer

torch = pytest.importorskip("torch")

CONFIGS: dict[str, Any] = {
    "lars": Lars(name="lars", momentum=0.9, weight_decay=5e-4, trust_coefficient=0.01),
    "sgd": Sgd(name="sgd", momentum=0.9, weight_decay=1e-3),
    "decoupled": Sgd(name="sgd", momentum=0.8, weight_decay=0.05, decoupled_weight_decay=True),
    "no decay": Sgd(name="sgd", momentum=0.9, weight_decay=0),
    "adam": Adam(name="adam", weight_decay=1e-2),
    "adamw": AdamW(name="adamw", weight_decay=1e-2),
}
SETTINGS = {
    "float32": (),
    "bfloat16": ("cluster.engine.precision=bfloat16", "cluster.engine.layout=NHWC"),
}


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the next optimizers use the compiler, or none."""
    from train.engine.torch.host_update import load_library

    def choose(compiler: str) -> bool:
        monkeypatch.setenv("CC", compiler)
        load_library.cache_clear()
        return load_library() is not None

    yield choose
    load_library.cache_clear()


def _trained(config: Any, threads: int, settings: tuple[str, ...]) -> dict[str, Any]:
    """Take four steps, and return all that the updates write."""
    place = "cluster.ranks_per_node=1", f"cluster.engine.threads={threads}"
    engine, _, network = small_network("torch", *place, *settings)
    optimizer = build_optimizer(engine, config, network, rescale=1 / 8, arrivals=[])
    for step in range(4):
        network.forward(*random_batch(engine, network, seed=step))
        network.backward()
        lr = (1e-5 if isinstance(config, Adam | AdamW) else 0.1) * (step + 1)
        optimizer.update(HyperParameters(lr, 0.9 - step / 10, config.weight_decay, step))
    torch.set_num_threads(1)
    found = {"masters": network.masters, "weights": network.weights, "momenta": optimizer.momenta}
    return {name: [each.detach().clone() for each in arrays] for name, arrays in found.items()}


@pytest.mark.medium  # the first one compiles
@pytest.mark.parametrize(
    ("config", "settings", "threads"),
    [*((config, settings, 1) for config in CONFIGS for settings in SETTINGS), ("lars", "float32", 2)],
)
def test_compiled_loops_leave_the_bits_of_the_operators(
    config: str, settings: str, threads: int, libraries: Any
) -> None:
    """Two threads are tried once, as PyTorch's wait for each other with all of a core."""
    given = CONFIGS[config], threads, SETTINGS[settings]
    assert not libraries("no-such-compiler")
    expected = _trained(*given)
    if not libraries("cc"):
        pytest.skip("no C compiler")
    found = _trained(*given)
    for name, arrays in expected.items():
        for own, theirs in zip(found[name], arrays, strict=True):
            torch.testing.assert_close(own, theirs, rtol=0, atol=0, msg=lambda text, name=name: f"{name}: {text}")
