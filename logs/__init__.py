"""The files that a run writes: writing them, reading them back, judging them with the official tools, showing them.

This package imports `configs` and none of our other packages. A run writes to three channels that are never mixed:
MLPerf events (`logs.mlperf`, rank 0 only), metrics as JSON lines (`logs.metrics`, rank 0 only), and the log for people
(the standard library's `logging`, which needs nothing from here).
"""
