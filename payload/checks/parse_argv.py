"""Will a future server command parse?  ``parse_argv.py -- COMMAND``: all of it, or its arguments.

Run by the host's Python with the staged files first on PYTHONPATH.  Loads plugins as SGLang's launcher does,
parses, and applies the DDTREE checks that need neither a model nor a device.  Exit status 0, or 1 with the
reason as the last line of stderr.
"""

import contextlib
import io
import sys
import traceback


def server_arguments(command):
    """What SGLang's parser gets of ``command``: ``python -m sglang.launch_server ...``, ``sglang serve ...``,
    ``python .../sglang/launch_server.py ...``, or arguments alone.  None when it starts no SGLang server."""
    if not command or command[0].startswith("--"):
        return command
    for at, word in enumerate(command):
        name = word.rsplit("/", 1)[-1]
        if (word == "sglang.launch_server" and command[at - 1] == "-m") or name == "launch_server.py":
            return command[at + 1 :]
        if name in ("sglang", "sglang.cli.main") and command[at + 1 : at + 2] == ["serve"]:
            return command[at + 2 :]
    return None


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
        from sglang_ddtree.release import is_v1
        from sglang_ddtree.server_checks import check_server_args
        from sglang_ddtree.versions import UnsupportedSGLangError, check_sglang_version

        try:
            check_sglang_version()
            if not is_v1():  # there, parsing has resolved and checked them
                check_server_args(server_args, resolved=False)
        except (ValueError, UnsupportedSGLangError) as error:
            return str(error)
    return None


def main():
    argv = sys.argv[1:]
    if argv[:1] != ["--"]:
        print("usage: parse_argv.py -- SERVER COMMAND", file=sys.stderr)
        return 2
    arguments = server_arguments(argv[1:])
    try:
        reason = (
            parse(arguments) if arguments is not None else f"starts no SGLang server: {' '.join(argv[1:])}"
        )
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
