"""A tiny client of SGLang's native HTTP API. Every call has one deadline for the whole of it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:  # its parsers are the most costly import of all, and looking at a host needs none
    from http.client import HTTPConnection


class HttpError(Exception):
    """A call that gave no usable answer. `kind`: refused | timeout | status | closed | protocol."""

    def __init__(self, kind: str, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status


@dataclass(frozen=True)
class Generation:
    """One answer of `/generate`. `verify_steps` is None where the server runs without speculation.

    logprobs: natural log of probability of each token; top: per position the best few (token, log-prob), best
    first. Both empty unless asked for. first_s: seconds to the first token, for a streamed answer.
    Source: SGLang's `output_ids` and its `meta_info`: completion_tokens, spec_verify_ct, finish_reason,
    output_token_logprobs, output_top_logprobs.
    """

    tokens: tuple[int, ...]
    text: str
    completion_tokens: int
    verify_steps: int | None
    finish: str
    seconds: float
    logprobs: tuple[float, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    first_s: float = 0.0
    chunks: int = 0  # parts in which a streamed answer came


@dataclass(frozen=True)
class Endpoint:
    """Where a server answers. The key goes into the Authorization header only."""

    url: str
    api_key: str = ""

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)

    def timed(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        seconds: float,
    ) -> tuple[bytes, float]:
        """The body of a 200 answer, and the seconds until its first line was there.

        Raises HttpError for everything else, after `seconds` at the latest.
        """
        from http.client import HTTPException

        parts = urlsplit(self.url)
        conn = _connection(parts.scheme, parts.hostname or "127.0.0.1", self.port, seconds)
        headers = {"Content-Type": "application/json", "Connection": "close"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        data = None if body is None else json.dumps(body).encode()
        late = threading.Event()
        began = time.monotonic()
        timer = None
        try:
            conn.connect()
            # The socket's own timeout is per read; a server that trickles bytes would never meet it.
            timer = threading.Timer(max(0.0, began + seconds - time.monotonic()), _cut, (conn.sock, late))
            timer.daemon = True
            timer.start()
            conn.request(method, path, data, headers)
            response = conn.getresponse()
            raw = response.readline()
            first_s = time.monotonic() - began
            raw += response.read()
        except ConnectionRefusedError as e:
            raise HttpError("refused", f"{self.url}{path}: nobody listens") from e
        except (OSError, HTTPException) as e:
            if late.is_set() or isinstance(e, TimeoutError):
                raise HttpError("timeout", f"{self.url}{path}: no answer within {seconds:.0f} s") from e
            raise HttpError("closed", f"{self.url}{path}: connection lost ({type(e).__name__}: {e})") from e
        finally:
            if timer:
                timer.cancel()
            conn.close()
        if late.is_set():
            raise HttpError("timeout", f"{self.url}{path}: no whole answer within {seconds:.0f} s")
        if response.status != 200:
            text = raw[:200].decode(errors="replace").strip()
            raise HttpError("status", f"{self.url}{path}: status {response.status} {text}", response.status)
        return raw, first_s

    def call(self, method: str, path: str, body: Any = None, *, seconds: float) -> bytes:
        """The body alone."""
        return self.timed(method, path, body, seconds=seconds)[0]

    def json(self, method: str, path: str, body: Any = None, *, seconds: float) -> Any:
        raw = self.call(method, path, body, seconds=seconds)
        try:
            return json.loads(raw)
        except ValueError as e:
            raise HttpError("protocol", f"{self.url}{path}: the answer is not JSON: {raw[:80]!r}") from e


def _connection(scheme: str, host: str, port: int, seconds: float) -> HTTPConnection:
    from http.client import HTTPConnection, HTTPSConnection

    if scheme != "https":
        return HTTPConnection(host, port, timeout=seconds)
    import ssl

    context = ssl.create_default_context()
    if host in ("localhost", "127.0.0.1", "::1"):  # a certificate is never issued for these
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return HTTPSConnection(host, port, timeout=seconds, context=context)


def _cut(sock: socket.socket, late: threading.Event) -> None:
    late.set()
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def generate(
    endpoint: Endpoint,
    prompt: str,
    max_new_tokens: int,
    *,
    seconds: float,
    ignore_eos: bool = True,
    top_logprobs: int = 0,
) -> Generation:
    """Greedy completion of one prompt. Raises HttpError, also where the answer lacks SGLang's own fields.

    top_logprobs: keep the token's log-prob and that of so many best at each position (0: of none).
    """
    body = _request(prompt, max_new_tokens, ignore_eos)
    if top_logprobs:
        body |= {"return_logprob": True, "top_logprobs_num": top_logprobs, "logprob_start_len": -1}
    began = time.monotonic()
    answer = endpoint.json("POST", "/generate", body, seconds=seconds)
    return _generation(endpoint, answer, time.monotonic() - began)


def generate_streamed(
    endpoint: Endpoint, prompt: str, max_new_tokens: int, *, seconds: float, ignore_eos: bool = True
) -> Generation:
    """The same as a stream of server-sent events, as most clients ask for it; the last event is the answer.

    Each event of SGLang holds all that was generated so far, or (incremental streaming) what is new. Raises
    HttpError, also for a stream that ends without `[DONE]`, or with an event of another form.
    """
    body = {**_request(prompt, max_new_tokens, ignore_eos), "stream": True}
    began = time.monotonic()
    raw, first_s = endpoint.timed("POST", "/generate", body, seconds=seconds)
    events = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
    if not events or events[-1].strip() != b"[DONE]":
        raise HttpError(
            "closed", f"{endpoint.url}/generate: the stream ended early, after {len(events)} events"
        )
    if len(events) < 2:
        raise HttpError("protocol", f"{endpoint.url}/generate: a stream without any token")
    try:
        answers = [json.loads(event) for event in events[:-1]]
        answer = answers[-1]
        parts = [token for part in answers for token in part["output_ids"]]
        if len(answer["output_ids"]) < answer["meta_info"]["completion_tokens"] == len(parts):
            answer = {**answer, "output_ids": parts}
    except (ValueError, KeyError, TypeError) as e:
        raise HttpError(
            "protocol", f"{endpoint.url}/generate: an event is not JSON: {events[-2][:80]!r}"
        ) from e
    made = _generation(endpoint, answer, time.monotonic() - began)
    return dataclasses.replace(made, first_s=first_s, chunks=len(events) - 1)


def _request(prompt: str, max_new_tokens: int, ignore_eos: bool) -> dict[str, Any]:
    sampling = {"temperature": 0.0, "max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos}
    return {"text": prompt, "sampling_params": sampling}


def _generation(endpoint: Endpoint, answer: Any, seconds: float) -> Generation:
    try:
        meta = answer["meta_info"]
        finish = meta.get("finish_reason") or {}
        steps = meta.get("spec_verify_ct")
        return Generation(
            tokens=tuple(int(t) for t in answer["output_ids"]),
            text=str(answer["text"]),
            completion_tokens=int(meta["completion_tokens"]),
            verify_steps=None if steps is None else int(steps),
            finish=str(finish.get("type", "") if isinstance(finish, dict) else finish),
            seconds=seconds,
            logprobs=tuple(float(row[0]) for row in meta.get("output_token_logprobs") or ()),
            top=tuple(
                tuple((int(cell[1]), float(cell[0])) for cell in row or ())
                for row in meta.get("output_top_logprobs") or ()
            ),
        )
    except (KeyError, TypeError, ValueError, IndexError) as e:
        raise HttpError("protocol", f"{endpoint.url}/generate: unexpected answer ({e!r})") from e


def server_info(endpoint: Endpoint, *, seconds: float = 30.0) -> dict[str, Any]:
    """`/server_info`, or its older name `/get_server_info`."""
    for path in ("/server_info", "/get_server_info"):
        try:
            info = endpoint.json("GET", path, seconds=seconds)
        except HttpError as e:
            if e.status != 404:
                raise
            continue
        if isinstance(info, dict):
            return info
    raise HttpError("protocol", f"{endpoint.url}: neither /server_info nor /get_server_info is served")


def flush_cache(endpoint: Endpoint, *, seconds: float = 30.0, tries: int = 10) -> None:
    """Empty the radix cache. The server refuses (400) while a request still runs, so ask a few times."""
    for left in reversed(range(tries)):
        try:
            endpoint.call("POST", "/flush_cache", seconds=seconds)
        except HttpError as e:
            if e.status != 400 or not left:
                raise
            time.sleep(0.5)
        else:
            return


def running_requests(endpoint: Endpoint, *, seconds: float = 5.0) -> int | None:
    """Requests running or queued, by whatever this version serves; None where it does not say."""
    for path in ("/v1/loads", "/get_load"):
        try:
            answer = endpoint.json("GET", path, seconds=seconds)
        except HttpError as e:
            if e.kind in ("refused", "timeout", "closed"):
                return None
            continue
        rows = answer.get("loads") if isinstance(answer, dict) else answer
        if isinstance(rows, list) and rows and all(isinstance(r, dict) for r in rows):
            return sum(_requests(row) for row in rows)
    try:
        text = endpoint.call("GET", "/metrics", seconds=seconds).decode(errors="replace")
    except HttpError:
        return None
    return requests_in_metrics(text)


def _requests(row: dict[str, Any]) -> int:
    # /get_load's num_reqs counts the waiting ones too.
    if "num_reqs" in row:
        return int(row["num_reqs"])
    return int(row.get("num_running_reqs", 0)) + int(row.get("num_waiting_reqs", 0))


def requests_in_metrics(text: str) -> int | None:
    """Sum of SGLang's two gauges in Prometheus text; None when neither is there."""
    found = re.findall(r"^sglang:num_(?:running|queue)_reqs(?:\{.*\})? (.+)$", text, re.M)
    return sum(int(float(value)) for value in found) if found else None
