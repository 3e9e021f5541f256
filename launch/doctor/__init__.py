"""``./run.sh doctor``: checks of a machine or a cluster before a run."""
