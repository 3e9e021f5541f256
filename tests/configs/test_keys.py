"""``./run.sh keys`` explains every key, and its JSON Schema accepts every shipped file and refuses wrong values."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from configs.json_schema import KINDS, Key, json_schema, list_blocks
from configs.keys import _wrapped, main
from configs.load import FOLDERS, ROOT, parse_yaml

SHIPPED = [
    (kind, path) for kind, folder in FOLDERS.items() for path in sorted((ROOT / "configs" / folder).glob("*.yaml"))
]
RANGES = Path(__file__).parent / "ranges.txt"
KEYS = [key for kind in KINDS for block in list_blocks(kind) for key in block.keys]
UNITS = {
    "batch.accumulation_steps": "micro-batches",
    "batch.bn_span": "images",
    "batch.global_size": "images",
    "cluster.engine.input_threads": "threads",
    "cluster.engine.prefetch_depth": "batches",
    "cluster.engine.threads": "threads",
    "cluster.node.cores": "cores",
    "cluster.num_nodes": "nodes",
    "cluster.ranks_per_node": "ranks",
    "data.crop.padding": "px",
    "data.eval_resize": "px",
    "data.eval_samples": "images",
    "data.shuffle_buffer": "records",
    "data.train_samples": "images",
    "model.image_size": "px",
    "run.epochs": "epochs",
    "schedule.decay.boundaries": "epochs",
    "schedule.decay.steps": "steps",
    "study.batch": "images",
    "study.ranks": "ranks",
}
"""Physical quantities and counts whose names do not end with their unit."""

ENDINGS = {"_s": "s", "_ms": "ms", "_bytes": "bytes", "_bytes_per_s": "bytes/s", "_epochs": "epochs", "_steps": "steps"}


@cache
def _validator(kind: str | None = None) -> Draft7Validator:
    return Draft7Validator(json_schema(kind))


def _accepts(kind: str | None, text: str) -> bool:
    # JSON and editors know only texts as keys.
    tree = json.loads(json.dumps(parse_yaml(text, "test")))
    return bool(_validator(kind).is_valid(tree))


def _with(kind: str, name: str, change: tuple[str, str]) -> str:
    text = (ROOT / "configs" / FOLDERS[kind] / f"{name}.yaml").read_text(encoding="utf-8")
    assert change[0] in text
    return text.replace(*change, 1)


def test_there_are_as_many_keys_as_one_has_counted() -> None:
    assert len({key.path for key in KEYS}) > 140
    assert {"run.epochs", "cluster.communication.bucket_bytes", "study.curves.NAME.grid"} <= {key.path for key in KEYS}


@pytest.mark.parametrize("kind", KINDS)
def test_every_block_is_listed_also_one_that_a_file_may_leave_out(kind: str) -> None:
    blocks = [each for each in json_schema(kind)["$defs"].values() if "properties" in each]
    listed = [block.schema for block in list_blocks(kind)]
    assert [each for each in blocks if each not in listed] == []
    assert len(blocks) > 3


def _unit_of(key: Key) -> str:
    """Return the unit that a key must state."""
    ending = max((each for each in ENDINGS if f"_{key.path.rpartition('.')[2]}".endswith(each)), key=len, default=None)
    return UNITS.get(key.path, ENDINGS[ending] if ending else key.unit)


def test_every_key_has_a_sentence_with_a_full_stop_a_type_and_a_default() -> None:
    assert [key.path for key in KEYS if not re.search(r"\w+ \w+.*\.$", key.sentence)] == []
    assert [key.path for key in KEYS if not key.type or not key.default] == []


def test_every_quantity_states_its_unit() -> None:
    assert [(key.path, key.unit) for key in KEYS if key.unit != _unit_of(key)] == []
    assert {key.path: key.unit for key in KEYS if key.path in UNITS} == UNITS


def test_every_block_says_what_it_is_for() -> None:
    assert [block.path for kind in KINDS for block in list_blocks(kind) if not block.text.strip()] == []


def test_the_listing_fits_a_hundred_columns_and_shows_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 100] == []
    assert {line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "} >= {key.path for key in KEYS}
    assert "cluster.communication.bucket_bytes       integer >= 1" in "\n".join(lines)
    assert any(re.match(r"  loss\.label_smoothing +number >= 0, < 1 ", line) for line in lines)
    assert any(re.match(r"  schedule\.base_lr +number > 0, <= 1000 ", line) for line in lines)


def test_a_listing_has_a_head_a_row_for_each_key_and_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    main(["cluster.fabric"])
    assert capsys.readouterr().out.splitlines() == [
        "cluster: configs/clusters/*.yaml (without the prefix cluster.), and --set KEY=VALUE",
        "",
        "cluster.fabric",
        "  The network between machines, for predictions.",
        "",
        "  KEY                            TYPE AND RANGE        UNIT   DEFAULT",
        "  cluster.fabric.nodes_per_rack  integer >= 1 or null  nodes  null",
        "      Nodes that share the uplinks of a rack. If null, all nodes hang on one switch.",
        "",
        "  cluster.fabric.uplink_share    number > 0, <= 1             1.0",
        "      Bandwidth of a rack's uplinks over that of all its nodes together. 1 is a fabric of full",
        "      bisection; smaller values slow down traffic between racks.",
    ]


def test_a_block_and_a_key_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    main(["schedule"])
    told = capsys.readouterr().out
    assert "schedule.base_lr" in told
    assert "schedule.decay (name: step)" in told
    assert "run.epochs" not in told
    main(["run.epochs"])
    told = capsys.readouterr().out
    assert re.search(r"run\.epochs +integer 1 to 100000 +epochs +required\n +Passes over", told)
    assert "run.seed" not in told
    main(["study"])
    assert "study (a file with the key swept)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("run.epoch", "run.epochs"),
        ("cluster.engin", "cluster.engine"),
        ("optimiser", "optimizer"),
        ("bucket_bytes", "cluster.communication.bucket_bytes"),
        ("epochs", "run.epochs"),
        ("kind", "cluster.communication.kind' or 'cluster.scheduler.kind' or 'data.crop.kind' or 'loss.kind"),
    ],
)
def test_an_unknown_block_is_one_line_with_the_nearest_one(
    word: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", word]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"error: {word}: no such block or key; did you mean '{hint}'?\n"


@pytest.mark.parametrize(
    "words", [["--json"], ["recipe", "--json"], ["cluster.engine", "--json"], ["optimizer", "--json"]]
)
def test_a_json_schema_is_one_of_draft_7(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", *words]) == 0
    schema: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    Draft7Validator.check_schema(schema)


def test_a_json_schema_repeats_no_name_as_a_title() -> None:
    blocks = [each for kind in KINDS for each in json_schema(kind)["$defs"].values()]
    assert [key for block in blocks for key in block.get("properties", {}).values() if "title" in key] == []


@pytest.mark.parametrize(("kind", "path"), SHIPPED, ids=lambda value: getattr(value, "stem", value))
def test_every_shipped_file_is_valid_under_its_json_schema(kind: str, path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\d_\d{3}\b", text), "1_000 is a text in YAML 1.2, so editors would mark it"
    assert _accepts(kind, text)
    assert _accepts(None, text)
    assert not any(_accepts(other, text) for other in KINDS if other != kind)


@pytest.mark.parametrize("number", ["256", "1e2", "2.5e+1", "064"])
def test_a_number_of_yaml_1_2_is_valid_where_a_number_is_wanted(number: str) -> None:
    assert _accepts("recipe", _with("recipe", "digits", ("base_lr: 1.0", f"base_lr: {number}")))


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        ("recipe", "digits", ("epochs: 6", "epochs: 12:30")),
        ("recipe", "digits", ("epochs: 6", "epochs: 0")),
        ("recipe", "digits", ("epochs: 6", "epoch: 6")),
        ("recipe", "digits", ("momentum: 0.9", "momentum: 1")),
        ("recipe", "digits", ("name: lars", "name: lasr")),
        ("recipe", "digits", ("mean: [80, 80, 80]", "mean: [80, 80]")),
        ("recipe", "digits", ("flip: false", "flip: no")),
        ("cluster", "laptop", ("device: cpu", "device: tpu")),
        ("cluster", "a100-node", ("{MXNET_GPU", "{mxnet_gpu")),
        ("study", "large-batch", ("seeds:", "seedz:")),
        ("study", "large-batch", ("256: [0.5, 1]", "256: []")),
        ("study", "chainermn-laptop", ("ranks: [1, 2", "ranks: [0, 2")),
        ("study", "chainermn-laptop", ("effect: loses", "effect: wins")),
    ],
)
def test_a_wrong_value_is_invalid_under_the_json_schema(kind: str, name: str, change: tuple[str, str]) -> None:
    assert not _accepts(kind, _with(kind, name, change))


def _told(variant: str, key: Key) -> str:
    """Return range, default and unit of a key; names of a registry are left out, so that a new one changes nothing."""
    numbers = key.type if re.match("(integer|number|list of .*(integer|number))", key.type) else "-"
    path = f"{key.path} ({variant})" if variant else key.path
    return f"{path} | {numbers} | {key.default} | {key.unit}".rstrip()


def test_a_range_a_default_or_a_unit_changes_on_purpose_only() -> None:
    """Published recipes rely on defaults. ``python -m tests.configs.test_keys`` writes the file anew, for review.

    A key that is new may be missing from the file.
    """
    told = {_told(*each) for each in _own_keys()}
    assert [line for line in RANGES.read_text(encoding="utf-8").splitlines() if line not in told] == []


def _own_keys() -> list[tuple[str, Key]]:
    """Return the variant of its block and the key. The engine and its communicator are those that are installed."""
    every = [(block.variant, key) for kind in KINDS for block in list_blocks(kind) for key in block.keys]
    return [each for each in every if each[1].path not in ("cluster.engine.name", "cluster.communication.kind")]


def test_a_list_of_blocks_has_positions_and_a_table_has_names() -> None:
    paths = [key.path for key in KEYS]
    assert paths.index("data.name") < paths.index("data.source") < paths.index("data.flip"), "in the schema's order"
    assert {key.type for key in KEYS if key.path == "cluster.environment"} == {"NAME: text or number"}
    assert {"study.expects.N.axis", "study.leave_out.N.ranks", "study.curves.NAME.grid"} <= {*paths}


def test_a_meaning_is_wrapped_at_spaces_and_keeps_its_paragraphs() -> None:
    text = "per-rank " * 12 + "half-width\n\nand more"
    lines = _wrapped(text, "  ")
    assert lines == [f"  {' '.join(['per-rank'] * 11)}", "  per-rank half-width", "  and more"]
    long = _wrapped(f"{'x' * 89} log-spread", "      ")
    assert long == [f"      {'x' * 89}", "      log-spread"]


if __name__ == "__main__":
    RANGES.write_text("".join(f"{_told(*each)}\n" for each in _own_keys()), encoding="utf-8")


def _printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(words) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_file_lists_its_own_keys_only(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = _printed(capsys, kind)
    heads = [line.partition(":")[0] for line in told.splitlines() if re.match(r"[a-z]+: configs/", line)]
    assert heads == [kind]
    assert told in _printed(capsys)
    assert json.loads(_printed(capsys, kind, "--json")) == json_schema(kind)
    assert json.loads(_printed(capsys, "--json")) == json_schema()


@pytest.mark.parametrize(
    ("word", "count"),
    [("optimizer", 3), ("schedule.decay", 3), ("optimizer.momentum", 3), ("optimizer.beta_2", 1), ("study.recipe", 2)],
)
def test_the_json_schema_of_alternatives_allows_each_of_them(
    word: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = json.loads(_printed(capsys, word, "--json"))
    assert len(schema.get("anyOf", [0])) == count


def test_the_json_schema_of_a_block_is_that_block_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for word, key in (("run", "epochs"), ("cluster.node", "cores"), ("schedule", "base_lr")):
        assert key in json.loads(told := _printed(capsys, word, "--json"))["properties"]
        assert set(re.findall(r'"#/\$defs/(\w+)"', told)) <= set(json.loads(told)["$defs"])


def test_a_block_is_a_whole_part_of_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    told = _printed(capsys, "cluster.node")
    assert "cluster.node.accelerator.units" in told and "cluster.num_nodes" not in told
    assert main(["run", "keys"]) == 2
    assert capsys.readouterr().err.startswith("error: 'keys' is not expected here")


def test_a_key_with_many_names_lists_them_below_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    told = " ".join(_printed(capsys, "model.name").split())
    assert "a name" in told
    assert "Allowed: resnet18, resnet34, " in told
    told = " ".join(_printed(capsys, "optimizer.skip_weight_decay").split())
    assert "list of names" in told
    assert "Allowed: weight, gamma, beta, bias." in told
