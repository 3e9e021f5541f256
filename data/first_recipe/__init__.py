"""The first recipe for a packed data set, which ``./run.sh prepare`` writes beside the images."""
