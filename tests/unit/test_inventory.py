"""hosts.yaml: what ships, what is refused and with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_deploy.commands.inputs import load_hosts
from ddtree_deploy.errors import InputError
from ddtree_deploy.inputs import inventory
from ddtree_deploy.onhost.wire.protocol import Launch, Service

REPO = Path(__file__).parents[2]
GOOD = """\
defaults: {user: root, connect_timeout: 3s}
hosts:
  a:
    address: 10.0.0.1
    python: /venv/bin/python3
    service:
      kind: systemd
      unit: sglang.service
      endpoint: http://127.0.0.1:30000
"""


def loaded(tmp_path: Path, text: str) -> inventory.Inventory:
    path = tmp_path / "hosts.yaml"
    path.write_text(text)
    return load_hosts(path)


def refusal(tmp_path: Path, text: str) -> str:
    """What is printed, after the file name and before the state of the host."""
    with pytest.raises(InputError) as caught:
        loaded(tmp_path, text)
    return caught.value.render().removeprefix(f"{tmp_path}/hosts.yaml").removesuffix("; nothing was touched")


def host(lines: str) -> str:
    """A file with one host, `lines` from line 5 on."""
    return "hosts:\n  a:\n    address: 10.0.0.1\n    python: /venv/bin/python3\n" + lines


def service(lines: str, kind: str = "kind: systemd, unit: s.service") -> str:
    """A file whose service begins on line 5, `lines` from line 7 on."""
    head = "".join(f"      {part}\n" for part in kind.split(", "))
    return host(f"    service:\n{head}{lines}")


URL = "      endpoint: http://127.0.0.1:30000\n"
REFUSED = {
    "no hosts": ("hosts: {}\n", ":1: hosts: no hosts are listed"),
    "hosts missing": ("defaults: {}\n", ":1: hosts: missing key 'hosts'"),
    "unknown top key": ("hosts: {}\ngroup: {}\n", ":2: group: unknown key 'group'; did you mean 'groups'?"),
    "host is text": ("hosts:\n  a: 10.0.0.1\n", ":2: hosts.a: expected a mapping with address and python"),
    "host without python": ("hosts:\n  a:\n    address: x\n", ":2: hosts.a.python: missing key 'python'"),
    "bad host name": (
        "hosts:\n  a b: {}\n",
        ":2: hosts.'a b': 'a b' is not a name: letters, digits, `.`, `_`, `-`",
    ),
    "typo": (
        host("    identity: x\n"),
        ":5: hosts.a.identity: unknown key 'identity'; did you mean 'identity_file'?",
    ),
    "typo in defaults": (
        "defaults:\n  usr: root\n" + host(""),
        ":2: defaults.usr: unknown key 'usr'; did you mean 'user'?",
    ),
    "wrong type in defaults": (
        "defaults:\n  port: ssh\n" + host(""),
        ":2: defaults.port: expected a whole number, got 'ssh'",
    ),
    "port too high": (
        host("    port: 70000\n"),
        ":5: hosts.a.port: must be less than or equal to 65535, got 70000 (a number)",
    ),
    "octal port": (
        host("    port: 022\n"),
        ':5: hosts.a.port: YAML reads 022 as the number 18; write 18 or "022"',
    ),
    "user no": (
        host("    user: no\n"),
        ':5: hosts.a.user: expected text, but YAML reads no as a boolean; write "no" in quotes',
    ),
    "user with blank": (host("    user: a b\n"), ":5: hosts.a.user: 'a b' is not a user name"),
    "relative python": (
        "hosts:\n  a: {address: x, python: venv/bin/python}\n",
        ":2: hosts.a.python: 'venv/bin/python' must be an absolute path on the host, or start with ~/",
    ),
    "address with user": (
        "hosts:\n  a: {address: root@x, python: /p}\n",
        ":2: hosts.a.address: 'root@x': give the user as `user:`, not in the address",
    ),
    "address with port": (
        "hosts:\n  a: {address: 'x:22', python: /p}\n",
        ":2: hosts.a.address: 'x:22': give the port as `port:`, not in the address",
    ),
    "IPv6 address with port": (
        "hosts:\n  a: {address: '[::1]:22', python: /p}\n",
        ":2: hosts.a.address: '[::1]:22': give the port as `port:`, not in the address",
    ),
    "name in brackets": (
        "hosts:\n  a: {address: '[x]', python: /p}\n",
        ":2: hosts.a.address: '[x]' is not a host name or an IP address",
    ),
    "empty label": (
        "hosts:\n  a: {address: a..b, python: /p}\n",
        ":2: hosts.a.address: 'a..b' is not a host name or an IP address",
    ),
    "address that is an option": (
        "hosts:\n  a: {address: -oProxyCommand=x, python: /p}\n",
        ":2: hosts.a.address: '-oProxyCommand=x' is not a host name or an IP address",
    ),
    "state folder is the root": (
        host("    state_dir: /\n"),
        ":5: hosts.a.state_dir: '/' must be an absolute path on the host, or start with ~/",
    ),
    "also_stop matches all": (
        host("    also_stop: ['']\n"),
        ":5: hosts.a.also_stop: an empty text would match every process",
    ),
    "timeout": (
        host("    connect_timeout: 10\n"),
        ":5: hosts.a.connect_timeout: a duration needs a unit: 10s, 10m or 10h",
    ),
    "unknown kind": (
        service(URL, "kind: docker"),
        ":6: hosts.a.service.kind: 'docker' is not one of 'systemd', 'supervised', 'adopted'",
    ),
    "systemd without unit": (
        service(URL, "kind: systemd"),
        ":5: hosts.a.service: a systemd service needs `unit:`",
    ),
    "unit without suffix": (
        service(URL, "kind: systemd, unit: sglang"),
        ":7: hosts.a.service.unit: 'sglang' must end in .service",
    ),
    "unit of an adopted one": (
        service(URL, "kind: adopted, unit: s.service"),
        ":7: hosts.a.service.unit: only a systemd service has a unit, this one is adopted",
    ),
    "no endpoint": (service(""), ":5: hosts.a.service.endpoint: missing key 'endpoint'"),
    "endpoint without scheme": (
        service("      endpoint: 127.0.0.1\n"),
        ":8: hosts.a.service.endpoint: '127.0.0.1' is not a URL such as http://127.0.0.1:30000",
    ),
    "endpoint without port": (
        service("      endpoint: http://127.0.0.1\n"),
        ":8: hosts.a.service.endpoint: 'http://127.0.0.1' has no port; write it out, such as http://127.0.0.1:30000",
    ),
    "endpoint with a path": (
        service("      endpoint: http://127.0.0.1:30000/v1\n"),
        ":8: hosts.a.service.endpoint: 'http://127.0.0.1:30000/v1' must be scheme, host and port only, "
        "such as http://127.0.0.1:30000",
    ),
    "endpoint elsewhere": (
        service("      endpoint: http://10.0.0.2:30000\n"),
        ":8: hosts.a.service.endpoint: '10.0.0.2' is neither loopback nor this host's address; "
        "the host itself asks it",
    ),
    "endpoint with a bad port": (
        service("      endpoint: http://127.0.0.1:70000\n"),
        ":8: hosts.a.service.endpoint: 'http://127.0.0.1:70000' is not a URL such as http://127.0.0.1:30000",
    ),
    "key in the file": (
        service(URL + "      api_key: s3cret\n"),
        ":9: hosts.a.service.api_key: expected a mapping, got text that is not shown here",
    ),
    "command and set": (
        service(URL + "      launch: {command: [/p], set: {a: b}}\n"),
        ":9: hosts.a.service.launch: command gives the whole command line; set and unset edit one: "
        "use either",
    ),
    "command is text": (
        service(URL + "      launch: {command: python -m sglang}\n"),
        ":9: hosts.a.service.launch.command: expected a list, got 'python -m sglang'",
    ),
    "relative command": (
        service(URL + "      launch: {command: [python3, -m, sglang]}\n"),
        ":9: hosts.a.service.launch.command: 'python3' must be an absolute path on the host",
    ),
    "dashes": (
        service(URL + "      launch:\n        set: {--port: 1}\n"),
        ":10: hosts.a.service.launch.set.--port: write flags without leading dashes: port",
    ),
    "underscores": (
        service(URL + "      launch:\n        unset: [mem_fraction_static]\n"),
        ":10: hosts.a.service.launch.unset[0]: 'mem_fraction_static' is not a flag; "
        "did you mean 'mem-fraction-static'?",
    ),
    "set and unset": (
        service(URL + "      launch:\n        set: {a: b}\n        unset: [a]\n"),
        ":11: hosts.a.service.launch.unset[0]: 'a' is under set too",
    ),
    "flag off": (
        service(URL + "      launch: {set: {a: off}}\n"),
        ":9: hosts.a.service.launch.set.a: YAML reads off as a boolean; to remove a flag list it under "
        'unset, or write "off" in quotes',
    ),
    "flag on": (
        service(URL + "      launch: {set: {a: on}}\n"),
        ":9: hosts.a.service.launch.set.a: YAML reads on as a boolean; write true for a flag without value, "
        'or "on" in quotes',
    ),
    "env boolean": (
        service(URL + "      launch: {env: {A: yes}}\n"),
        ':9: hosts.a.service.launch.env.A: YAML reads yes as a boolean; write "yes" in quotes',
    ),
    "env name": (
        service(URL + "      launch: {env: {A-B: x}}\n"),
        ":9: hosts.a.service.launch.env.A-B: 'A-B' is not the name of an environment variable",
    ),
    "line break in a value": (
        service(URL + '      launch: {set: {a: "x\\ny"}}\n'),
        ":9: hosts.a.service.launch.set: a value contains a line break",
    ),
    "stalled after the limit": (
        service(URL + "      start: {stalled_after: 1h, limit: 10m}\n"),
        ":9: hosts.a.service.start: stalled_after is longer than limit",
    ),
    "group is a host": (host("") + "groups:\n  a: [a]\n", ":6: groups.a: 'a' is a host already (line 2)"),
    "empty group": (host("") + "groups:\n  g: []\n", ":6: groups.g: the group is empty"),
    "unknown member": (
        host("") + "groups:\n  eval: [a, evl]\n",
        ":6: groups.eval[1]: no host or group is named 'evl'; did you mean 'eval'?",
    ),
    "member twice": (host("") + "groups:\n  g: [a, a]\n", ":6: groups.g[1]: 'a' is listed twice"),
    "circle": (
        host("") + "groups:\n  g: [h]\n  h: [a, i]\n  i: [g]\n",
        ":8: groups.i: groups contain each other: g -> h -> i -> g",
    ),
    "duplicate host": (host("  a: {}\n"), ":5: hosts.a: duplicate key 'a', first given on line 2"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, tmp_path: Path) -> None:
    text, says = REFUSED[name]
    assert refusal(tmp_path, text) == says


def test_the_hosts_that_ship() -> None:
    hosts = load_hosts(REPO / "hosts.yaml").hosts
    assert [(h.name, h.address, h.user, h.python, h.gpus) for h in hosts.values()] == [
        ("ct129", "10.1.230.172", "root", "/root/ml-env/bin/python3", None),
        ("ct200", "10.1.2.200", "root", "/root/venv_sglang211/bin/python3", 8),
        ("sandbox", "127.0.0.1", None, "~/venv/bin/python3", None),
    ]
    sandbox = hosts["sandbox"]
    assert sandbox.identity_file == REPO / ".sandbox/keys/id"
    assert sandbox.known_hosts == REPO / ".sandbox/known_hosts"
    assert sandbox.service is not None
    assert sandbox.service.launch == Launch(
        set={"speculative-algorithm": "DDTREE", "speculative-ddtree-budget": "16"}
    )


def test_defaults_are_merged_and_the_host_wins(tmp_path: Path) -> None:
    text = (
        "defaults: {user: root, connect_timeout: 3s, service: {stop: {drain: 5s, kill: true}}}\n"
        + service(URL + "      stop: {drain: 7s}\n")
        + "  b: {address: x, python: /p, user: ada}\n"
    )
    hosts = loaded(tmp_path, text).hosts
    a, b = hosts["a"], hosts["b"]
    assert (a.user, b.user, a.connect_timeout_s) == ("root", "ada", 3.0)
    assert a.service is not None
    assert (a.service.drain_s, a.service.stop_kill) == (7.0, True)
    assert b.service is None  # defaults say how services are run, not that there is one


def test_a_service_crosses_the_wire_whole(tmp_path: Path) -> None:
    text = service(
        URL
        + "      launch:\n"
        + "        set: {steps: 4, fraction: 0.850, big: 1_000, flag: true, other: , word: 'true'}\n"
        + "        env: {NCCL_DEBUG: WARN, N: 2}\n"
        + "      start: {stalled_after: 1m, limit: 2m}\n"
        + "      user: sgl\n"
    )
    assert loaded(tmp_path, text).hosts["a"].service == Service(
        name="s",
        kind="systemd",
        endpoint="http://127.0.0.1:30000",
        unit="s.service",
        launch=Launch(
            # numbers as they are written, not as YAML understands them
            set={
                "steps": "4",
                "fraction": "0.850",
                "big": "1_000",
                "flag": None,
                "other": None,
                "word": "true",
            },
            env={"NCCL_DEBUG": "WARN", "N": "2"},
        ),
        start_stalled_after_s=60.0,
        start_limit_s=120.0,
        user="sgl",
    )


def test_names_of_services_without_a_unit_differ_by_port(tmp_path: Path) -> None:
    made = loaded(tmp_path, service(URL, "kind: adopted")).hosts["a"].service
    assert made is not None
    assert made.name == "sglang-30000"


@pytest.mark.parametrize(
    ("address", "endpoint"),
    [
        ("[fd00::1]", "[fd00:0:0::1]"),
        ("FD00::A", "[fd00::a]"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "[::FFFF:10.0.0.1]"),
        ("gpu.lab.", "GPU.lab"),
        ("gpu.lab", "gpu.lab."),
    ],
)
def test_case_48_an_address_and_an_endpoint_may_differ_in_form(
    tmp_path: Path, address: str, endpoint: str
) -> None:
    text = service(f"      endpoint: 'http://{endpoint}:30000'\n").replace("10.0.0.1\n", f"'{address}'\n", 1)
    made = loaded(tmp_path, text).hosts["a"]
    assert made.address == address.strip("[]") and made.service is not None


def test_endpoints_that_are_the_host_itself(tmp_path: Path) -> None:
    for url in (
        "https://10.0.0.1:443",
        "http://localhost:1",
        "http://[::1]:30000",
        "http://127.0.0.2:30000/",
    ):
        made = loaded(tmp_path, service(f"      endpoint: '{url}'\n")).hosts["a"].service
        assert made is not None
        assert made.endpoint == url.rstrip("/")


def test_targets_are_hosts_or_groups_each_host_once(tmp_path: Path) -> None:
    text = (
        "hosts:\n"
        + "".join(f"  {name}: {{address: x, python: /p}}\n" for name in "abc")
        + "groups:\n  two: [b, a]\n  all: [c, two, a]\n"
    )
    made = loaded(tmp_path, text)
    assert [h.name for h in made.resolve("b")] == ["b"]
    assert [h.name for h in made.resolve("all")] == ["c", "b", "a"]
    with pytest.raises(InputError) as caught:
        made.resolve("tow")
    assert caught.value.render() == (
        f"{tmp_path}/hosts.yaml: no host or group is named 'tow'; did you mean 'two'? "
        "(hosts: a, b, c; groups: two, all); nothing was touched"
    )
    with pytest.raises(InputError, match=r"no host or group is named 'nosuch' \(hosts: a, b, c; groups"):
        made.resolve("nosuch")


def test_the_api_key_comes_from_the_environment(tmp_path: Path) -> None:
    made = loaded(tmp_path, service(URL + "      api_key: {env: SGL_KEY}\n")).hosts["a"]
    assert made.secrets({"SGL_KEY": "s3cret"}) == {"api_key": "s3cret"}
    assert "s3cret" not in repr(made)
    with pytest.raises(InputError) as caught:
        made.secrets({})
    assert caught.value.render() == (
        f"{tmp_path}/hosts.yaml:2: hosts.a.service.api_key: the environment variable SGL_KEY is not set; "
        "the API key is taken from it; nothing was touched; next: export SGL_KEY=..."
    )
    assert loaded(tmp_path, GOOD).hosts["a"].secrets({}) == {}


def test_relative_paths_are_relative_to_the_file_not_to_where_we_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    loaded(tmp_path / "sub", host("    identity_file: keys/id\n    known_hosts: ~/kh\n"))
    monkeypatch.chdir(tmp_path)
    made = load_hosts(Path("sub/hosts.yaml")).hosts["a"]
    assert made.identity_file == tmp_path.resolve() / "sub/keys/id"
    assert made.known_hosts == Path("~/kh").expanduser()
