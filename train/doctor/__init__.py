"""The ranks that ``./run.sh doctor`` starts to examine a machine."""
