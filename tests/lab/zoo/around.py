"""Traits of what is around the service: dependents, sockets, proxies, other servers, watchdogs."""

from __future__ import annotations

from tests.lab.fake_venv import VENV
from tests.lab.zoo.draft import UNITS, Draft, copy_venv

SLEEPS = "\n[Service]\nExecStart=/bin/sleep infinity\n"
# A forwarder of TCP, as a proxy in front of a server is one.
FORWARD = """import socket, sys, threading
a, b = int(sys.argv[1]), int(sys.argv[2])
def pump(x, y):
    try:
        while data := x.recv(65536):
            y.sendall(data)
    except OSError:
        pass
    for s in (x, y):
        try:
            s.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
def serve(client):
    try:
        there = socket.create_connection(("127.0.0.1", b))
    except OSError:
        client.close()
        return
    threading.Thread(target=pump, args=(there, client), daemon=True).start()
    pump(client, there)
s = socket.create_server(("127.0.0.1", a))
while True:
    threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
"""


def depends(draft: Draft, kind: str, name: str = "edge.service", on: str = "", *, after: bool = True) -> None:
    """A unit that a stop of the service (or of `on`) takes along."""
    on = on or draft.unit
    order = f"After={on}\n" if after else ""
    draft.other_unit(name, f"[Unit]\n{kind}={on}\n{order}{SLEEPS}")
    draft.dependents.add(name)


def requires(draft: Draft) -> None:
    depends(draft, "Requires")


def binds_to(draft: Draft) -> None:
    depends(draft, "BindsTo")


def part_of(draft: Draft) -> None:
    depends(draft, "PartOf")


def requisite(draft: Draft) -> None:
    depends(draft, "Requisite")


def stop_propagated(draft: Draft) -> None:
    depends(draft, "StopPropagatedFrom")


def chain(draft: Draft) -> None:
    """A gateway needs the server, a frontend the gateway; a tracer goes with the gateway; one sleeps."""
    depends(draft, "Requires", "gateway.service")
    depends(draft, "BindsTo", "frontend.service", "gateway.service")
    depends(draft, "PartOf", "tracer.service", "gateway.service", after=False)
    draft.other_unit("standby.service", f"[Unit]\nRequires={draft.unit}\n{SLEEPS}", "")  # not running


def dependent_template(draft: Draft) -> None:
    """Instances of a template need the service."""
    draft.file(f"{UNITS}/worker@.service", f"[Unit]\nRequires={draft.unit}\nAfter={draft.unit}\n{SLEEPS}")
    for name in ("worker@1.service", "worker@2.service"):
        draft.link(f"{UNITS}/multi-user.target.wants/{name}", f"{UNITS}/worker@.service")
        draft.dependents.add(name)


def dependent_by_drop_in(draft: Draft) -> None:
    draft.other_unit("edge.service", SLEEPS)
    draft.file(
        f"{UNITS}/edge.service.d/10-needs.conf", f"[Unit]\nRequires={draft.unit}\nAfter={draft.unit}\n"
    )
    draft.dependents.add("edge.service")


def dependent_target(draft: Draft) -> None:
    """A target that needs the service and others; it is what people start and stop."""
    text = f"[Unit]\nRequires={draft.unit}\nWants=metrics.service\nAfter={draft.unit}\n"
    draft.other_unit("inference.target", text)
    draft.other_unit("metrics.service", f"[Unit]\nPartOf=inference.target\n{SLEEPS}", "")
    draft.dependents |= {"inference.target", "metrics.service"}


def dependent_with_port(draft: Draft) -> None:
    """A gateway with a port of its own: it must listen again afterwards."""
    draft.file("/opt/gateway/forward.py", FORWARD)
    needs = f"[Unit]\nBindsTo={draft.unit}\nAfter={draft.unit}\n"
    draft.other_unit(
        "gateway.service",
        f"{needs}[Service]\nExecStart=/usr/bin/python3 /opt/gateway/forward.py 8080 30000\n",
    )
    draft.dependents.add("gateway.service")


def upheld(draft: Draft) -> None:
    """Upholds=: systemd starts it again at once, whatever stopped it."""
    draft.other_unit("keeper.service", f"[Unit]\nUpholds={draft.unit}\n{SLEEPS}")
    draft.dependents.add("keeper.service")
    draft.refused.append("keeper.service|Upholds")


def conflicts(draft: Draft) -> None:
    """Another server that may not run at the same time, and does not."""
    draft.unit_lines += ["Conflicts=training.service"]
    draft.other_unit("training.service", SLEEPS, "")


def wants_helper(draft: Draft) -> None:
    """The service wants a helper that lives on its own."""
    draft.unit_lines += ["Wants=helper.service"]
    draft.other_unit("helper.service", SLEEPS, "")


def helper_off(draft: Draft) -> None:
    """... and one that somebody has stopped; a start of the service may start it again."""
    wants_helper(draft)
    draft.dependents.add("helper.service")


def helper_when_needed(draft: Draft) -> None:
    """A helper that ends when nobody needs it: it goes down with our stop, and must be back."""
    draft.unit_lines += ["Requires=helper.service", "After=helper.service"]
    draft.other_unit("helper.service", f"[Unit]\nStopWhenUnneeded=yes\n{SLEEPS}", "")
    draft.dependents.add("helper.service")


def socket_unit(draft: Draft) -> None:
    """A socket that wakes the service; it must listen again afterwards."""
    text = "[Socket]\nListenStream=127.0.0.1:30900\n\n[Install]\nWantedBy=sockets.target\n"
    name = draft.unit.removesuffix(".service") + ".socket"
    draft.other_unit(name, text, "sockets.target")
    draft.dependents.add(name)


def path_unit(draft: Draft) -> None:
    """A path that starts the service; it is quiet. It must not start it in the middle, and is back after."""
    draft.other_unit("sglang.path", "[Path]\nPathExists=/srv/start-sglang\n", "paths.target")
    draft.dependents.add("sglang.path")


# Neighbours


def proxy_is_endpoint(draft: Draft) -> None:
    """hosts.yaml asks the proxy, not the server: case 26."""
    front(draft)
    draft.service |= {"endpoint": "http://127.0.0.1:30080"}
    draft.refused.append("front.service|30080")


def front(draft: Draft) -> None:
    draft.file("/opt/front/forward.py", FORWARD)
    draft.other_unit(
        "front.service", "[Service]\nExecStart=/usr/bin/python3 /opt/front/forward.py 30080 30000\n"
    )


def second_server(draft: Draft) -> None:
    """Another model on another port, with a venv of its own."""
    copy_venv(draft, "/opt/second/venv")
    _server(draft, "second.service", "/opt/second/venv", 30001)


def second_on_venv(draft: Draft) -> None:
    """Another unit on the very venv: it would import half a change."""
    _server(draft, "second.service", VENV, 30001)
    draft.refused.append("use this venv|second.service")
    draft.must_refuse = True


def second_by_link(draft: Draft) -> None:
    """... which names the venv by a link."""
    draft.link("/srv/venv", VENV)
    _server(draft, "second.service", "/srv/venv", 30001)
    draft.refused.append("use this venv|second.service")
    draft.must_refuse = True


def second_allowed(draft: Draft) -> None:
    second_on_venv(draft)
    draft.refused.clear()
    draft.must_refuse = False
    draft.entry["also_stop"] = ["--port 30001"]


def second_instance(draft: Draft) -> None:
    """Two instances of a template, each with a venv; one is rolled out to."""
    copy_venv(draft, "/opt/second/venv")
    _server(draft, "llm@other.service", "/opt/second/venv", 30001)


def _server(draft: Draft, unit: str, venv: str, port: int) -> None:
    command = f"{venv}/bin/python -m sglang.launch_server --model-path /models/target --port {port}"
    draft.other_unit(unit, f"[Service]\nExecStart={command}\n")
    draft.others.add(port)


def watchdog(draft: Draft) -> None:
    """A timer that starts the service whenever it finds it down, once a second."""
    draft.other_unit(
        "watch.timer", "[Timer]\nOnActiveSec=1\nOnUnitActiveSec=1\nAccuracySec=100ms\n", "timers.target"
    )
    check = f"systemctl is-active --quiet {draft.unit} || systemctl --no-block start {draft.unit}"
    draft.file(f"{UNITS}/watch.service", f"[Service]\nType=oneshot\nExecStart=/bin/sh -c '{check}'\n")
    draft.dependents |= {"watch.timer", "watch.service"}
    draft.restless.add("watch.service")
    draft.put_back = "still there after|was started by somebody"


def failed_neighbour(draft: Draft) -> None:
    """The system is degraded; that says nothing about the service."""
    draft.other_unit("broken.service", "[Service]\nType=oneshot\nExecStart=/bin/false\n")


def venv_user(draft: Draft) -> None:
    """Somebody works with the venv's Python."""
    draft.other_unit(
        "notebook.service", f"[Service]\nExecStart={VENV}/bin/python -c 'import time; time.sleep(1e6)'\n"
    )
    draft.refused.append("use this venv|notebook")


def loud_neighbour(draft: Draft) -> None:
    """A unit whose name begins like the service's."""
    draft.other_unit("sglang-exporter.service", SLEEPS)
    draft.other_unit("sglang.slice", "[Slice]\nCPUWeight=50\n", "")
