"""``./run.sh sweep``: studies, from the runs of their cells to tables, plots and pages."""
