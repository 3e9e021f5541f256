"""``./run.sh keys`` explains every key, and its JSON Schema accepts every shipped file and refuses wrong values."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from configs.json_schema import KINDS, json_schema, list_blocks
from configs.keys import main
from configs.load import FOLDERS, ROOT, parse_yaml
from tests.programs import Said

SHIPPED = [
    (kind, path) for kind, folder in FOLDERS.items() for path in sorted((ROOT / "configs" / folder).glob("*.yaml"))
]
KEYS = [key for kind in KINDS for block in list_blocks(kind) for key in block.keys]


@cache
def _validator(kind: str | None = None) -> Draft7Validator:
    return Draft7Validator(json_schema(kind))


def _accepted_by(text: str) -> set[str | None]:
    """Return the kinds whose schemas accept a file, with None for the schema of all kinds."""
    # JSON and editors know only texts as keys.
    tree = json.loads(json.dumps(parse_yaml(text, "test")))
    return {kind for kind in (*KINDS, None) if _validator(kind).is_valid(tree)}


def _with(kind: str, name: str, change: tuple[str, str]) -> str:
    text = (ROOT / "configs" / FOLDERS[kind] / f"{name}.yaml").read_text(encoding="utf-8")
    assert change[0] in text
    return text.replace(*change, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_block_is_listed_also_one_that_a_file_may_leave_out(kind: str) -> None:
    blocks = [each for each in json_schema(kind)["$defs"].values() if "properties" in each]
    assert {each["description"] for each in blocks} <= {block.text for block in list_blocks(kind)}
    assert len(blocks) >= 3


def test_every_block_has_a_text_and_every_key_a_sentence_with_a_full_stop_a_type_and_a_default() -> None:
    assert [block.path for kind in KINDS for block in list_blocks(kind) if not block.text.strip()] == []
    assert [key.path for key in KEYS if not re.search(r"\w+ \w+.*\.$", key.sentence)] == []
    assert [key.path for key in KEYS if not key.type or not key.default] == []


UNITS = {
    "batch.global_size": "images", "batch.accumulation_steps": "micro-batches", "data.shuffle_buffer": "records",
    "model.image_size": "px", "run.epochs": "epochs", "schedule.warmup_steps": "steps", "cluster.watchdog_s": "s",
    "cluster.communication.cycle_time_ms": "ms", "cluster.communication.bucket_bytes": "bytes",
    "cluster.communication.link_bytes_per_s": "bytes/s", "cluster.engine.threads": "threads",
    "cluster.num_nodes": "nodes", "study.ranks": "ranks",
}  # fmt: skip


def test_a_quantity_states_its_unit() -> None:
    assert {(each.path, each.unit) for each in KEYS if each.path in UNITS} == UNITS.items()


def test_the_listing_fits_a_hundred_columns_and_shows_every_key(said: Said) -> None:
    lines = said(main, "keys").out.splitlines()
    assert [line for line in lines if len(line) > 100] == []
    assert {line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "} >= {key.path for key in KEYS}
    assert "cluster.communication.bucket_bytes       integer >= 1" in "\n".join(lines)
    assert any(re.match(r"  loss\.label_smoothing +number >= 0, < 1 ", line) for line in lines)
    assert any(re.match(r"  schedule\.base_lr +number > 0, <= 1000 ", line) for line in lines)


@pytest.mark.parametrize(
    ("word", "shown", "hidden"),
    [
        ("schedule", ["schedule.base_lr", "schedule.decay (name: step)"], "run.epochs"),
        ("run.epochs", [r"run.epochs integer 1 to 100000 epochs required Passes over"], "run.seed"),
        ("cluster.node", ["cluster.node.accelerator.units"], "cluster.num_nodes"),
        ("study", ["study (a file with the key swept)"], "cluster.node"),
        ("data.mean", ["list of 3: number"], "data.std"),
        ("model.name", ["choice", "Allowed: resnet18, resnet34, "], "model.image_size"),
        ("optimizer.skip_weight_decay", ["list: choice", "Allowed: weight, gamma, beta, bias."], "optimizer.momentum"),
    ],
)
def test_a_block_or_a_key_can_be_asked_for(word: str, shown: list[str], hidden: str, said: Said) -> None:
    told = " ".join(said(main, word).out.split())
    assert [words for words in shown if words not in told] == []
    assert hidden not in told


@pytest.mark.parametrize(("word", "hint"), [("run.epohcs", "run.epochs"), ("cluster.egnine", "cluster.engine")])
def test_an_unknown_block_is_one_line_with_the_nearest_one(word: str, hint: str, said: Said) -> None:
    told = said(main, "keys", word, status=2)
    assert told.out == ""
    assert told.err == f"error: {word}: no such block or key; did you mean '{hint}'?\n"


@pytest.mark.parametrize(
    ("word", "found", "others"),
    [
        ("gpus", ["cluster.ranks_per_node", "cluster.sample_gpus"], ["cluster.name"]),
        ("momentum", ["optimizer.momentum", "model.bn_momentum"], ["run.epochs"]),
        ("Learning Rate", ["schedule.base_lr"], ["run.epochs"]),
        ("batch size", ["batch.global_size"], ["run.epochs"]),
        ("freeze", ["model.frozen"], ["run.seed"]),
        ("bucket_b", ["cluster.communication.bucket_bytes"], ["run.seed"]),
    ],
)
def test_a_word_is_looked_for_in_names_descriptions_and_names_of_other_programs(
    word: str, found: list[str], others: list[str], said: Said
) -> None:
    told = {line.split()[0] for line in said(main, "keys", word).out.splitlines() if re.match(r"  [a-z]\S*\.\S", line)}
    assert told >= set(found)
    assert not told & set(others)


@pytest.mark.parametrize("words", [["--json"], ["recipe", "--json"]])
def test_a_json_schema_is_one_of_draft_7(words: list[str], said: Said) -> None:
    schema: dict[str, Any] = json.loads(said(main, "keys", *words).out)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    Draft7Validator.check_schema(schema)


@pytest.mark.parametrize(("kind", "path"), SHIPPED, ids=lambda value: getattr(value, "stem", value))
def test_every_shipped_file_is_valid_under_its_json_schema(kind: str, path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"\d_\d{3}\b", text), "1_000 is a text in YAML 1.2, so editors would mark it"
    assert _accepted_by(text) == {kind, None}


@pytest.mark.parametrize("number", ["256", "1e2", "2.5e+1", "064"])
def test_a_number_of_yaml_1_2_is_valid_where_a_number_is_wanted(number: str) -> None:
    assert "recipe" in _accepted_by(_with("recipe", "digits", ("base_lr: 1.0", f"base_lr: {number}")))


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        ("recipe", "digits", ("epochs: 6", "epochs: 0")),
        ("recipe", "digits", ("epochs: 6", "epoch: 6")),
        ("recipe", "digits", ("momentum: 0.9", "momentum: 1")),
        ("recipe", "digits", ("name: lars", "name: lasr")),
        ("recipe", "digits", ("mean: [80, 80, 80]", "mean: [80, 80]")),
        ("recipe", "digits", ("flip: false", "flip: no")),
        ("cluster", "laptop", ("device: cpu", "device: tpu")),
        ("cluster", "a100-node", ("{MXNET_GPU", "{mxnet_gpu")),
        ("study", "large-batch", ("seeds:", "seedz:")),
        ("study", "large-batch", ("256: [1, 2, 4]", "256: []")),
        ("study", "chainermn-laptop", ("ranks: [1, 2", "ranks: [0, 2")),
    ],
)
def test_a_wrong_value_is_invalid_under_the_json_schema(kind: str, name: str, change: tuple[str, str]) -> None:
    assert kind not in _accepted_by(_with(kind, name, change))


@pytest.mark.medium
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_of_file_lists_its_own_keys_only(kind: str, said: Said) -> None:
    told = said(main, kind).out
    heads = [line.partition(":")[0] for line in told.splitlines() if re.match(r"[a-z]+: configs/", line)]
    assert heads == [kind]
    assert told in said(main).out
    assert json.loads(said(main, kind, "--json").out) == json_schema(kind)
    assert json.loads(said(main, "--json").out) == json_schema()
