"""The simulator: predicts the time of collectives, of a step and of a whole run on a described machine.

Imports no framework.
"""
