"""Predict a run on a described machine: collectives, one step, a whole run. Pure: imports no framework."""
