"""Runs MLPerf's tools for submissions: package, system description, RCP (reference convergence), summary, repository.

The verdicts are read from the tools' output, because most of the tools end with exit status 0 whatever they find. The
submission tree is copied first, because one tool writes into the tree that it judges.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RULESET = "4.0.0"
"""The ruleset of a submission and of the reference points."""

_LINE = re.compile(r"^(ERROR|WARNING) - +(.*)$", re.MULTILINE)
_USUAL = re.compile(r"^-+$|^FAILED$|^CHECK|^Found parsing|^\s*$")


@dataclass(frozen=True)
class ToolFinding:
    """The verdict of one tool on a submission tree.

    Attributes:
        tool: What was checked, in words.
        passed: None if the rules do not ask for this check.
        words: Lines that say why the check failed, or what it measured.
    """

    tool: str
    passed: bool | None
    words: tuple[str, ...]


def judge_package(org_folder: Path, *, system: str, division: str) -> list[ToolFinding]:
    """Run the five tools over a submission tree of ResNet results.

    Args:
        org_folder: The tree, ``ORG/{systems,results,benchmarks}``. It is not changed.
        system: Name of the system in the tree.
        division: ``open`` or ``closed``; the rules ask for the RCP check in the closed division only.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = folder / org_folder.name
        shutil.copytree(org_folder, tree)
        results = tree / "results" / system / "resnet"
        common = ["training", RULESET]

        repository = judge_repository(tree)
        description = run_tool(folder, "system_desc_checker", [str(tree / "systems" / f"{system}.json"), *common])
        rcp = _rcp(folder, results) if division == "closed" else None
        # In this order, because the summary reads the normalisation of a score that the package tool writes.
        words = [str(tree), *common, "--quiet"]
        package = run_tool(folder, "package_checker", words)
        summary = run_tool(folder, "result_summarizer", [*words, "--csv", "summary.csv"])
        score = _summary(summary, folder / "summary.json")
    return [
        ToolFinding("system description", "System description checker passed" in description, _complaints(description)),
        rcp or ToolFinding("RCP", None, ("the rules do not compare an open submission with the reference",)),
        ToolFinding("package", "PACKAGE CHECKER FOUND NO ERRORS, SUCCESS" in package, _complaints(package)),
        score,
        repository,
    ]


def judge_repository(org_folder: Path) -> ToolFinding:
    """Run the tool that looks for files that a Git host refuses: hidden, too large, with a space or a broken link."""
    with tempfile.TemporaryDirectory() as folder:
        words = run_tool(Path(folder), "repo_checker", [str(org_folder.absolute()), "training", RULESET])
    lines = (line.strip().removeprefix("ERROR - ") for line in words.splitlines() if not line.startswith("INFO"))
    complaints = tuple(line.replace(f"{org_folder.absolute()}/", "") for line in dict.fromkeys(lines) if line)
    return ToolFinding("repository", "ALL CHECKS PASSED" in words, complaints)


def _rcp(folder: Path, results: Path) -> ToolFinding:
    words = run_tool(folder, "rcp_checker", ["--rcp_usage", "training", "--rcp_version", RULESET, str(results)])
    verdict = re.search(r"^\w+ - (.*), RCP test (PASSED|FAILED)", words, re.MULTILINE)
    faster = re.search(r"Score should be normalized by factor of .* = ([\d.]+)", words)
    lines = [verdict[1] if verdict else (words.strip().splitlines() or ["the tool printed nothing"])[-1]]
    lines += [f"faster than the reference: the score is multiplied by {float(faster[1]):.4f}"] if faster else []
    return ToolFinding("RCP", bool(verdict and verdict[2] == "PASSED"), tuple(lines))


def _summary(words: str, summary: Path) -> ToolFinding:
    """Return the verdict of the summary, with the score in minutes of the only system in the tree, if there is one."""
    rows = json.loads(summary.read_text(encoding="utf-8")) if summary.is_file() else []
    score = next((float(row["resnet"]) for row in rows if row.get("resnet") is not None), None)
    said = tuple(line for line in words.splitlines() if re.match(r"CRITICAL|NOTICE|\w*Error", line))
    if score is None:
        return ToolFinding("result summary", passed=False, words=said or ("the tool printed no score",))
    passed = not any(line.startswith("CRITICAL") for line in said)
    return ToolFinding("result summary", passed, (f"score {score:.6g} minutes", *said))


def run_tool(folder: Path, tool: str, arguments: Sequence[str]) -> str:
    """Run a tool in ``folder``, into which the tool writes log files; return the tool's output."""
    command = [sys.executable, "-I", "-m", f"mlperf_logging.{tool}", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    return f"{done.stdout}\n{done.stderr}"


def _complaints(words: str) -> tuple[str, ...]:
    """Return the lines that a tool marks as errors, each once, and the last line of a traceback."""
    found = [text for level, text in _LINE.findall(words) if level == "ERROR" and not _USUAL.match(text)]
    if "Traceback (most recent call last)" in words:
        found.append(words.strip().splitlines()[-1])
    return tuple(dict.fromkeys(found))
