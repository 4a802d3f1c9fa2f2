"""Payload tests. ``in_sglang_venv`` needs torch, so the controller's pytest leaves it to a subprocess."""

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["in_sglang_venv/*"]
