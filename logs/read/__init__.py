"""Reads MLPerf logs of rounds v0.5 to v4.0, from this program or any submitter."""
