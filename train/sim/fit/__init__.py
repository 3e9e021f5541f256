"""Fitting the simulator to measured systems, and judging the fit."""
