"""Judges logs and submissions with MLPerf's official tools."""
