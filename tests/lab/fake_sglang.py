#!/usr/bin/env python3
"""A stand-in for an SGLang server, for tests: one file, standard library, any SGLang-like flags.

    python fake_sglang.py --port 31300 --speculative-algorithm DFLASH --fake '{"load_s": 2}'

Tokens are a hash of the prompt, so two servers agree unless told not to. Moods come from `--fake JSON`, from
`MOOD` of the overlaid module that was imported (so that a payload can be a bad one), and from the file
`--fake-control FILE` (JSON, read again at every use). A key `when` holds moods by speculative algorithm
(`{"when": {"DDTREE": {"hung": true}}}`), so that a rollout can turn a good server bad.

Moods:
  load_s, load_lines        seconds until it listens, progress lines meanwhile (carriage returns, as of tqdm)
  stall                     never listens, and writes nothing more
  exit_at_once              exit with this status before listening
  crash_after_s             exit with status 1 this long after it listens
  crash_after_requests      exit with status 1 at this request
  hung                      /health is 200, /generate never answers
  hang_after_requests       the same from this request on
  zombie                    a child in its own session keeps the port after the server is gone
  orphan                    a child in the server's session outlives it, renamed: no environment, no port
  ignore_term               SIGTERM is ignored
  linger_s                  after SIGTERM it serves on for so long, with /health at 503, as SGLang does
  exit_s                    after that it closes its port, and takes so long until it is gone
  wrong_tokens              every token is another one from this position on
  fewer_tokens              this many tokens less than asked
  no_tokens                 200 with an empty output
  fail_every                every so many-th request is answered with status 500
  fail_matching             a prompt in which this pattern is found is answered with status 500
  token_s                   seconds per verify step
  accept                    tokens per verify step (default: 1, DFLASH 2, DDTREE 3)
  refuse_logprobs           status 400 for return_logprob, as DDTREE does
  tie_at                    the best two tokens of this position are 1e-6 apart (else 2.0); the second one is
  what
                            `wrong_tokens` gives
  no_counters               meta_info without the spec_* counters
  old_names                 /get_server_info and /get_load only, no /v1/loads
  no_server_info            neither name of it

/server_info tells every flag as the parser has it, under the name that SGLang gives it; like SGLang's, it
takes the beginning of a flag for the whole. A plugin of the venv may add what it says (`tell`).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import os
import re
import resource
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ACCEPT = {"": 1.0, "DFLASH": 2.0, "DDTREE": 3.0}
OVERLAID = "sglang.srt.speculative.dflash_info"  # a payload may put a mood into it: {"MOOD": ...}


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--api-key", default="")
    parser.add_argument("--model-path", default="fake-model")
    parser.add_argument("--speculative-algorithm", default="")
    parser.add_argument("--speculative-draft-model-path", default="fake-draft")
    parser.add_argument("--speculative-ddtree-budget", type=int, default=16)
    parser.add_argument("--speculative-num-draft-tokens", type=int, default=None)
    parser.add_argument("--fake", default="{}")
    parser.add_argument("--fake-control", default="")
    args, rest = parser.parse_known_args(argv)
    args.others = others(rest)
    return args


def others(rest: list[str]) -> dict[str, Any]:
    """Flags that only SGLang's parser knows, typed as it would type them: field -> value."""
    found: dict[str, Any] = {}
    name = ""
    for word in rest:
        if word.startswith("--"):
            name, equals, value = word[2:].replace("-", "_").partition("=")
            found[name] = typed(value) if equals else True
        elif name:
            found[name] = typed(word)
    return found


def typed(word: str) -> Any:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(word)
    return word


def plugin_says() -> dict[str, Any]:
    """What the payload of these tests says of itself, where it is installed."""
    with contextlib.suppress(ImportError):
        import tiny_ddtree

        if hasattr(tiny_ddtree, "tell"):
            return dict(tiny_ddtree.tell())
    return {}


def itself() -> dict[str, Any]:
    """What this process really is, from the kernel and from its own interpreter."""

    def words(name: str) -> list[str]:
        with contextlib.suppress(OSError):  # a service in a root of its own may have no /proc
            text = Path(f"/proc/self/{name}").read_bytes().decode(errors="surrogateescape")
            return text.split("\0")[:-1]
        return []

    def link(name: str) -> str:
        with contextlib.suppress(OSError):
            return str(Path(f"/proc/self/{name}").readlink())
        return ""

    mask = os.umask(0o77)
    os.umask(mask)
    status = dict(line.split(":\t", 1) for line in _lines("status") if ":\t" in line)
    return {
        "cmdline": words("cmdline"),
        "environ": dict(word.split("=", 1) for word in words("environ") if "=" in word),
        "cwd": link("cwd"),
        "root": link("root"),
        "exe": link("exe"),
        "stdout": re.sub(r"socket:.*|pipe:.*", "stream", link("fd/1")),
        "cgroup": [line.rsplit(":", 1)[-1] for line in _lines("cgroup")][-1:],
        "ids": [os.getuid(), os.getgid(), *sorted({os.getgid(), *os.getgroups()})],
        "umask": mask,
        "nice": os.nice(0),
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": [resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)],
        "capabilities": [status.get(name, "") for name in ("CapEff", "CapBnd", "NoNewPrivs")],
        "prefix": sys.prefix,
        "path": sys.path,
        "bytecode": [sys.dont_write_bytecode, sys.pycache_prefix],
    }


def _lines(name: str) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/self/{name}").read_text(errors="replace").splitlines()
    return []


def imported() -> dict[str, Any]:
    """The modules of sglang and of the payload in this process: file, digest of its text, what they say.

    To be asked at the start: later the file on the disk may be another one.
    """
    found = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.split(".")[0] in ("sglang", "tiny_ddtree") and file:
            digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
            says = getattr(module, "BLOCK", getattr(module, "__version__", None))
            found[name] = {"file": file, "sha256": digest, "says": says}
    return found


def notify(text: str) -> None:
    """Tell systemd, where it asks to be told (Type=notify)."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if where:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(text.encode(), where.replace("@", "\0", 1))


class Fake:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.lock = threading.Lock()
        self.requests = 0
        self.running = 0
        self.flushed = 0
        self.stopping = threading.Event()
        self.ending = False
        self.plugin = plugin_says()
        self.imported = imported()

    def mood(self, key: str, default: Any = None) -> Any:
        moods = json.loads(self.args.fake) | getattr(sys.modules.get(OVERLAID), "MOOD", {})
        if self.args.fake_control:
            with contextlib.suppress(FileNotFoundError):
                moods |= json.loads(Path(self.args.fake_control).read_text() or "{}")
        moods |= moods.get("when", {}).get(self.args.speculative_algorithm, {})
        return moods.get(key, default)

    def tokens(self, prompt: str, count: int) -> list[int]:
        wrong = self.mood("wrong_tokens")
        shift = [1 if wrong is not None and i >= int(wrong) else 0 for i in range(count)]
        return [
            (int.from_bytes(hashlib.sha256(f"{prompt}|{i}".encode()).digest()[:4], "big") + shift[i]) % 1000
            for i in range(count)
        ]

    def accept(self) -> float:
        return float(self.mood("accept", ACCEPT.get(self.args.speculative_algorithm, 1.0)))

    def logprobs(self, tokens: list[int], best: int) -> dict[str, Any]:
        """As SGLang's: rows of [log-prob, token, text]."""
        tie = self.mood("tie_at")
        rows, tops = [], []
        for i, token in enumerate(tokens):
            gap = 1e-6 if tie is not None and i == int(tie) else 2.0
            rows.append([-0.1, token, None])
            tops.append([[-0.1 - gap * k, (token + k) % 1000, None] for k in range(best)])
        return {"output_token_logprobs": rows, "output_top_logprobs": tops}

    def meta(self, prompt: str, made: int, asked: int, last: bool) -> dict[str, Any]:
        meta: dict[str, Any] = {
            "id": hashlib.sha256(prompt.encode()).hexdigest()[:12],
            "finish_reason": {"type": "length", "length": asked} if last else None,
            "prompt_tokens": len(prompt.split()),
            "completion_tokens": made,
            "cached_tokens": 0,
        }
        if self.args.speculative_algorithm and not self.mood("no_counters"):
            steps = max(1, math.ceil(made / self.accept()))
            meta |= {"spec_verify_ct": steps, "spec_accept_length": made / steps}
        return meta


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: Fake

    def log_message(self, *_: Any) -> None:
        return

    def reply(self, value: Any, status: int = 200, kind: str = "application/json") -> None:
        body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> dict[str, Any]:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return json.loads(raw) if raw else {}

    def do_GET(self) -> None:
        fake, path = self.fake, self.path.split("?")[0]
        if path in ("/health", "/health_generate"):
            return self.reply("", 503 if fake.ending else 200, kind="text/plain")
        key = fake.args.api_key
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            return self.reply({"error": "Unauthorized"}, 401)
        old = bool(fake.mood("old_names"))
        state = {"avg_spec_accept_length": fake.accept()} if fake.args.speculative_algorithm else {}
        info = {
            "version": "0.0.fake",
            "speculative_algorithm": fake.args.speculative_algorithm or None,
            "model_path": fake.args.model_path,
            "speculative_num_draft_tokens": fake.args.speculative_num_draft_tokens,
            "internal_states": [state],
            **fake.args.others,
            **fake.plugin,
        }
        if fake.args.speculative_algorithm:
            info["speculative_draft_model_path"] = fake.args.speculative_draft_model_path
        if fake.args.speculative_algorithm == "DDTREE":
            info["speculative_ddtree_budget"] = fake.args.speculative_ddtree_budget
        model = {"model_path": fake.args.model_path, "tokenizer_path": fake.args.model_path}
        loads = {"loads": [{"dp_rank": 0, "num_running_reqs": fake.running, "num_waiting_reqs": 0}]}
        answers: dict[str, Any] = {
            "/v1/models": {"object": "list", "data": [{"id": fake.args.model_path, "object": "model"}]},
            "/model_info": model,
            "/get_model_info": model,
            "/nowhere"
            if fake.mood("no_server_info")
            else "/get_server_info"
            if old
            else "/server_info": info,
            "/fake": {
                "requests": fake.requests,
                "flushed": fake.flushed,
                "pid": os.getpid(),
                "argv": sys.argv,
                "args": vars(fake.args),
                "process": itself(),
                "imported": fake.imported,
            },
        }
        if old:
            answers["/get_load"] = [{"dp_rank": 0, "num_reqs": fake.running, "num_waiting_reqs": 0}]
        else:
            answers["/v1/loads"] = loads
        if path == "/metrics":
            return self.reply(f'sglang:num_running_reqs{{tp_rank="0"}} {fake.running}.0\n', kind="text/plain")
        if path == "/flush_cache":
            return self.flush()
        if path in answers:
            return self.reply(answers[path])
        return self.reply({"detail": "Not Found"}, 404)

    def flush(self) -> None:
        self.fake.flushed += 1
        self.reply("Cache flushed.\n", kind="text/plain")

    def do_POST(self) -> None:
        path, body, fake = self.path.split("?")[0], self.body(), self.fake
        key = fake.args.api_key
        if key and self.headers.get("Authorization") != f"Bearer {key}":
            return self.reply({"error": "Unauthorized"}, 401)
        if path == "/flush_cache":
            return self.flush()
        if path != "/generate":
            return self.reply({"detail": "Not Found"}, 404)
        with fake.lock:
            fake.requests += 1
            number = fake.requests
            fake.running += 1
        try:
            self.generate(body, number)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            with fake.lock:
                fake.running -= 1

    def generate(self, body: dict[str, Any], number: int) -> None:
        fake = self.fake
        hang_after, crash_after = fake.mood("hang_after_requests"), fake.mood("crash_after_requests")
        if crash_after is not None and number >= crash_after:
            print("Scheduler hit an exception: fake crash", flush=True)
            os._exit(1)
        if fake.mood("hung") or (hang_after is not None and number > hang_after):
            fake.stopping.wait()
            return
        if fake.mood("fail_every") and number % int(fake.mood("fail_every")) == 0:
            return self.reply({"error": {"message": "fake failure"}}, 500)
        prompt = body.get("text", body.get("input_ids"))
        prompts = prompt if isinstance(prompt, list) and isinstance(prompt[0], str) else [prompt]
        if fake.mood("fail_matching") and re.search(str(fake.mood("fail_matching")), str(prompts[0])):
            return self.reply({"error": {"message": "fake failure"}}, 500)
        params = body.get("sampling_params") or {}
        asked = int(params.get("max_new_tokens", 16))
        if body.get("return_logprob") and fake.mood("refuse_logprobs"):
            return self.reply({"error": {"message": "return_logprob is not supported."}}, 400)
        best = int(body.get("top_logprobs_num") or 0) if body.get("return_logprob") else 0
        count = 0 if fake.mood("no_tokens") else max(0, asked - int(fake.mood("fewer_tokens", 0)))
        outs = [(str(p), fake.tokens(str(p), count)) for p in prompts]
        step = float(fake.mood("token_s", 0.0))
        chunk = max(1, int(fake.accept()))
        if not body.get("stream"):
            time.sleep(step * math.ceil(count / fake.accept()))
            items = [self.item(p, t, asked, True) for p, t in outs]
            if best:
                for item, (_, tokens) in zip(items, outs, strict=True):
                    item["meta_info"] |= fake.logprobs(tokens, best)
            return self.reply(items[0] if len(prompts) == 1 and prompts[0] is prompt else items)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        text, tokens = outs[0]
        for end in [*range(chunk, count, chunk), count]:
            time.sleep(step)
            data = json.dumps(self.item(text, tokens[:end], asked, end == count))
            self.wfile.write(b"data: " + data.encode() + b"\n\n")
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def item(self, prompt: str, tokens: list[int], asked: int, last: bool) -> dict[str, Any]:
        text = "".join(f" t{t}" for t in tokens)
        return {
            "text": text,
            "output_ids": tokens,
            "meta_info": self.fake.meta(prompt, len(tokens), asked, last),
        }


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True


def child(read_end: int, write_end: int) -> None:
    """A scheduler: lives as long as the server's end of the pipe is open."""
    if os.fork():
        return
    os.close(write_end)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.read(read_end, 1)
    os._exit(0)


def zombie(server: Server) -> None:
    """Keeps the listening socket, in its own session, deaf to SIGTERM."""
    if os.fork():
        return
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    server.socket.set_inheritable(True)
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    os.execv(sys.executable, [sys.executable, "-c", code, "sglang::scheduler-of-fake"])


def orphan() -> None:
    """A scheduler that SIGTERM does not end. setproctitle overwrites what /proc shows of the environment."""
    if os.fork():
        return
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code, "sglang::scheduler-of-fake"], {})


def main() -> None:
    args = parse(sys.argv[1:])
    fake = Fake(args)
    Handler.fake = fake
    print(f"server_args=ServerArgs({' '.join(sys.argv[1:])})", flush=True)
    if fake.mood("exit_at_once") is not None:
        print("RuntimeError: fake failure at start", flush=True)
        sys.exit(int(fake.mood("exit_at_once")))
    read_end, write_end = os.pipe()
    child(read_end, write_end)
    os.close(read_end)
    os.set_inheritable(write_end, False)
    lines = int(fake.mood("load_lines", 1))
    for i in range(lines):
        sys.stdout.write(f"\rLoading safetensors checkpoint shards: {100 * i // lines}%")
        sys.stdout.flush()
        time.sleep(float(fake.mood("load_s", 0.0)) / lines)
    if fake.mood("stall"):
        print("\nCapturing CUDA graphs", flush=True)
        signal.pause()
    server = Server((args.host, args.port), Handler)
    if fake.mood("zombie"):
        zombie(server)
    if fake.mood("orphan"):
        orphan()

    def stop(*_: Any) -> None:
        if fake.mood("ignore_term"):
            return
        threading.Thread(target=drain, daemon=True).start()

    def drain() -> None:
        fake.ending = True
        time.sleep(float(fake.mood("linger_s", 0.0)))
        server.shutdown()
        fake.stopping.set()
        while fake.running:
            time.sleep(0.02)
        server.server_close()
        time.sleep(float(fake.mood("exit_s", 0.0)))
        print("Shutdown complete", flush=True)
        os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    if fake.mood("crash_after_s") is not None:
        timer = threading.Timer(float(fake.mood("crash_after_s")), lambda: os._exit(1))
        timer.daemon = True
        timer.start()
    print("\nThe server is fired up and ready to roll!", flush=True)
    notify("READY=1")
    server.serve_forever(poll_interval=0.05)
    signal.pause()


if __name__ == "__main__":
    main()
