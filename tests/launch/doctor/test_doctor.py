"""The doctor's real ranks report the truth about this machine; a problem is one line with a remedy, and status 1."""

import pytest

from launch.doctor.__main__ import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cluste", "laptop"], "did you mean '--cluster'?"),
        (["--recipe", "digit"], "did you mean 'digits'?"),
        (["--step"], "name one with --recipe"),
        (["--recipe", "digits", "--set", "batch.global_size=7"], "batch.global_size"),
        (["--set", "cluster.paths.runs=/proc/none"], "/proc/none: No such file or directory; set cluster.paths.runs"),
    ],
)
def test_wrong_arguments_are_one_line_and_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", *words]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.startswith("error: ")
    assert told.count("\n") == 1
