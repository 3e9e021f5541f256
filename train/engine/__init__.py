"""Engines: the frameworks that compute. `train.engine.protocol` says what a run asks of one.

Each framework has one folder here. Nothing else in `train` imports a framework, save the communicators, which sum its
arrays (`train.comm`), and benches that measure it.
"""
