"""``./run.sh bench NAME``: measured questions, one file each, on one harness (`measure`)."""
