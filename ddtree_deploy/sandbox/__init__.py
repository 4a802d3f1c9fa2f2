"""A host on this machine: an SSH server, a venv with the real SGLang on CPU torch, and its service."""

from ddtree_deploy.sandbox.host import Sandbox, down, look, status, up

__all__ = ["Sandbox", "down", "look", "status", "up"]
