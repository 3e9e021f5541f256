"""``./run.sh bench NAME``: answers measured questions, one in each ``bench_*.py``; `measure` has what they share."""
