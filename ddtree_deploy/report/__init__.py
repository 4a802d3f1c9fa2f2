"""Evidence of a run: the bundle that is read from the record, and what is made from it."""
