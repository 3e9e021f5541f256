"""Measuring a run while it trains: speed, waiting, the ranks' times, chance level."""
