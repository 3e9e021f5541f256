"""./run.sh plan: everything a run would do, without doing it."""
