"""An engine that the environment lacks is refused in one line that says what to do."""

import pytest

from configs import registry
from configs.errors import ConfigError
from configs.networks import IMAGE_SIZES, networks_for
from configs.registry import (
    COMMUNICATORS,
    ENGINES,
    SOURCES,
    communicators_of,
    gradient_precision,
    installed_engine,
    packing_words,
    possible_precisions,
    require_engine,
)


def _only(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    monkeypatch.setattr(registry, "find_spec", lambda name: object() if name in packages else None)


def test_the_first_installed_engine_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for packages, name in ((("mxnet", "torch"), "mxnet"), (("torch",), "torch"), ((), "mxnet")):
        _only(monkeypatch, *packages)
        assert installed_engine() == name


def test_an_engine_that_is_not_installed_is_refused_with_both_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    _only(monkeypatch, "torch")
    require_engine("torch")
    with pytest.raises(ConfigError) as refused:
        require_engine("mxnet")
    assert str(refused.value) == (
        "engine.name: got 'mxnet', allowed: torch in this environment; ./run.sh setup --engine mxnet adds MXNet, "
        "or train by --set cluster.engine.name=torch"
    )
    _only(monkeypatch)
    with pytest.raises(ConfigError, match="allowed: none in this environment"):
        require_engine(next(iter(ENGINES)))


def test_each_engine_computes_in_these_types_and_layouts() -> None:
    told = {
        name: (entry.precisions, entry.cpu_precisions, entry.layouts, entry.cpu_layouts)
        for name, entry in ENGINES.items() if entry.computes
    }  # fmt: skip
    both = ("NCHW", "NHWC")
    assert told["mxnet"] == (("float32", "float16"), ("float32", "bfloat16"), both, ("NCHW",))
    assert told["torch"] == (("float32", "float16", "bfloat16"), ("float32", "bfloat16"), both, both)


@pytest.mark.parametrize("missing", [None, "avx512f", "avx512bw", "avx512dq", "avx512vl"])
def test_mxnet_has_bfloat16_on_cpus_with_all_of_avx512(missing: str | None) -> None:
    flags = {"avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl"} - {missing}
    assert possible_precisions("mxnet", flags) == (("float32",) if missing else ("float32", "bfloat16"))
    assert possible_precisions("torch", flags) == ("float32", "bfloat16")


def test_only_the_bfloat16_of_mxnet_leaves_gradients_float32() -> None:
    pairs = [("mxnet", "bfloat16"), ("mxnet", "float16"), ("mxnet", "float32"), ("torch", "bfloat16")]
    assert [gradient_precision(*each) for each in pairs] == ["float32", "float16", "float32", "bfloat16"]


def test_each_communicator_sums_for_these_engines_and_starts_with_these_launchers() -> None:
    every, local = ("local", "horovodrun", "mpirun", "srun"), ("local",)
    start = "launch.start"
    told = {
        "horovod": ("train.comm.horovod_communicator", ("mxnet", "timed"), f"{start}.rendezvous", every),
        "torch_distributed": (
            "train.comm.torch_communicator", ("torch", "timed"), f"{start}.store", ("local", "mpirun", "srun")
        ),
        "shared_memory": ("train.comm.shared_memory", ("mxnet", "torch", "timed"), f"{start}.named_meeting", every),
        "parameter_server": ("train.comm.parameter_servers", ("mxnet",), f"{start}.meetings", local),
        "parameter_server_async": ("train.comm.parameter_servers", ("mxnet",), f"{start}.meetings", local),
        "devices": ("train.comm.devices", ("mxnet",), f"{start}.meetings", local),
        "none": ("train.comm.communicator", ("mxnet", "torch", "timed"), f"{start}.meetings", every),
    }  # fmt: skip
    assert {kind: tuple(COMMUNICATORS[kind]) for kind in told} == told
    engines = {
        "mxnet": ("train.engine.mxnet", "mxnet", "MXNet", True),
        "torch": ("train.engine.torch", "torch", "PyTorch", True),
        "timed": ("train.engine.timed", "mxnet", "waits", False),
    }
    entries = {name: ENGINES[name] for name in engines}
    assert {name: (each.module, each.package, each.title, each.computes) for name, each in entries.items()} == engines


def test_the_words_that_pack_a_data_set() -> None:
    counts = {"train": 10, "eval": 20, "classes": 3}
    assert packing_words("digits", "there", **counts) == ["digits", "there"]
    assert packing_words("folders", "there", **counts) == ["FOLDER", "there"]
    words = "generated there --train 10 --eval 20 --classes 3"
    assert packing_words("generated", "there", **counts) == words.split()


def test_networks_take_these_image_sizes() -> None:
    residual = dict.fromkeys((18, 34, 50, 101, 152), (8, 1024)) | dict.fromkeys((8, 20, 32, 56), (8, 64))
    others = {"alexnet": (63, 1024), "googlenet": (8, 1024), "densenet121": (29, 1024)}
    mnist = dict.fromkeys(("mnist_small_cnn", "mnist_large_cnn"), (28, 28))
    sizes = {f"resnet{depth}": each for depth, each in residual.items()} | others | mnist
    assert {name: IMAGE_SIZES[name] for name in sizes} == sizes
    for side, refusing in ((28, {"alexnet", "densenet121"}), (29, {"alexnet", *mnist})):
        assert sizes.keys() - networks_for(side) == refusing


def test_waits_stand_in_for_every_engine_and_are_no_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    _only(monkeypatch, "mxnet")
    with pytest.raises(ConfigError, match=r"allowed: mxnet in this environment; .*adds PyTorch, or train by .*=mxnet$"):
        require_engine("torch")
    timed = ENGINES["timed"]
    assert (timed.precisions, timed.layouts, timed.distributions) == ((), (), ())
    assert (timed.cpu_precisions, timed.cpu_layouts) == (("float32", "float16", "bfloat16"), ("NCHW", "NHWC"))
    assert [name for name, entry in ENGINES.items() if entry.shares_memory] == ["mxnet"]
    assert ENGINES["mxnet"].distributions == ("mxnet", "mxnet-cu112")
    assert [communicators_of(name)[0] for name in ENGINES] == ["horovod", "torch_distributed", "horovod"]


def test_images_that_tables_name_are_opened_as_tables_though_they_lie_in_folders() -> None:
    names = list(SOURCES)
    assert names.index("table") < names.index("folders")
