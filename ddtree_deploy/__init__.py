"""Staged, gated, self-undoing rollouts of DDTree into SGLang on remote hosts."""
