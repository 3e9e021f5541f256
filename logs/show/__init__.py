"""Shows runs to people: report pages, image files, progress in the terminal."""

import logging

# Where the home folder cannot be written, as in many containers, matplotlib keeps its cache elsewhere and warns twice.
logging.getLogger("matplotlib").setLevel(logging.ERROR)
