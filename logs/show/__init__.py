"""Showing runs to people: report pages, plots, the live terminal."""
