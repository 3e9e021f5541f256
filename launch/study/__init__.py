"""``./run.sh sweep``: the runs of a study."""
