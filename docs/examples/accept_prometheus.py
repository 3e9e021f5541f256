"""Write the verdicts and figures of an acceptance for the textfile collector of Prometheus' node_exporter.

    python3 docs/examples/accept_prometheus.py runs/accept-NAME/accept.json /var/lib/node_exporter/accept.prom

Needs the standard library only. A verdict is 0 for pass, 1 slow, 2 failed, -1 not asked; host is empty for the machine.
"""

import json
import sys
from collections.abc import Iterator
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

VERDICTS = {"skipped": -1, "pass": 0, "slow": 1, "failed": 2}


def samples(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, str], float | None]]:
    """Yield name, labels and value of each sample, one metric after another; None where a value is not known."""
    # A check of the doctor may have several results, of which the worst counts.
    by_verdict = sorted(document["checks"], key=lambda check: VERDICTS[check["verdict"]])
    checks = {(check["host"], check["topic"]): check for check in by_verdict}
    yield "accept_verdict", {}, VERDICTS[document["verdict"]]
    yield "accept_end_timestamp_seconds", {}, datetime.fromisoformat(document["time"]).timestamp()
    for node in document["nodes"]:
        yield "accept_node_verdict", {"host": node["host"]}, VERDICTS[node["verdict"]]
    for (host, topic), check in checks.items():
        yield "accept_check_verdict", {"host": host, "topic": topic}, VERDICTS[check["verdict"]]
    for (host, topic), check in checks.items():
        yield "accept_figure", {"host": host, "topic": topic, "unit": check["unit"]}, check["value"]
    for host, used in document["energy"]["nodes"].items():
        yield "accept_energy_joules", {"host": host}, used["joules"]


def exposition(document: dict[str, Any]) -> str:
    """Return an acceptance in Prometheus' text format."""
    common = {"cluster": document["cluster"], "recipe": document["recipe"]}
    lines = []
    known = (sample for sample in samples(document) if sample[2] is not None)
    for metric, rows in groupby(known, lambda sample: sample[0]):
        lines.append(f"# TYPE {metric} gauge")
        for _, labels, value in rows:
            # JSON escapes quotes, backslashes and line feeds as the format does.
            shown = ",".join(f"{key}={json.dumps(text, ensure_ascii=False)}" for key, text in (common | labels).items())
            lines.append(f"{metric}{{{shown}}} {value}")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    if len(sys.argv) != 3:  # noqa: PLR2004 (the program and two files)
        sys.exit(__doc__)
    source, target = map(Path, sys.argv[1:])
    # The collector reads at any moment, and only names that end in .prom.
    new = target.with_suffix(".new")
    try:
        text = exposition(json.loads(source.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"{source} is no accept.json of a finished acceptance: {error}")
    new.write_text(text, encoding="utf-8")
    new.replace(target)
