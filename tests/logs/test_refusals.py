"""What ``check``, ``report``, ``package`` and ``watch`` refuse: one line that says what was given and what to do."""

import re
from pathlib import Path

import pytest

from logs.__main__ import main
from tests.logs import samples
from tests.programs import Said

FIVE = ["package", *(f"run{seed}" for seed in range(5)), "--org", "T"]
FIELDS = [
    "--field", "host_processors_per_node=1",
    *(word for name in (
        "host_processor_core_count", "host_processor_frequency", "host_processor_caches",
        "host_processor_interconnect", "host_storage_type", "host_storage_capacity", "host_networking",
        "host_networking_topology", "host_memory_configuration", "cooling",
    ) for word in ("--field", f"{name}=")),
]  # fmt: skip
"""What the runs have not recorded."""


@pytest.mark.medium
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "got no verb, allowed: check, report, package, watch"),
        (["check", "nowhere"], "nowhere: is no file or folder; give a run folder or a log"),
        (["check", "empty"], "empty: no log for any ruleset in it; give a run folder or a log"),
        (["check", "--ruleset", "4.0", "log.txt"], "ruleset: got '4.0', allowed: 0.6.0, .*; did you mean"),
        (["check", "--ruleset", "x", "log.txt"], "ruleset: got 'x', allowed: [^;]*$"),
        (["report", "empty"], r"empty: contains neither result_\*.txt nor config.yaml; give a run folder"),
        (["report", "words.txt"], "words.txt: no line of an MLPerf log"),
        (["report", "log.gz"], "log.gz: no line of an MLPerf log .:::ML. is in it; give the log"),
        (["report", "words.txt", "empty", "--json"], "words.txt: no line of an MLPerf log"),
        (["report", "log.txt", "none.txt"], "none.txt: is no file or folder; give run folders or logs"),
        (["report", "log.txt", "log.txt", "--plot", "x.svg"], "log.txt: no two evaluations and no two losses"),
        (["report", "run0", "--plot", "x.jpg"], r".*--plot: got 'x.jpg', allowed: a name that ends with .svg or .png"),
        (["report", "run0", "--out", "x.png"], r".*--out: got 'x.png', allowed: a name that ends with .html or .htm"),
        (["report", "run0", "--csv", "x.html"], r".*--csv: got 'x.html', allowed: a name that ends with .csv"),
        *((["report", "log.txt", option, "file/x"], "file/x: cannot be written: (File exists|Not a directory); check")
          for option in ("--out", "--csv")),
        (["watch", "empty"], "empty: contains no config.yaml; give a run folder"),
        (["watch", "none"], "none: contains no config.yaml; give a run folder"),
        *((["watch", "run0", f"--every={pause}"], f".*got {pause}, allowed: 0.1 to 3600 seconds")
          for pause in ("0.09", "3600.1", "nan", "-2", "often")),
        (["package", "run0", "--org", "T"], "package: got 1 different runs, allowed: 5; give 5 run folders"),
        (["package", *["run0"] * 5, "--org", "T"], "package: got 1 different runs, allowed: 5; give 5 run folders"),
        (FIVE[:-2], "the following arguments are required: --org"),
        ([*FIVE[:-1], "../T"], "--org: got '../T', allowed: letters, digits, dots and dashes"),
        (["package", "run0", "run1", "run2", "run3", "none", "--org", "T"], "none/result_0.txt: no such log; give"),
        (FIVE, "system description: 11 of 33 fields are not recorded by a run: host_pro.*; give each with --field"),
        ([*FIVE, "--field", "colling=air"], "system description: got field 'colling', which does not exist; .*cooling"),
        ([*FIVE, "--field", "cooling"], "--field: got 'cooling', allowed: NAME=VALUE; give, for example"),
        ([*FIVE, *FIELDS, "--field", "host_processors_per_node="], ".*per_node: got '', allowed: a whole number; give"),
        ([*FIVE, *FIELDS, "--field", "system_name=.."], "system_name: got '..', allowed: a name that .*; give --field"),
        ([*FIVE, *FIELDS, "--out", "file/x"], r"file/x/T: cannot be written: (File exists|Not a directory); check"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in {*arguments} & {f"run{seed}" for seed in range(5)}:
        samples.run_folder(Path(name), int(name[-1]), best=0.98)
    Path("log.txt").write_text(samples.mllog(samples.run_events(epochs=1)[:3]))
    Path("words.txt").write_text("root:x:0:0\n")
    Path("log.gz").write_bytes(b"\x1f\x8b\x08")
    Path("file").touch()
    Path("empty").mkdir()
    before = sorted(tmp_path.iterdir())
    in_out = ["--out", "out"] if arguments[:1] == ["package"] and "--out" not in arguments else []
    error = said(main, *arguments, *in_out, status=2).err.splitlines()[-1]
    assert re.match(f"(.*: )?error: {words}", error), error
    assert sorted(tmp_path.iterdir()) == before
