"""Everything that a run writes, read back, judged by the official tools, and shown. Imports `configs` alone of ours.

Three channels, never mixed: MLPerf events (`logs.mlperf`, rank 0), metrics as JSON lines (`logs.metrics`, rank 0), and
the human log (the standard library's `logging`, which needs nothing from here).
"""
