"""Units as people write them: what systemd holds is what is edited, and what runs is what was asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.lab.gated import Gated
from tests.lab.hosts import Host, wait_for
from tests.lab.image import COMMAND
from tests.lab.test_systemd_rollout import DROP_IN

pytestmark = pytest.mark.lab
UNIT = "/etc/systemd/system/sglang.service"
FOLDER = "/etc/systemd/system/sglang.service.d"


@contextlib.contextmanager
def files(host: Host, texts: dict[str, bytes]) -> Iterator[None]:
    """The service restarted with these files; with those of before at the end."""
    kept = {path: host.path(path).read_bytes() if host.path(path).exists() else None for path in texts}
    new = [] if host.path(FOLDER).exists() else [FOLDER]

    def put(wanted: dict[str, bytes | None]) -> None:
        for path, data in wanted.items():
            host.path(path).parent.mkdir(parents=True, exist_ok=True)
            if data is None:
                host.path(path).unlink()
            else:
                host.path(path).write_bytes(data)
        host.run("systemctl daemon-reload; systemctl restart sglang.service")

    put(dict(texts))
    wait_for(host.generates, "tokens")
    try:
        yield
    finally:
        put(kept)
        for folder in new:
            host.run(f"rmdir {folder}; systemctl daemon-reload")
        wait_for(host.generates, "tokens")


def environ(host: Host) -> dict[str, str]:
    pid = host.unit()["MainPID"]
    words = host.run(f"tr '\\0' '\\n' < /proc/{pid}/environ").stdout.splitlines()
    return dict(word.split("=", 1) for word in words)


def unit(**lines: str) -> bytes:
    """The lab's unit with other lines."""
    return "\n".join(
        ["[Service]", *(f"{k}={v}" for k, v in ({"ExecStart": COMMAND} | lines).items()), ""]
    ).encode()


@pytest.mark.parametrize(
    "mark", [b"\xef\xbb\xbf", b"# K\xf6ln\n", b"; \\\n"], ids=["bom", "latin-1 (case 34)", "comment"]
)
def test_case_28_and_34_a_drop_in_is_what_systemd_makes_of_its_bytes(deployment: Gated, mark: bytes) -> None:
    drop_in = f"{FOLDER}/10-key.conf"
    text = mark + f"[Service]\nExecStart=\nExecStart={COMMAND} --tag from-the-drop-in\n".encode()
    with files(deployment.host, {drop_in: text}):
        before = deployment.argv()
        assert "from-the-drop-in" in before
        for _ in range(2):  # with our drop-in in place, too
            deployment.rollout().expect(0)
            argv = deployment.argv()
            assert "from-the-drop-in" in argv and deployment.algorithm() == "DDTREE", argv
            deployment.rollback().expect(0)
            assert deployment.argv() == before


def test_case_29_specifiers_globs_and_the_managers_environment_are_systemds(deployment: Gated) -> None:
    text = unit(
        EnvironmentFile="-/etc/llm/%p*.env",
        ExecStart=COMMAND.replace("--port 30000", "--port ${PORT}") + " --tag $FROM_MANAGER --host-name %H",
    )
    host = deployment.host
    host.run("systemctl set-environment 'FROM_MANAGER=a b'")
    secret = b"PORT=30000\nHF_TOKEN=hf_s3cretvalue\n"
    try:
        with files(host, {"/etc/llm/sglang-1.env": secret, UNIT: text}):
            before = deployment.argv()
            assert "30000" in before
            done = deployment.rollout().expect(0)
            assert "hf_s3cretvalue" not in str(done)
            argv = deployment.argv()
            assert deployment.algorithm() == "DDTREE" and "30000" in argv
            assert "PORT" in environ(host) and environ(host)["FROM_MANAGER"] == "a b"
            deployment.rollback().expect(0)
            assert deployment.argv() == before
    finally:
        host.run("systemctl unset-environment FROM_MANAGER; rmdir /etc/llm")


@pytest.mark.parametrize("extra", ["--speculative-algorithm DFLASH", "--speculative-algorithm=DFLASH"])
def test_case_30_a_flag_that_a_variable_sets_again_is_refused_before_anything(
    deployment: Gated, extra: str
) -> None:
    text = unit(Environment=f"'EXTRA={extra}'", ExecStart=COMMAND + " --speculative-algorithm DFLASH $EXTRA")
    with files(deployment.host, {UNIT: text}):
        old = deployment.host.unit()["MainPID"]
        done = deployment.rollout().expect(2)
        assert "$EXTRA" in done.outcome["reason"] and "--speculative-algorithm" in done.outcome["reason"]
        assert deployment.host.unit()["MainPID"] == old


@pytest.mark.parametrize("what", ["command", "variable in a file", "folder", "user"])
def test_a_process_that_is_not_what_its_unit_says_is_refused_with_both_shown(
    deployment: Gated, what: str
) -> None:
    """Edited and reloaded, not restarted: nobody knows what a start would give."""
    host = deployment.host
    env, folder = "/etc/sglang.env", "/srv"
    with files(host, {UNIT: unit(EnvironmentFile=env, WorkingDirectory="/opt"), env: b"A=1\n"}):
        old = host.unit()["MainPID"]
        said = {"command": "--tag new", "variable in a file": "A: ", "folder": folder, "user": "user: "}[what]
        if what == "variable in a file":
            host.path(env).write_text("A=2\n")
        else:
            lines = {
                "command": {"ExecStart": f"{COMMAND} --tag new"},
                "folder": {"WorkingDirectory": folder},
                "user": {"WorkingDirectory": "/opt", "User": "sgl"},
            }[what]
            host.path(UNIT).write_bytes(
                unit(**({"EnvironmentFile": env, "WorkingDirectory": "/opt"} | lines))
            )
            host.run("systemctl daemon-reload")
        done = deployment.rollout().expect(6)
        reason = done.outcome["reason"]
        assert said in reason and f"process {old} has" in reason, done
        assert host.unit()["MainPID"] == old and not host.path(DROP_IN).exists()
