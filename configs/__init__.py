"""Typed descriptions of a run: the recipe (the maths) and the cluster (the place). Imports nothing of ours."""
