"""Pages of run folders and logs, made as a user makes them."""

import re
import shutil
import subprocess
from pathlib import Path
from xml.etree.ElementTree import Element

import pytest

from logs.__main__ import main
from logs.show import reported_run
from tests.logs import samples
from tests.logs.show.pages import read_page, words
from tests.programs import Said, run_program

pytestmark = pytest.mark.medium


def _page(path: Path) -> Element:
    return read_page(path.read_text(encoding="utf-8"))


def _text(path: Path) -> str:
    return words(_page(path))


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    return [str(samples.run_folder(tmp_path / f"run-{seed}", seed, epoch_s=9 + seed)) for seed in range(1, 6)]


@pytest.mark.usefixtures("undrawn")
def test_the_page_of_several_runs_has_their_times_and_charts(tmp_path: Path, runs: list[str], said: Said) -> None:
    out = tmp_path / "page" / "report.html"
    assert said(main, "report", *runs, "--out", out).out.strip() == str(out)
    text = _text(out)
    # 8 epochs of 10 to 14 s and two evaluations of 1 s
    assert "5 of 5 runs succeeded, the fastest after 82.00 s , the slowest after 114.00 s ." in text
    captions = [text.find(caption) for caption in (
        "Results", "What differs", "Accuracy by epoch", "Accuracy by time", "Training loss by epoch", "Learning rate",
        "Throughput", "Evaluation time", "Where a step's time goes",
        "Configuration",
    )]  # fmt: skip
    assert captions == sorted(captions)
    assert min(captions) > 0
    assert "Start-up phases" not in text, "of many runs, none has a chart of its own"


def test_the_page_loads_nothing_and_works_with_screen_reader_and_keyboard(tmp_path: Path, runs: list[str]) -> None:
    out = tmp_path / "report.html"
    main(["report", *runs, "--out", str(out)])
    page = _page(out)
    assert not {each.tag for each in page.iter()} & {"script", "link", "img"}
    assert not re.search(r"https?://(?!www.w3.org/)|@import|url\(", out.read_text())
    assert '<html lang="en">' in out.read_text()
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in page.iter("svg"))
    assert all(each.get("tabindex") == "0" and each.get("aria-label") for each in page.iter("div") if each.get("role"))
    assert not [*page.iter("a")], "a link is dead where the page is mailed"


@pytest.mark.usefixtures("undrawn")
def test_the_page_of_one_run_is_in_the_run_folder_and_says_why_a_log_fails(runs: list[str]) -> None:
    folder = Path(runs[0])
    log = folder / "result_0.txt"
    log.write_text("\n".join(line for line in log.read_text().splitlines() if "train_samples" not in line))
    assert main(["report", runs[0]]) == 0
    text = _text(folder / "report.html")
    assert "fails 4.0.0" in text
    assert f"4.0.0: the log fails MLPerf's check; ./run.sh check {folder} explains why." in text


@pytest.mark.usefixtures("undrawn")
def test_foreign_logs_of_all_rounds_stand_side_by_side(tmp_path: Path) -> None:
    events = samples.run_events(epochs=36, batch=3264)
    for name, write in (("result_0", samples.mlp), ("result_1", samples.mll), ("result_2", samples.mllog)):
        (tmp_path / f"{name}.txt").write_text(write(events))
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path), "--out", str(out)]) == 0
    for told in ("3 runs side by side", "Reference convergence: normal: 36 epochs"):
        assert told in _text(out)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "ranks.json", "startup.json", "summary.json", "config.yaml", "verdict.json"]
)
def test_a_damaged_file_removes_only_a_part_of_the_page_and_is_named_beside_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, name: str
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
        assert "Configuration" in _text(folder / "report.html")
    (folder / name).write_bytes(b"\xff\xfe{")
    for options in (["--json"], ["--csv", str(tmp_path / "c.csv")]):
        is_told = f"note: {folder}: damaged files: {name}" in said(main, "report", folder, *options).err
        assert is_told is (name != "verdict.json")  # a file that counts for submissions only


CHROMIUM = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu"]
needs_browser = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("pdftotext")), reason="chromium or pdftotext is not installed"
)


@pytest.mark.ranks
@needs_browser
def test_on_a_phone_nothing_of_the_page_is_beyond_the_edge(tmp_path: Path, runs: list[str]) -> None:
    out = tmp_path / "report.html"
    main(["report", *runs, "--out", str(out)])
    probe = """<iframe id=f src=report.html style="width:390px;height:800px"></iframe><script>
      onload = () => { const d = f.contentDocument; document.title = [d.documentElement.scrollWidth,
      d.querySelectorAll('figure svg').length, getComputedStyle(d.body).fontSize].join(' ') }</script>"""
    (tmp_path / "probe.html").write_text(f"<!doctype html>{probe}")
    done = run_program(
        *CHROMIUM, "--allow-file-access-from-files", "--dump-dom", f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=5000", (tmp_path / "probe.html").as_uri(), timeout=120, check=True,
    )  # fmt: skip
    found = re.search(r"<title>(\d+) (\d+) (\S+)</title>", done.stdout)
    assert found, done.stdout
    assert int(found[1]) <= 390
    assert int(found[2]) >= 12
    assert found[3] == "16px"


@pytest.mark.ranks
@needs_browser
@pytest.mark.parametrize(("runs", "most"), [(1, 2), (20, 3)])
def test_runs_print_on_few_sheets(tmp_path: Path, runs: int, most: int) -> None:
    folders = [samples.run_folder(tmp_path / f"run{number}", number, best=0.98) for number in range(runs)]
    page, paper = tmp_path / "page.html", tmp_path / "page.pdf"
    assert main(["report", *map(str, folders), "--out", str(page)]) == 0
    command = [
        *CHROMIUM, f"--user-data-dir={tmp_path / 'profile'}", "--no-pdf-header-footer", f"--print-to-pdf={paper}",
        page.as_uri(),
    ]  # fmt: skip
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    text = run_program("pdftotext", paper, "-", check=True).stdout
    assert len(text.removesuffix("\f").split("\f")) <= most
    assert "Accuracy by epoch" in text
