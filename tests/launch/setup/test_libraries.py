"""The check of linked libraries, on this environment and on libraries that the test compiles."""

import shutil
import subprocess
from pathlib import Path

import pytest

from launch.setup.layout import CURRENT
from launch.setup.libraries import link_nvidia_libraries, main, missing_libraries


def _compile(library: Path, *linked: Path) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed here")
    library.parent.mkdir(parents=True, exist_ok=True)
    words = ["g++", "-shared", "-Wl,--no-as-needed,-rpath,$ORIGIN", f"-Wl,-soname,{library.name}"]
    subprocess.run([*words, *map(str, linked), "-o", str(library)], check=True)
    return library


def test_this_environment_finds_all_that_it_links() -> None:
    assert missing_libraries(CURRENT.site_packages) == []


@pytest.mark.medium
def test_what_is_not_found_is_named_but_for_the_drivers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["libraries", str(tmp_path)])
    assert (main(), capsys.readouterr().out) == (0, "every library is found\n")
    needed = _compile(tmp_path / "nvidia" / "fft" / "lib" / "libneeded.so.1")
    driver = _compile(tmp_path / "driver" / "libcuda.so.1")
    absent = _compile(tmp_path / "absent" / "libabsent.so.3")
    horovod = tmp_path / "horovod" / "mxnet" / "mpi_lib.so"
    _compile(tmp_path / "mxnet" / "libmxnet.so", needed, driver)
    _compile(horovod, needed, absent)
    _compile(horovod.with_name("mpi_lib_v2.so"), needed)
    assert missing_libraries(tmp_path) == [
        "libmxnet.so: libneeded.so.1",
        "mpi_lib.so: libabsent.so.3",
        "mpi_lib.so: libneeded.so.1",
        "mpi_lib_v2.so: libneeded.so.1",
    ]
    assert link_nvidia_libraries(tmp_path)
    assert (main(), capsys.readouterr().out) == (1, "not found: mpi_lib.so: libabsent.so.3\n")


def test_links_to_nvidias_libraries_are_made_anew_and_move_with_the_environment(tmp_path: Path) -> None:
    packages = tmp_path / "building"
    (packages / "mxnet").mkdir(parents=True)
    assert not link_nvidia_libraries(packages)
    library = packages / "nvidia" / "fft" / "lib" / "libfft.so.10"
    library.parent.mkdir(parents=True)
    library.touch()
    (packages / "mxnet" / library.name).symlink_to("/gone")
    for _ in range(2):
        assert link_nvidia_libraries(packages)
    assert (packages.rename(tmp_path / "final") / "mxnet" / library.name).is_file()
