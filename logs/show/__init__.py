"""Shows runs to people: report pages, image files, progress in the terminal."""

import logging
import os
from pathlib import Path

# Where the home folder cannot be written, as in many containers, matplotlib keeps its cache elsewhere and warns twice.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

os.environ.pop("MPLBACKEND", None)  # Jupyter names one that only its own Python has; matplotlib's import would fail.

try:
    Path.home()
except RuntimeError:
    # A user without a name and without HOME, of whom matplotlib would ask for the home folder; with a place that cannot
    # be a folder, it makes a temporary one and removes it at the end.
    os.environ.setdefault("MPLCONFIGDIR", os.devnull)
