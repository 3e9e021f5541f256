"""``./run.sh plan``: everything that a run would do, without doing it."""
