"""Shows runs to people: report pages, image files, progress in the terminal."""

import logging
import os
from pathlib import Path

# Where the home folder cannot be written, as in many containers, matplotlib keeps its cache elsewhere and warns twice.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

# Jupyter sets a way to draw windows that only its own Python has. Without it, matplotlib cannot be imported.
os.environ.pop("MPLBACKEND", None)

try:
    Path.home()
except RuntimeError:
    # A user without a name and without HOME, of whom matplotlib would ask for the home folder; with a place that cannot
    # be a folder, it makes a temporary one and removes it at the end.
    os.environ.setdefault("MPLCONFIGDIR", os.devnull)
