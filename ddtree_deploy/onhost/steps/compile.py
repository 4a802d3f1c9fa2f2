"""Compile all staged sources together with the venv's own Python; none runs, none is written to the venv."""

from __future__ import annotations

import json
import shutil

from ..context import Context, StepFailed, StepSkipped
from ..staging import stage

# Runs on the host's interpreter. Reads [[staged, name, compiled], ...] and prints one JSON line of errors.
SCRIPT = """
import json, py_compile, sys
errors = []
for staged, name, compiled in json.load(open(sys.argv[1])):
    try:
        py_compile.compile(staged, cfile=compiled, dfile=name, doraise=True)
    except py_compile.PyCompileError as e:
        v = e.exc_value
        line = getattr(v, "lineno", None) or 0
        text = (getattr(v, "text", None) or "").strip()
        errors.append([name, line, e.exc_type_name + ": " + str(getattr(v, "msg", v)), text])
    except (OSError, ValueError) as e:
        errors.append([name, 0, type(e).__name__ + ": " + str(e), ""])
print(json.dumps(errors))
"""


def do(ctx: Context) -> str:
    sources = [w for w in stage.wanted(ctx) if w.kind == "file" and w.path.endswith(".py")]
    if not sources:
        raise StepSkipped("no Python source is staged")
    root = stage.root(ctx)
    cache = root / "pyc"
    cache.mkdir(mode=0o755)
    user = stage.run_as(ctx)
    if user:
        shutil.chown(cache, user)
    jobs = [[w.staged, w.ref, str(cache / f"{n}.pyc")] for n, w in enumerate(sources)]
    (root / "compile.json").write_text(json.dumps(jobs))
    (root / "compile.json").chmod(0o644)
    argv = ["-S", "-B", "-c", SCRIPT, str(root / "compile.json")]
    errors = stage.ask_python(ctx, argv, "ended with {rc}")
    shutil.rmtree(cache)
    if errors:
        shown = [
            f"{name}:{line}: {what}" + (f": {text[:80]}" if text else "") for name, line, what, text in errors
        ]
        more = f" (and {len(shown) - 3} more)" if len(shown) > 3 else ""
        raise StepFailed("; ".join(shown[:3]) + more)
    ctx.result(files=len(sources))
    return f"{len(sources)} files compiled by {ctx.plan.python}"
