"""Carrying a plan out on a host over SSH: the two execs, following the run, and what is remembered of it."""
