"""What tests of pages share."""

from __future__ import annotations

from html import escape

import pytest


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write descriptions in place of drawings, which take most of a report's time."""
    monkeypatch.setattr("logs.show.drawing.to_svg", lambda chart: f"<svg>{escape(chart.description)}</svg>")
