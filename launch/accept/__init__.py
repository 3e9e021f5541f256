"""``./run.sh accept``: the verdict on a machine, against what it should do."""
