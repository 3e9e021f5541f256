"""``./run.sh submit``: job scripts for every scheduler, and the commands that a job script calls around its ranks."""
