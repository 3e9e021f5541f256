"""The official package, system-description, RCP and result-summary tools, as commands whose words are read.

Most of them end with status 0 whatever they found, and one writes into what it judges; hence the copy and the words.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Finding", "judge_package"]

_LINE = re.compile(r"^(ERROR|WARNING) - +(.*)$", re.MULTILINE)
_USUAL = re.compile(r"^-+$|^FAILED$|^CHECK|^Found parsing|^\s*$")


@dataclass(frozen=True)
class Finding:
    """What one official tool says of a submission tree.

    Attributes:
        passed: None where the rules do not ask for this check.
        words: One line each: why it failed, or what it measured.
    """

    tool: str
    passed: bool | None
    words: tuple[str, ...]


def judge_package(
    org_folder: Path, *, system: str, division: str, ruleset: str = "4.0.0", custom_rcp: Path | None = None
) -> list[Finding]:
    """Run the four tools over a submission tree of ResNet results.

    Args:
        org_folder: The tree, ``ORG/{systems,results,benchmarks}``; it is copied first and left as it is.
        system: Name of the system in it.
        division: An open submission has no RCP check.
        ruleset: 1.0.0 to 4.0.0.
        custom_rcp: Reference points in place of the official ones; the package tool then runs with its bypass.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = folder / org_folder.name
        shutil.copytree(org_folder, tree)
        results = tree / "results" / system / "resnet"
        common = ["training", ruleset]
        bypass = ["--rcp-bypass"] if custom_rcp else []

        def check_and_summarise() -> tuple[str, str]:
            # In this order: the first leaves the normalisation of a score where the second reads it.
            checked = _run(folder, "package_checker", [str(tree), *common, "--quiet", *bypass])
            return checked, _run(folder, "result_summarizer", [str(tree), *common, "--quiet", "--csv", "summary.csv"])

        with ThreadPoolExecutor(max_workers=1) as pool:
            asked = pool.submit(check_and_summarise)
            description = _run(folder, "system_desc_checker", [str(tree / "systems" / f"{system}.json"), *common])
            rcp = _rcp(folder, results, ruleset, custom_rcp) if division == "closed" else None
            package, summary = asked.result()
        score = _score(folder / "summary.json")
    return [
        Finding("system description", "System description checker passed" in description, _complaints(description)),
        rcp or Finding("RCP", None, ("an open submission is not compared with the reference",)),
        Finding("package", "PACKAGE CHECKER FOUND NO ERRORS, SUCCESS" in package, _complaints(package)),
        _summary(summary, score),
    ]


def _rcp(folder: Path, results: Path, ruleset: str, custom: Path | None) -> Finding:
    arguments = ["--rcp_usage", "training", "--rcp_version", ruleset, str(results)]
    if custom is not None:
        arguments += ["--custom_rcps", str(custom.absolute())]
    words = _run(folder, "rcp_checker", arguments)
    verdict = re.search(r"^\w+ - (.*), RCP test (PASSED|FAILED)", words, re.MULTILINE)
    faster = re.search(r"Score should be normalized by factor of .* = ([\d.]+)", words)
    told = [verdict[1]] if verdict else [words.strip().splitlines()[-1] if words.strip() else "it said nothing"]
    told += [f"faster than the reference: the score is multiplied by {float(faster[1]):.4f}"] if faster else []
    return Finding("RCP", bool(verdict and verdict[2] == "PASSED"), tuple(told))


def _summary(words: str, score: float | None) -> Finding:
    said = tuple(line for line in words.splitlines() if re.match(r"CRITICAL|NOTICE|\w*Error", line))
    if score is None:
        return Finding("result summary", passed=False, words=said or ("it gives no score",))
    passed = not any(line.startswith("CRITICAL") for line in said)
    return Finding("result summary", passed, (f"score {score:.6g} minutes", *said))


def _score(path: Path) -> float | None:
    """Read the score of the one system of the tree, in minutes."""
    rows = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return next((float(row["resnet"]) for row in rows if row.get("resnet") is not None), None)


def _run(folder: Path, tool: str, arguments: Sequence[str]) -> str:
    """Run a tool in ``folder``, where it leaves its log files; give all it said."""
    command = [sys.executable, "-m", f"mlperf_logging.{tool}", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    return f"{done.stdout}\n{done.stderr}"


def _complaints(words: str) -> tuple[str, ...]:
    """Keep what a tool calls an error, and its crash if it had one, each once."""
    found = [text for level, text in _LINE.findall(words) if level == "ERROR" and not _USUAL.match(text)]
    if "Traceback (most recent call last)" in words:
        found.append(words.strip().splitlines()[-1])
    return tuple(dict.fromkeys(found))
