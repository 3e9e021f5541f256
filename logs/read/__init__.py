"""Reading MLPerf logs, from v0.5 to v4.0, this program's or anybody's."""
