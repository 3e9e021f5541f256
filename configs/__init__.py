"""Typed descriptions of a run: the recipe (its mathematics) and the cluster (its machines). Imports nothing of ours."""
