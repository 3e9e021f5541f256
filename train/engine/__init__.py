"""Engines: what computes. Each framework has one folder here and is imported nowhere else in train."""
