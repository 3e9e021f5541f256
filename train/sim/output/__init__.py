"""The text, the rows and the trace file that ``./run.sh simulate`` writes."""
