"""The README's tree names every module, and no other."""

from __future__ import annotations

import re
import subprocess

from configs.load import ROOT


def test_the_tree_has_a_line_for_every_module_of_ours() -> None:
    tree = (ROOT / "README.md").read_text(encoding="utf-8").partition("## The tree")[2]
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ours = [path for path in listed.splitlines() if path.count("/") == 1 and not path.startswith("tests/")]
    stems = {path.rpartition("/")[2].removesuffix(".py") for path in ours} - {"__init__", "__main__"}
    assert [stem for stem in sorted(stems) if not re.search(rf"\b{stem}\b", tree)] == []
