"""Fitting the simulator's constants to measured systems, and measuring how far off the predictions are."""
