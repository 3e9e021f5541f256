"""The document of a plan as text for a terminal. Needs only the standard library."""

import textwrap
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from configs.arguments import counted, duration

_WIDTH, _HEIGHT = 72, 10
_INDENT = 11
_WHOLE_FROM = 100
"""Values from this on are shown as whole numbers."""
_LISTED_EVALUATIONS = 6
"""Evaluations up to which the line lists every epoch; of more it lists the first three and the last two."""
_PURPOSES = {
    "weights": "",
    "gradients": "",
    "optimizer": "",
    "activations": "  of one micro-batch",
    "evaluation": "  folded weights and activations",
    "input": "  batches and decoders",
    "communication": "  buffers of the sums",
    "workspace": "  temporary results, at most",
    "libraries": "  assumed of a GPU; on a CPU, pages that ranks share",
    "process": "  interpreter, libraries, and their copies of the weights",
    "total": "",
}
"""Purpose -> a note on what is counted; purposes that take nothing are left out."""


def render(document: Mapping[str, Any]) -> str:
    """Return the whole text of `train.plan.document.plan_document`; it ends with a newline."""
    growing = {"Training images by epoch": _image_sizes(document["image_sizes"])} if document["image_sizes"][1:] else {}
    sections = {
        f"{document['recipe']} on {document['cluster']}": _head(document),
        "Simulated, with the ends of 90 % intervals": [
            *_simulated(document["simulated"]),
            *(f"slow       {words}" for words in document["slow_settings"]),
            *_input(document["input"]),
        ],
        **growing,
        "Learning rate": [*draw(document["schedule"]), "", *_landmarks(document["landmarks"])],
        "Evaluation": [_evaluation(document["eval_epochs"])],
        "Shards": [_shard(name, shard) for name, shard in document["shards"].items()],
        "Network": _network(document),
        "Memory of a rank, estimated": _memory(document),
        "Environment of a rank": [f"{key}={value}" for key, value in sorted(document["environment"].items())],
        **_mlperf(document),
    }
    blocks = ["\n".join([title, *(f"  {line}".rstrip() for line in lines)]) for title, lines in sections.items()]
    return "\n\n".join(blocks) + "\n"


def draw(schedule: Sequence[Sequence[float]]) -> list[str]:
    """Return a chart of rows [step, value, ...] as lines of ``#``; the highest bar reaches the top."""
    steps = [row[0] for row in schedule]
    last, top = steps[-1], max(row[1] for row in schedule)
    columns = [
        schedule[bisect_right(steps, last * column / (_WIDTH - 1)) - 1][1] / top if top else 0.0
        for column in range(_WIDTH)
    ]
    lines = []
    for level in range(_HEIGHT, 0, -1):
        label = f"{top * level / _HEIGHT:8.3g}"
        lines.append(f"{label} |" + "".join("#" if share > (level - 0.5) / _HEIGHT else " " for share in columns))
    lines.append(f"{'':8} +" + "-" * _WIDTH)
    lines.append(f"{'step':>8}  0{last:>{_WIDTH - 1}}")
    return [line.rstrip() for line in lines]


def _head(document: Mapping[str, Any]) -> list[str]:
    real = document["steps_per_epoch_real"]
    spread = f"{real['fewest']} to {real['most']}" if real["fewest"] != real["most"] else f"{real['most']}"
    return [
        *filter(None, [document["card"]["purpose"]]),
        *(line for name in ("source", "expected", "gains") for line in _card_lines(name, document["card"][name])),
        f"ranks      {document['world_size']:,} = {counted(document['num_nodes'], 'node')} x "
        f"{document['ranks_per_node']}",
        f"batch      {document['global_batch_size']:,} = {counted(document['world_size'], 'rank')}"
        f" x {counted(document['per_rank_batch_size'], 'image')} x "
        f"{counted(document['accumulation_steps'], 'micro-batch', 'micro-batches')}{_shared(document['norm_ranks'])}",
        f"epochs     {document['epochs']} of nominally {document['steps_per_epoch']} steps "
        f"({document['total_steps_nominal']:,} in all); the run takes {spread} steps per epoch, "
        f"{document['total_steps']:,} in all",
        *filter(None, [document["stepless_epochs"]]),
        f"optimizer  {document['optimizer']}",
        f"warm-up    {document['warmup_steps']:,} steps, then {document['decay_steps']:,} steps of decay",
        *(line for words in document["shifted_epochs"] for line in _card_lines("", words)),
    ]


def _card_lines(name: str, text: str) -> list[str]:
    """Return a value of the recipe's card in lines of at most 118 characters; none if it is empty."""
    return textwrap.wrap(f"{name:<{_INDENT}}{text}", 118, subsequent_indent=" " * _INDENT) if text else []


def _simulated(found: Mapping[str, Any]) -> list[str]:
    if "unknown" in found:
        return [f"not possible: {found['unknown']}"]
    title = "to target" if found["is_time_to_train"] else "run"
    rows = (
        ("images/s", "images_per_s", ""),
        (title, "run_s", f" s ({duration(found['run_s'][0])}) for {found['epochs']} epochs"),
        ("start-up", "startup_s", " s before run_start"),
        ("cost", "accelerator_hours", " accelerator hours"),
    )
    lines = [_with_bounds(name, found[key], unit) for name, key, unit in rows]
    if found["is_unmeasured"]:
        lines[0] += "; not measured: under PyTorch, only an H200 was timed (docs/gpu.md)"
    return lines


def _with_bounds(name: str, bounded: Sequence[float], unit: str) -> str:
    value, low, high = bounded
    digits = 0 if value >= _WHOLE_FROM else 2
    return f"{name:<11}{value:,.{digits}f}{unit} ({low:,.{digits}f} to {high:,.{digits}f})"


def _image_sizes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each size; the memory and the multiply-adds of the other sections are those of the largest."""
    lines = [f"{'epochs':>9}  {'side':>7}  {'steps':>9}  {'multiply-adds':>13}  {'an epoch':>10}"]
    for row in rows:
        seconds = "unknown" if row["epoch_s"] is None else f"{row['epoch_s']:,.1f} s"
        lines.append(
            f"{row['first_epoch']:>3} to {row['last_epoch']:>2}  {row['side']:>4} px  {row['steps']:>9,}  "
            f"{row['forward_macs_per_image'] / 1e9:>11.3g} G  {seconds:>10}"
        )
    return lines


def _shared(norm_ranks: int) -> str:
    return f"; batch norms span {norm_ranks} ranks" if norm_ranks > 1 else ""


def _landmarks(landmarks: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [f"{'step':>8}  {'rate':>12}  {'momentum':>8}  {'weight decay':>12}"]
    rows += [
        f"{mark['step']:>8}  {mark['lr']:>12.6g}  {mark['momentum']:>8g}  {mark['weight_decay']:>12.6g}  {mark['at']}"
        for mark in landmarks
    ]
    return rows


def _evaluation(epochs: Sequence[int]) -> str:
    words = [str(epoch) for epoch in epochs]
    shown = words if len(words) <= _LISTED_EVALUATIONS else [*words[:3], "...", *words[-2:]]
    return f"at most {len(epochs)} evaluations, after epochs {', '.join(shown)}"


def _shard(name: str, shard: Mapping[str, int]) -> str:
    left = shard["samples"] - shard["read_in_an_epoch"]
    late = f"; an epoch leaves {left:,} to the next" if left else ""
    return (
        f"{name:<6}{shard['samples']:>10,} images, {shard['smallest']:,} to {shard['largest']:,} per rank; read by "
        f"several ranks: {shard['seen_twice']}, by none: {shard['never_seen']}{late}"
    )


def _network(document: Mapping[str, Any]) -> list[str]:
    types = document["number_types"]
    frozen = f", {document['frozen_numbers']:,} numbers of frozen layers" if document["frozen_numbers"] else ""
    lines = [
        f"{document['parameters']:,} parameters in {document['tensors']} tensors{frozen}, "
        f"{document['forward_macs_per_image'] / 1e9:.3g} G multiply-adds per image in the forward pass",
        f"layers compute in {types['computed']}, gradients are summed in {types['summed']}, weights and moments are "
        f"kept in {types['kept']}",
        *_compiled(document["compiled_stages"]),
        *_GRAPHS[document["cuda_graphs"]],
        f"gradients {_megabytes(document['gradient_bytes']).strip()} in {len(document['buckets'])} allreduces per "
        "step:",
    ]
    lines += [
        f"  {_megabytes(bucket['bytes'])}  {bucket['tensors']:>3} tensors, {bucket['first']} to {bucket['last']}"
        f"{', during the next forward' if bucket['is_deferred'] else ''}"
        for bucket in document["buckets"]
    ]
    return lines


_GRAPHS = {
    "none": [],
    "step": ["a step is replayed as one CUDA graph, with its allreduces"],
    "compute": [
        "forward and backward passes are replayed as one CUDA graph and the update as another, allreduces between"
    ],
}
"""`engine.cuda_graphs` -> what it does."""


def _compiled(num_stages: int) -> list[str]:
    stages = (
        "one program" if num_stages == 1 else f"{num_stages} stages, each of which hands on its gradients at its end"
    )
    return [f"torch.compile makes the kernels of forward and backward passes, as {stages}"] if num_stages else []


def _input(rates: Mapping[str, Any] | None) -> list[str]:
    """Return what a node must read, decode and hold, for JPEGs as large as ImageNet's, and what is missing."""
    if rates is None:
        return []
    possible = rates["possible_per_s_per_gpu"]
    known = "how many it can is not known" if possible is None else f"of about {possible:,} that it can"
    input_words = (
        f"after the first epoch, a node takes {rates['images_per_s_per_node']:,.0f} images/s and reads "
        f"{rates['read_bytes_per_s_per_node'] / 1e6:,.0f} MB/s; a GPU decodes {rates['decoded_per_s_per_gpu']:,.0f} "
        f"images/s, {known}, and keeps {rates['cached_share']:.0%} decoded; a node reads "
        f"{rates['node_bytes'] / 1e9:,.1f} GB in all, of which its memory holds {rates['in_memory_share']:.0%}"
    )
    missing = [line for words in rates["missing"] for line in _card_lines("too slow", words)]
    return [*_card_lines("input", input_words), *missing]


def _memory(document: Mapping[str, Any]) -> list[str]:
    memory, dali = document["memory"], document["dali"]
    lines = [
        f"{purpose:<15}{_megabytes(memory[f'{purpose}_bytes'])}{note}"
        for purpose, note in _PURPOSES.items()
        if memory[f"{purpose}_bytes"]
    ]
    lines += [_verdict(memory), *([f"this machine   {memory['here']}"] if memory["here"] else [])]
    batch, decoder, pinned = (
        _megabytes(number).strip()
        for number in (dali["batch_bytes"], dali["decoder_bytes"], memory["pinned_bytes_per_node"])
    )
    queue = f"{dali['threads']} threads each, {dali['prefetch_depth']} batches of {batch} in advance"
    lines.append(f"DALI: {dali['pipelines']} pipelines with {queue}, decoders {decoder}")
    if dali["pipelines"]:
        lines.append("the pipelines are built before run_start, and training images are read from run_start on")
    return [*lines, f"page-locked memory of a node, for the decoders: {pinned}"] if dali["pinned_bytes"] else lines


def _verdict(memory: Mapping[str, Any]) -> str:
    available = memory["available_bytes"]
    if available is None:
        keys = "node.memory_bytes (CPU) nor node.gpu_memory_bytes (GPU)"
        return f"{'available':<15}unknown: the cluster file has neither {keys}"
    remedy = "use more ranks, or accumulate smaller micro-batches (batch.bn_span)"
    if memory["fits"]:
        verdict = "fits"
    elif memory["certain_bytes"] <= available:
        verdict = f"TIGHT: fits only if the libraries take less than assumed; {remedy}"
    else:
        verdict = f"DOES NOT FIT: {_megabytes(memory['certain_bytes'] - available).strip()} too much; {remedy}"
    return f"{'available':<15}{_megabytes(available)}: {verdict}"


def _mlperf(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the sections for who submits the run."""
    if not document["compliance"]["submits"]:
        return {"MLPerf": ["not for submission; --set mlperf.submits=true shows the log and the rules"]}
    log = [f"{key} = {value}" for key, value in document["log_keys"].items() if value is not None]
    return {"Log": log, "Compliance": _compliance(document["compliance"])}


def _compliance(compliance: Mapping[str, Any]) -> list[str]:
    lines = [f"this recipe runs in the {compliance['division']} division under ruleset {compliance['ruleset']}"]
    lines += [f"this machine: {compliance['here']}"] if compliance["here"] else []
    reasons: dict[str, list[str]] = {}
    for ruleset, verdict in compliance["rulesets"].items():
        broken = verdict["broken_rules"]
        answer = f"not allowed, {len(broken)} rules are broken" if broken else "allowed"
        lines.append(f"closed division under ruleset {ruleset}: {answer}")
        for rule in broken:
            words = f"{rule['rule']}: {rule['key']} is {rule['got']}, allowed: {rule['allowed']}"
            reasons.setdefault(words, []).append(ruleset)
    return [*lines, *(f"  {words} ({', '.join(rulesets)})" for words, rulesets in reasons.items())]


def _megabytes(number: int) -> str:
    return f"{number / 1e6:>10,.1f} MB"
