"""A host on this machine: an SSH server, a venv with the real SGLang on CPU torch, and its service."""
