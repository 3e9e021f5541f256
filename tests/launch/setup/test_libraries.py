"""The links to NVIDIA's libraries, and the check of an image for libraries that are missing."""

import shutil
import subprocess
from pathlib import Path

import pytest

from configs.load import ROOT
from launch.setup.horovod import link_nvidia_libraries
from tests.programs import run_program


def _compile(library: Path, *linked: Path) -> Path:
    library.parent.mkdir(parents=True, exist_ok=True)
    words = ["g++", "-shared", "-Wl,--no-as-needed,-rpath,$ORIGIN", f"-Wl,-soname,{library.name}"]
    subprocess.run([*words, *map(str, linked), "-o", str(library)], check=True)
    return library


@pytest.mark.medium
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed here")
def test_what_an_image_lacks_is_named_but_for_the_drivers_own(tmp_path: Path) -> None:
    packages = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    needed = _compile(packages / "nvidia" / "fft" / "lib" / "libneeded.so.1")
    driver, absent = _compile(tmp_path / "libcuda.so.1"), _compile(tmp_path / "libabsent.so.3")
    _compile(packages / "mxnet" / "libmxnet.so", needed, driver)
    _compile(packages / "horovod" / "mxnet" / "mpi_lib.so", needed, absent)
    command = [str(ROOT / "launch" / "setup" / "image.sh"), "check"]
    lacking = []
    for mend in (lambda: link_nvidia_libraries(packages), lambda: absent.rename(packages / "mxnet" / absent.name)):
        done = run_program(*command, cwd=tmp_path)
        assert done.returncode == 1
        lacking.append([line.split()[0] for line in done.stdout.splitlines()])
        assert mend()
    assert lacking == [["libneeded.so.1", "libneeded.so.1", "libabsent.so.3"], ["libabsent.so.3"]]
    subprocess.run(command, cwd=tmp_path, check=True)


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
