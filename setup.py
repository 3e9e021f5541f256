"""Refuses ``pip install .``: a wheel of this program would be empty, since it runs in its own folder."""

import sys

if "bdist_wheel" in sys.argv or "install" in sys.argv:
    sys.exit("error: this program is not installed by pip; ./run.sh sets it up in its own folder, and runs it there")

from setuptools import setup

setup()
