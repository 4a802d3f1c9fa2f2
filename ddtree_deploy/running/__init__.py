"""Carrying a plan out on a host over SSH: the exec, following the run, and what is remembered of it."""
