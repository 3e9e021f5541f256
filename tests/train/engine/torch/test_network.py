"""What only PyTorch's network does: gradients that are neighbours in memory, 16 bits on a CPU, seeds on any thread."""

import itertools
from typing import Any

import pytest

from configs.load import load_recipe
from tests.engines import forward_backward, random_batch, randomize, small_network
from train.engine.init import initial_weights
from train.networks.arch import Network, Rows, network_of

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("precision", "accumulate"), [("float32", False), ("bfloat16", False), ("bfloat16", True)])
def test_gradients_of_one_type_are_neighbours_in_memory_last_layer_first_and_their_masters_too(
    precision: str, layout: str, accumulate: bool
) -> None:
    _, _, network = small_network("torch", accumulate=accumulate, precision=precision, layout=layout)
    assert network.image_shape == ((16, 16, 3) if layout == "NHWC" else (3, 16, 16))
    places: dict[Any, list[tuple[int, int]]] = {}
    for parameter, gradient, master in zip(network.parameters, network.gradients, network.masters, strict=True):
        is_half = precision == "bfloat16" and not accumulate and parameter.kind not in ("gamma", "beta")
        assert gradient.dtype == (torch.bfloat16 if is_half else torch.float32), parameter.name
        assert tuple(gradient.shape) == parameter.shape
        for name, tensor in (("gradients", gradient), ("masters", master)):
            assert tensor.data_ptr() % 16 == 0, f"{name} of {parameter.name}: kernels of GPUs read 16 bytes at once"
            if tensor.numel() % 8 == 0:
                pieces = places.setdefault((name, gradient.dtype), [])
                pieces.append((tensor.data_ptr(), tensor.numel() * tensor.element_size()))
    assert [each.name for each in network.parameters if each.size % 8] == ["classifier_bias"]
    for pieces in places.values():
        for (first, _), (second, size) in itertools.pairwise(pieces):
            assert second + size == first, "the next layer's tensor lies just before"


def test_parameters_that_get_no_gradient_arrive_too_with_zeros() -> None:
    rows = Rows(3, 16)
    rows.add("unused", "conv", "data", out_channels=4, has_bias=True)
    rows.dense("classifier", rows.add("pool", "global_pool", "data"), 10)
    engine, _, network = small_network("torch", table=Network("made", 16, 3, 10, tuple(rows.layers)))
    network.gradients[0].fill_(7)
    network.forward(*random_batch(engine, network))
    arrived: list[int] = []
    network.backward(arrived.append)
    assert sorted(arrived) == [0, 1, 2, 3]
    assert arrived[-2:] == [1, 0]
    assert not network.gradients[0].any()


@pytest.mark.medium
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_gradient_that_is_read_when_it_arrives_is_complete(precision: str) -> None:
    # Large enough that gradients are gathered in several portions.
    table = "model.name=resnet18", "model.image_size=32"
    engine, _, network = small_network("torch", *table, precision=precision)
    batch = random_batch(engine, network, size=4)
    forward_backward(network, *batch)
    expected = [gradient.clone() for gradient in network.gradients]
    for gradient in network.gradients:
        gradient.fill_(7)
    network.forward(*batch)
    early: dict[int, Any] = {}
    network.backward(lambda index: early.update({index: network.gradients[index].clone()}) if index % 5 == 0 else None)
    assert early.keys() == set(range(0, len(expected), 5))
    assert all(torch.equal(early[index], expected[index]) for index in early)
    assert all(map(torch.equal, network.gradients, expected))


def test_more_than_64_ranks_sum_the_gradients_of_bfloat16_in_float32() -> None:
    (few, of_few), (many, of_many) = (
        small_network("torch", f"cluster.ranks_per_node={ranks}", precision="bfloat16")[::2] for ranks in (64, 65)
    )
    for engine, network in ((few, of_few), (many, of_many)):
        forward_backward(network, *random_batch(engine, network))
    for parameter, narrow, wide in zip(of_few.parameters, of_few.gradients, of_many.gradients, strict=True):
        assert wide.dtype == torch.float32
        assert narrow.dtype == (torch.float32 if parameter.kind in ("gamma", "beta") else torch.bfloat16)
        assert torch.equal(wide, narrow.float()), "the gradient of one rank is the same"
    assert {weight.dtype for weight in of_many.weights} == {torch.bfloat16, torch.float32}


@pytest.mark.medium
def test_bfloat16_keeps_float32_masters_and_batch_norm_and_comes_near_float32() -> None:
    losses = []
    for precision in ("float32", "bfloat16"):
        engine, _, network = small_network("torch", precision=precision)
        losses.append(engine.to_number(forward_backward(network, *random_batch(engine, network))))
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    kinds = {each.kind: weight.dtype for each, weight in zip(network.parameters, network.weights, strict=True)}
    half, whole = torch.bfloat16, torch.float32
    assert kinds == {"weight": half, "bias": half, "gamma": whole, "beta": whole}
    assert {master.dtype for master in network.masters} == {whole}


def test_dropout_is_the_same_on_any_number_of_threads() -> None:
    rows = Rows(3, 64)
    rows.dense("classifier", rows.add("pool", "global_pool", rows.add("drop", "dropout", "data", rate=0.5)), 10)
    table = Network("made", 64, 3, 10, tuple(rows.layers))
    engine, _, network = small_network("torch", "model.image_size=64", "model.classifier_std=0.9", table=table)
    images, labels = random_batch(engine, network)
    losses, threads = [], torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        network.seed(1)
        losses.append(engine.to_number(network.forward(images, labels)))
    torch.set_num_threads(threads)
    assert losses[0] == losses[1]


def test_a_later_change_of_weights_has_no_effect_on_an_inference_function() -> None:
    engine, _, network = small_network("torch")
    images, _ = random_batch(engine, network)
    predict = network.inference()
    first = predict(images)
    for tensor in (*network.masters, *network.statistics):
        tensor.add_(0.1)
    assert torch.equal(predict(images), first)
    assert not torch.allclose(network.inference()(images), first)


@pytest.mark.medium
@pytest.mark.parametrize("frozen", ["[]", "[stem, stage2, stage3_block1_conv2]"])
def test_fused_batch_norms_compute_what_the_frameworks_own_do(frozen: str) -> None:
    found = []
    for batch_norm in ("framework", "fused"):
        words = "model.parameters=any.ckpt", f"model.frozen={frozen}"
        recipe = load_recipe("digits", ["model.name=resnet8", "model.image_size=16", *words])
        plain = network_of(recipe.model.model_copy(update={"frozen": ()}))
        engine, _, network = small_network("torch", *words, layout="NHWC", batch_norm=batch_norm, table=plain)
        network = engine.build_network(network_of(recipe.model), recipe, accumulate=False)
        network.load_weights(randomize(network, plain, initial_weights(plain, recipe.model, seed=1)))
        loss = forward_backward(network, *random_batch(engine, network))
        found.append((loss, *network.gradients, *network.statistics))
    for one, other in zip(*found, strict=True):
        assert one.stride() == other.stride()
        assert float((one - other).norm()) < 1e-4 * float(other.norm())
    assert not all(map(torch.equal, *found)), "no other operators were used"
