"""``./run.sh bench NAME``: answers measured questions, in the modules ``bench_*.py``; `measure` has what they share."""
