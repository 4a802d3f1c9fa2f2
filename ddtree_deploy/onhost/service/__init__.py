"""The service on the host, of whatever kind: one interface for the steps (`base`), and its kinds."""
