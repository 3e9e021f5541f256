"""What a residual network may have in place of layers of its paper: counts by hand, and the same in plain PyTorch."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from configs.load import load_both, load_recipe
from configs.plan import plan_run
from tests.engines import each_engine, forward_backward, random_batch, small_network
from train.engine.init import initial_weights
from train.networks.arch import build_network, network_of
from train.plan.memory import estimate_memory
from train.sim.forecast import has_reference, make_scenario, time_step

torch = pytest.importorskip("torch")
nn: Any = torch.nn
pytestmark = pytest.mark.xdist_group("residual")

POOLED = "{shortcut: pooled, stride: pool}"
SIAT = "{stem: deep, shortcut: pooled, stride: pool, squeeze_excitation: [stage3_block6, stage4_block3]}"
EXCITED = "{squeeze_excitation: [stage1_block1, stage3_block1]}"
FFCV = "{blur: convolutions}"
SILU = "{activation: silu}"
COMPOSER = "{blur: convolutions_and_max_pool}"
SLOW = pytest.mark.slow
CASES = [
    ("resnet8", 16, POOLED),
    ("resnet8", 16, EXCITED),
    ("resnet8", 16, FFCV),
    ("resnet8", 15, FFCV),
    ("resnet8", 16, SILU),
    pytest.param("resnet50", 64, SIAT, marks=SLOW),
    pytest.param("resnet50", 64, COMPOSER, marks=SLOW),
]
each_case = pytest.mark.parametrize(("network_name", "side", "residual"), CASES)


class Blur(nn.Module):  # type: ignore[misc]
    """The binomial filter of Zhang, arXiv:1904.11486, of each channel, with zeros around the image."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        self.stride = stride

    def forward(self, x: Any) -> Any:
        """Blur images (N, C, H, W)."""
        kernel = torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]], dtype=x.dtype) / 16
        kernel = kernel.expand(x.shape[1], 1, 3, 3)
        return nn.functional.conv2d(x, kernel, stride=self.stride, padding=1, groups=x.shape[1])


class SqueezeExcitation(nn.Module):  # type: ignore[misc]
    """Figure 3 of Hu et al., arXiv:1709.01507, with ratio 4 and biases."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, width), nn.Sigmoid())

    def forward(self, x: Any) -> Any:
        """Weigh the channels of images (N, C, H, W)."""
        return x * self.gate(x.mean(dim=(2, 3)))[:, :, None, None]


def conv_bn(source: int, width: int, kernel: int, stride: int = 1) -> list[Any]:
    """Give a convolution and its batch norm."""
    return [nn.Conv2d(source, width, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(width)]


def activation_of(given: str) -> Any:
    """Give what follows batch norms and blocks."""
    return nn.SiLU() if "silu" in given else nn.ReLU()


class Block(nn.Module):  # type: ignore[misc]
    """A block with a bottleneck (``kernels`` 1, 3, 1) or a basic one (3, 3)."""

    def __init__(
        self, kernels: Sequence[int], source: int, widths: Sequence[int], stride: int, given: str, is_excited: bool
    ) -> None:
        super().__init__()
        layers: list[Any] = []
        wide, self.activation = source, activation_of(given)
        for position, (kernel, width) in enumerate(zip(kernels, widths, strict=True)):
            layers += [self.activation] if layers else []
            strides = stride > 1 and position == kernels.index(3)
            if strides and "stride: pool" in given:
                layers += [*conv_bn(wide, width, kernel), self.activation, nn.AvgPool2d(2)]
            elif strides:
                layers += [Blur(1)] if "blur" in given else []
                layers += conv_bn(wide, width, kernel, stride)
            else:
                layers += conv_bn(wide, width, kernel)
            wide = width
        self.branch = nn.Sequential(*layers, *([SqueezeExcitation(wide)] if is_excited else []))
        shortcut: list[Any] = []
        if stride > 1 and "shortcut: pooled" in given:
            shortcut = [nn.AvgPool2d(2), *conv_bn(source, wide, 1)]
        elif stride > 1 or source != wide:
            # FFCV and Composer blur every pixel, and the convolution then reads every other one.
            shortcut = [*([Blur(1)] if stride > 1 and "blur" in given else []), *conv_bn(source, wide, 1, stride)]
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x: Any) -> Any:
        """Add the branch and the shortcut."""
        return self.activation(self.branch(x) + self.shortcut(x))


def stated(network_name: str, given: str) -> Any:
    """Give the network as plain layers in float64; its parameters have the order of the program's."""
    small, layers = network_name == "resnet8", []
    if small:
        layers += [*conv_bn(3, 16, 3), activation_of(given)]
    elif "stem: deep" in given:
        layers += [*conv_bn(3, 32, 3, 2), nn.ReLU(), *conv_bn(32, 32, 3), nn.ReLU(), *conv_bn(32, 64, 3), nn.ReLU()]
    else:
        layers += [*conv_bn(3, 64, 7, 2), nn.ReLU()]
    if "max_pool" in given:
        layers += [nn.MaxPool2d(3, 1, 1), Blur(2)]
    elif not small:
        layers += [nn.MaxPool2d(3, 2, 1)]
    wide = 16 if small else 64
    for stage, blocks in enumerate((1, 1, 1) if small else (3, 4, 6, 3)):
        for block in range(blocks):
            narrow = (16 if small else 64) << stage
            widths = (narrow, narrow) if small else (narrow, narrow, 4 * narrow)
            kernels = (3, 3) if small else (1, 3, 1)
            is_excited = f"stage{stage + 1}_block{block + 1}" in given
            layers.append(Block(kernels, wide, widths, 2 if stage and not block else 1, given, is_excited))
            wide = widths[-1]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 10)).double()


@cache
def _exact(network_name: str, side: int, given: tuple[str, ...]) -> tuple[float, list[np.ndarray]]:
    """Return loss and gradients of the network as plain layers, once for all engines, which begin alike."""
    recipe, draw = load_recipe("digits", given), np.random.default_rng(0)
    images, labels = draw.standard_normal((8, 3, side, side), np.float32), draw.integers(0, 10, 8)
    oracle = stated(network_name, given[-1])
    weights = initial_weights(network_of(recipe.model), recipe.model, seed=1)
    with torch.no_grad():
        for parameter, values in zip(oracle.parameters(), weights.values(), strict=True):
            parameter.copy_(torch.from_numpy(values).reshape(parameter.shape))
    logits = oracle(torch.from_numpy(images).double())
    loss = nn.functional.cross_entropy(logits, torch.from_numpy(labels), label_smoothing=0.1, reduction="sum")
    loss.backward()
    return loss.item(), [parameter.grad.numpy() for parameter in oracle.parameters()]


@pytest.mark.medium
@each_engine
@each_case
def test_loss_and_gradients_are_those_of_plain_pytorch(name: str, network_name: str, side: int, residual: str) -> None:
    # With a small last gamma, gradients neither grow nor vanish from block to block.
    sets = f"model.name={network_name}", f"model.image_size={side}", "model.last_gamma=0.25"
    given = (*sets, f"model.residual={residual}")
    engine, _, network = small_network(name, *given)
    loss, gradients = _exact(network_name, side, given)
    found = engine.to_number(forward_backward(network, *random_batch(engine, network, size=8)))
    assert found == pytest.approx(loss, rel=1e-4)
    for each, gradient, expected in zip(network.parameters, network.gradients, gradients, strict=True):
        apart = np.linalg.norm(network.to_oihw(engine.to_host(gradient)).reshape(expected.shape) - expected)
        # In float32, rounding moves the inputs of a few ReLUs across 0, which the oracle in float64 does not.
        assert apart <= 0.03 * np.linalg.norm(expected), each.name


def test_the_simulator_and_the_memory_estimate_know_the_network_of_the_recipe() -> None:
    step_s, memory, references = [], [], []
    for residual in ("{}", "{stride: pool}"):
        recipe, cluster = load_both("imagenet-b256", "dgx-a100", [f"model.residual={residual}"])
        references.append(has_reference(recipe))
        scenario = make_scenario(recipe, cluster)
        step_s.append(time_step(scenario).compute_s)
        plan = plan_run(recipe, cluster.world_size)
        memory.append(estimate_memory(recipe, cluster, plan).certain_bytes)
    assert step_s[0] < step_s[1] < 1.5 * step_s[0]
    assert memory[0] < memory[1] < 1.5 * memory[0]
    assert references == [True, False], "MLPerf's convergence points are those of the paper's network"


def bottlenecks(sides: Sequence[int], *, is_pooled: bool) -> int:
    """Give the multiply-adds of ResNet-50's blocks, whose four stages have these sides, px."""
    macs, source = 0, 64
    for stage, (blocks, side) in enumerate(zip((3, 4, 6, 3), sides, strict=True)):
        width = 64 << stage
        before = sides[stage - 1] if stage else side
        within = before if is_pooled else side
        macs += before**2 * source * width + within**2 * 9 * width**2 + side**2 * 4 * width**2
        macs += side**2 * source * 4 * width
        macs += (blocks - 1) * side**2 * (4 * width**2 + 9 * width**2 + 4 * width**2)
        source = 4 * width
    return macs


@pytest.mark.parametrize(
    ("residual", "added", "macs"),
    [
        ({}, 0, 112**2 * 147 * 64 + bottlenecks((56, 28, 14, 7), is_pooled=False)),
        # 28,512 weights and 256 parameters of batch norm in place of 9,408 and 128.
        ({"stem": "deep", "shortcut": "pooled"}, 19_232,
         112**2 * 28_512 + bottlenecks((56, 28, 14, 7), is_pooled=False)),
        ({"stem": "deep", "shortcut": "pooled", "stride": "pool"}, 19_232,
         112**2 * 28_512 + bottlenecks((56, 28, 14, 7), is_pooled=True)),
        # Two dense layers of 1,024 to 256 channels and back, and two of 2,048 to 512 and back, with biases.
        ({"stem": "deep", "shortcut": "pooled", "stride": "pool",
          "squeeze_excitation": ("stage3_block6", "stage4_block3")}, 19_232 + 525_568 + 2_099_712,
         112**2 * 28_512 + bottlenecks((56, 28, 14, 7), is_pooled=True) + 2 * 1024 * 256 + 2 * 2048 * 512),
        ({"blur": "convolutions_and_max_pool"}, 0,
         112**2 * 147 * 64 + bottlenecks((56, 28, 14, 7), is_pooled=False)),
    ],
    ids=["paper", "ResNet-D", "pooled strides", "SIAT", "BlurPool"],
)  # fmt: skip
def test_parameters_and_multiply_adds_are_those_counted_by_hand(
    residual: dict[str, Any], added: int, macs: int
) -> None:
    network = build_network("resnet50", num_classes=1000, image_size=224, residual=tuple(residual.items()))
    assert network.num_parameters == 25_557_032 + added
    assert network.macs == macs + 2048 * 1000
