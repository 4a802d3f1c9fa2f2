"""Will a future server command parse?  ``parse_argv.py -- ARGUMENTS``, as after ``-m sglang.launch_server``.

Run by the host's Python with the staged files first on PYTHONPATH.  Loads plugins as SGLang's launcher does,
parses, and applies the DDTREE checks that need neither a model nor a device.  Exit status 0, or 1 with the
reason as the last line of stderr.
"""

import contextlib
import io
import sys
import traceback


def parse(argv):
    """The reason why ``argv`` is refused, or None."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    usage = io.StringIO()
    try:
        with contextlib.redirect_stderr(usage):  # argparse prints its whole usage before the error
            server_args = prepare_server_args(argv)
    except SystemExit as stop:
        lines = usage.getvalue().strip().splitlines()
        return (
            None if stop.code in (0, None) else lines[-1] if lines else f"the parser exited with {stop.code}"
        )
    except (ValueError, OSError) as error:
        return str(error)

    name = server_args.speculative_algorithm
    try:
        algorithm = SpeculativeAlgorithm.from_string(name)
    except ValueError as error:
        return f"{error} (is the plugin loaded? SGLANG_PLUGINS may filter it)"
    is_ddtree = getattr(algorithm, "is_ddtree", None)
    if is_ddtree is not None and is_ddtree():
        from sglang_ddtree.server_checks import check_server_args
        from sglang_ddtree.versions import UnsupportedSGLangError, check_sglang_version

        try:
            check_sglang_version()
            check_server_args(server_args, resolved=False)
        except (ValueError, UnsupportedSGLangError) as error:
            return str(error)
    return None


def main():
    argv = sys.argv[1:]
    if argv[:1] != ["--"]:
        print("usage: parse_argv.py -- ARGUMENTS OF sglang.launch_server", file=sys.stderr)
        return 2
    try:
        reason = parse(argv[1:])
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
    if reason is None:
        print("parse_argv_ok", flush=True)
        return 0
    print(f"parse_argv: {' '.join(reason.split())}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
