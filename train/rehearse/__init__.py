"""Rehearsals: a whole run with real processes and real communication, and waits in place of arithmetic."""
