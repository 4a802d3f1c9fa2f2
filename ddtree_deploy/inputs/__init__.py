"""What the user writes: hosts.yaml, playbooks, payload. Loaded strictly; errors have file, line and field."""
