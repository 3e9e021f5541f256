"""Everything that a run writes, and what the official checker says of it. Imports `configs` and nothing else of ours.

Three channels, never mixed: MLPerf events (`logs.mlperf`, rank 0), metrics as JSON lines (`logs.metrics`, rank 0), and
the human log (the standard library's `logging`, which needs nothing from here).
"""
