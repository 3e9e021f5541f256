"""What the import of DALI does to the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

from configs.load import ROOT


@pytest.mark.ranks
def test_dali_is_imported_without_a_word_and_later_warnings_are_shown() -> None:
    # On Python 3.12, DALI 1.34 calls itself experimental, whatever the filters say.
    code = "import warnings\nimport data.input.pipeline\nwarnings.warn('of ours')"
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stderr == "<string>:3: UserWarning: of ours\n"
