"""Which settings a resumed run must keep, and which changes of the machine are named."""

from typing import Any

import pytest

from configs.errors import UserError
from configs.load import load_both
from configs.resume_check import arithmetic_changes, arithmetic_of, fixed_settings, require_unchanged

BEGUN: dict[str, Any] = {
    "cpu": "Xeon",
    "cpu_id": "GenuineIntel family 6 model 85",
    "cpu_flags": ["avx2", "avx512f"],
    "gpus": [{"name": "V100", "driver_version": "1"}, {"name": "V100", "driver_version": "1"}],
    "variables": {"OMP_NUM_THREADS": "1", "DNNL_MAX_CPU_ISA": "AVX2", "HOROVOD_CYCLE_TIME": "1"},
    "git": {"commit": "0123456789abcdef", "diff_sha256": None, "diff": None},
    "packages": {"numpy": "1.26.4", "pip": "24"},
    "hostname": "node1",
}


def _changes(**changed: Any) -> list[str]:
    return arithmetic_changes(arithmetic_of(BEGUN), arithmetic_of(BEGUN | changed))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, []),
        ({"cpu": "EPYC"}, ["cpu EPYC instead of Xeon"]),
        ({"git": BEGUN["git"] | {"commit": "fedc"}}, ["git.commit fedc instead of 0123456789abcdef"]),
        ({"git": BEGUN["git"] | {"diff_sha256": "5eed", "diff": "+ x"}}, ["git.diff_sha256 5eed instead of absent"]),
        (
            {"packages": {"numpy": "2.0", "pillow": "11"}},
            [
                "packages.numpy 2.0 instead of 1.26.4",
                "packages.pip absent instead of 24",
                "packages.pillow 11 instead of absent",
            ],
        ),
        (
            {"packages": BEGUN["packages"] | {str(number): "1" for number in range(18)}},
            [*(f"packages.{number} 1 instead of absent" for number in range(10)), "8 other differences"],
        ),
        ({"git": None, "packages": None, "hostname": "node2"}, []),
        ({"cpu_id": "family 106"}, ["cpu_id family 106 instead of GenuineIntel family 6 model 85"]),
        ({"cpu_flags": ["avx2"]}, ["cpu_flags.avx512f absent instead of present"]),
        ({"cpu_flags": ["a", "avx2", "avx512f"]}, ["cpu_flags.a present instead of absent"]),
        (
            {"gpus": [{"name": "A100"}, {"name": "A100"}]},
            ["gpus.V100 absent instead of present", "gpus.A100 present instead of absent"],
        ),
        (
            {"variables": {"OMP_NUM_THREADS": "2", "KMP_AFFINITY": "compact", "HOROVOD_CYCLE_TIME": "5"}},
            [
                "variables.OMP_NUM_THREADS 2 instead of 1",
                "variables.DNNL_MAX_CPU_ISA absent instead of AVX2",
                "variables.KMP_AFFINITY compact instead of absent",
            ],
        ),
        ({"cpu_flags": None, "cpu_id": None, "gpus": None, "cores": 5}, []),
    ],
)
def test_what_decides_the_last_bits_is_compared_and_nothing_else(changed: dict[str, Any], words: list[str]) -> None:
    assert _changes(**changed) == words


def test_a_variable_that_is_set_anew_is_told_where_none_was_set() -> None:
    begun = arithmetic_of(BEGUN | {"variables": {}})
    assert arithmetic_changes(begun, arithmetic_of(BEGUN | {"variables": {"LD_PRELOAD": "/a.so"}})) == [
        "variables.LD_PRELOAD /a.so instead of absent"
    ]


def test_threads_folders_words_and_comparisons_may_change_but_the_recipe_may_not() -> None:
    begun = fixed_settings(*load_both("digits", None, []))
    machine = "cluster.engine.threads=2", "cluster.paths.runs=/elsewhere"
    for free in (*machine, "mlperf.submits=false", "run.compare_every_steps=5"):
        assert require_unchanged(begun, fixed_settings(*load_both("digits", None, [free])), "run") == []
    for fixed, message in (
        ("run.epochs=5", "run.epochs: got 5, the run was started with 6"),
        ("schedule.base_lr=0.5", "schedule.base_lr: got 0.5, the run was started with"),
    ):
        with pytest.raises(UserError, match=f"^run: {message}.*another --run-dir for a new run$"):
            require_unchanged(begun, fixed_settings(*load_both("digits", None, [fixed])), "run")


@pytest.mark.parametrize(
    ("newer", "default", "other"),
    [
        ("model.classifier_bias", "0.0", "1.5"),
        ("optimizer.momentum", "0.9", "0.5"),
    ],
)
def test_a_key_that_the_program_got_later_counts_as_its_default(newer: str, default: str, other: str) -> None:
    begun, given = (fixed_settings(*load_both("digits", None, [f"{newer}={each}"])) for each in (default, other))
    block, key = newer.split(".")
    older = begun | {block: {name: each for name, each in begun[block].items() if name != key}}
    assert require_unchanged(older, begun, "run") == []
    with pytest.raises(UserError, match=rf"^run: {newer}: got {other}, the run was started with {default};"):
        require_unchanged(older, given, "run")


def test_a_setting_that_only_one_of_the_recipes_has_is_a_difference() -> None:
    few = fixed_settings(*load_both("digits", None, []))
    more = few | {"data": few["data"] | {"sums": {"train": "5eed"}}}
    for begun, given, got, was in ((few, more, "'5eed'", "None"), (more, few, "None", "'5eed'")):
        with pytest.raises(UserError, match=rf"^run: data\.sums\.train: got {got}, the run was started with {was};"):
            require_unchanged(begun, given, "run")
    assert require_unchanged(more, more, "run") == []


@pytest.mark.parametrize(
    ("was", "now", "key"),
    [
        ([], ["name=other"], "name"),
        (["cluster.device=gpu"], ["cluster.device=cpu"], "cluster.device"),
        (["cluster.device=gpu"], ["cluster.device=gpu", "cluster.engine.layout=NHWC"], "cluster.engine.layout"),
        (
            ["cluster.device=gpu"],
            ["cluster.device=gpu", "cluster.engine.precision=float16"],
            "cluster.engine.precision",
        ),
    ],
)
def test_another_name_device_layout_or_precision_is_another_run(was: list[str], now: list[str], key: str) -> None:
    engine = ["cluster.engine.name=mxnet", "cluster.communication.kind=horovod"]
    before, after = (fixed_settings(*load_both("digits", None, [*engine, *each])) for each in (was, now))
    with pytest.raises(UserError, match=rf"^run: {key}: got "):
        require_unchanged(before, after, "run")


def test_the_ranks_and_the_engine_may_change() -> None:
    begun, given = (
        fixed_settings(*load_both("digits", None, [f"cluster.ranks_per_node={ranks}", f"cluster.engine.name={engine}"]))
        for ranks, engine in ((1, "mxnet"), (2, "torch"))
    )
    told = [words.partition(":")[0] for words in require_unchanged(begun, given, "run")]
    assert told == ["2 ranks instead of 1", "torch instead of mxnet"]


def test_variables_of_the_libraries_that_compute_count() -> None:
    counted = {"DNNL_X", "KMP_X", "MKL_NUM_THREADS", "OMP_X", "ONEDNN_X", "OPENBLAS_CORETYPE"}
    counted |= {"ATEN_CPU_CAPABILITY", "MXNET_ONEDNN_ENABLED", "MXNET_SAFE_ACCUMULATION", "LD_PRELOAD"}
    given = dict.fromkeys([*counted, "MKLX", "HOROVOD_X", "X_OMP_", "LD_BIND_NOW"], "1")
    assert arithmetic_of({"variables": given})["variables"].keys() == counted


def test_what_an_older_version_did_not_record_is_no_change() -> None:
    now, nothing = arithmetic_of(BEGUN), {"cpu": None, "gpus": None, "cpu_flags": None, "variables": BEGUN["variables"]}
    known = nothing | {"variables": now["variables"]}
    assert arithmetic_changes(known, now) == arithmetic_changes(now, known) == arithmetic_changes({}, {}) == []
    assert arithmetic_changes(now | {"cpu_flags": []}, now) == []
