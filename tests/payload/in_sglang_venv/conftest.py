"""These tests run under the SGLang venv's Python: see ``tests/payload/test_in_sglang_venv.py``."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(REPOSITORY / "payload"), str(Path(__file__).parent)]
