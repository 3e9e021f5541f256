"""Judging logs and submissions by the rules, with the official tools."""
