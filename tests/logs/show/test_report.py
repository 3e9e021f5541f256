import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from logs.__main__ import main
from logs.show import reported_run
from tests.logs import samples


class Page(HTMLParser):
    """The tags and words of a page; fails if a tag is not closed."""

    void = frozenset({"meta", "br", "path", "rect", "circle", "use"})

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        assert not self._open
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.void or not self.get_starttag_text().endswith(("/>", "br>")):  # type: ignore[union-attr]
            self._open += [] if tag == "meta" else [tag]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, Any]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    return [str(samples.run_folder(tmp_path / f"run-{seed}", seed, epoch_s=9 + seed)) for seed in range(1, 6)]


@pytest.mark.usefixtures("undrawn")
def test_the_page_of_several_runs_has_their_times_and_charts(
    tmp_path: Path, runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page" / "report.html"
    assert main(["report", *runs, "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    page = Page(out)
    # 8 epochs of 10 to 14 s and two evaluations of 1 s
    assert "98.00 s to train: median of 5 runs that reached the target, out of 5; " in page.text
    assert "fastest 82.00 s, slowest 114.00 s; olympic mean 98.00 s." in page.text
    assert "1 setting differs." in page.text
    assert "recipe.run.seed" in page.text
    captions = [page.text.find(words) for words in (
        "Results", "What differs", "Accuracy by epoch", "Accuracy by time", "Training loss by epoch", "Learning rate",
        "Throughput", "Evaluation time", "Where a step's time goes",
        "Time of a step by rank: run-1, the most uneven of 5; rank 1", "Start-up: run-1, the longest of 5",
        "Configuration", "Files",
    )]  # fmt: skip
    assert captions == sorted(captions)
    assert min(captions) > 0
    assert "Start-up: run-2" not in page.text, "of many runs, one has such a chart"


@pytest.mark.usefixtures("undrawn")
def test_the_slowest_rank_is_named_and_of_many_ranks_both_ends_are_drawn(tmp_path: Path) -> None:
    folder = samples.run_folder(tmp_path / "run")
    assert main(["report", str(folder)]) == 0
    text = Page(folder / "report.html").text
    assert "by rank: rank 1 computes longest, 4.8% above the median" in text
    samples.write_ranks(folder, [1.0 + 0.001 * rank for rank in range(2048)])
    assert main(["report", str(folder)]) == 0
    text = Page(folder / "report.html").text
    assert "by rank: rank 2047 computes longest, 50.6% above the median; the 8 slowest and fastest of 2048" in text
    assert "rank 2040: 3040.0 ms computing" in text
    assert "rank 7: 1007.0 ms computing" in text
    assert "rank 1000" not in text


def test_the_page_loads_nothing_and_works_with_screen_reader_and_keyboard(tmp_path: Path, runs: list[str]) -> None:
    out = tmp_path / "report.html"
    main(["report", *runs, "--out", str(out)])
    page = Page(out)
    assert not page.all("script")
    assert not page.all("link") + page.all("img")
    assert not re.search(r"https?://(?!www.w3.org/)|@import|url\(", out.read_text())
    assert page.all("html")[0]["lang"] == "en"
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in page.all("svg"))
    assert all(region["tabindex"] == "0" and region["aria-label"] for region in page.all("div") if "role" in region)
    links = [unquote(link["href"]) for link in page.all("a")]
    assert "run-1/result_0.txt" in links
    assert all((out.parent / link).is_file() for link in links)


@pytest.mark.usefixtures("undrawn")
def test_the_page_of_one_run_is_in_the_run_folder_and_says_why_a_log_fails(runs: list[str]) -> None:
    folder = Path(runs[0])
    log = folder / "result_0.txt"
    log.write_text("\n".join(line for line in log.read_text().splitlines() if "train_samples" not in line))
    assert main(["report", runs[0]]) == 0
    page = Page(folder / "report.html")
    assert "fails 4.0.0" in page.text
    assert "train_samples is missing; log train_samples" in page.text


@pytest.mark.usefixtures("undrawn")
def test_foreign_logs_of_all_rounds_stand_side_by_side(tmp_path: Path) -> None:
    events = samples.run_events(epochs=36, batch=3264)
    for name, write in (("result_0", samples.mlp), ("result_1", samples.mll), ("result_2", samples.mllog)):
        (tmp_path / f"{name}.txt").write_text(write(events))
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path), "--out", str(out)]) == 0
    page = Page(out)
    assert "3 runs side by side" in page.text
    assert "reference at batch 3264" in page.text
    assert "Reference convergence: normal: 36 epochs" in page.text


@pytest.mark.usefixtures("undrawn")
def test_markup_in_a_log_stays_text(tmp_path: Path) -> None:
    log = tmp_path / "a.txt"
    log.write_text(samples.mllog(samples.run_events(org="<script>alert(1)</script>")))
    run = samples.run_folder(tmp_path / "run")
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    (run / "summary.json").write_text(json.dumps(summary | {"failure": "<script>alert(2)</script>"}), encoding="utf-8")
    main(["report", str(log), str(run), "--out", str(tmp_path / "r.html")])
    page = Page(tmp_path / "r.html")
    assert not page.all("script")
    for number in (1, 2):
        assert f"<script>alert({number})</script>" in page.text


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "ranks.json", "startup.json", "summary.json", "config.yaml", "verdict.json"]
)
def test_a_damaged_file_removes_only_a_part_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(reported_run, "judge", samples.passed)
    folder = samples.run_folder(tmp_path / "run")
    for content in (
        b"\xff\xfe{",
        b"[1, 2]",
        b'{"phases": [{"phase": 1}], "ranks": [1, {"rank": 1}], "4.0.0": {"passed": 1}}\n',
        b'{"phases": [{"phase": "p", "thread": "t", "begin_s": 0, "end_s": Infinity}], "4.0.0": {"messages": 5}}\n',
    ):
        (folder / name).write_bytes(content)
        assert main(["report", str(folder)]) == 0
        assert "Configuration" in Page(folder / "report.html").text


@pytest.mark.ranks
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed")
def test_on_a_phone_nothing_of_the_page_is_beyond_the_edge(tmp_path: Path, runs: list[str]) -> None:
    out = tmp_path / "report.html"
    main(["report", *runs, "--out", str(out)])
    probe = """<iframe id=f src=report.html style="width:390px;height:800px"></iframe><script>
      onload = () => { const d = f.contentDocument; document.title = [d.documentElement.scrollWidth,
      d.querySelectorAll('figure svg').length, getComputedStyle(d.body).fontSize].join(' ') }</script>"""
    (tmp_path / "probe.html").write_text(f"<!doctype html>{probe}")
    command = [
        "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", (tmp_path / "probe.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r"<title>(\d+) (\d+) (\S+)</title>", done.stdout)
    assert found, done.stdout
    assert int(found[1]) <= 390
    assert int(found[2]) >= 12
    assert found[3] == "16px"
