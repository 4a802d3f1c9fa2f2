"""Showing a run: live on a terminal, plain lines in a pipe, JSON lines for programs."""

from __future__ import annotations

import os
import sys

from ddtree_deploy.console.view import JsonView, PlainView
from ddtree_deploy.running.view import Steady, View

__all__ = ["JsonView", "PlainView", "View", "choose"]


def choose(json_lines: bool) -> View:
    """The view for this stdout, whose errors end nothing."""
    return Steady(_chosen(json_lines))


def _chosen(json_lines: bool) -> View:
    if json_lines:
        return JsonView(sys.stdout)
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        from rich.console import Console

        from ddtree_deploy.console.live import LiveView

        return LiveView(Console(highlight=False, markup=False, emoji=False))
    return PlainView(sys.stdout)
