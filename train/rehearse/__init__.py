"""Rehearsals: a whole run with real processes and real communication, in which ranks sleep instead of computing."""
