"""The report as a page of this machine that renews itself while runs go on.

It is served on 127.0.0.1 alone, to this machine's browsers. The page may fetch from where it came
and from nowhere else; nothing can be sent to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from fedvarp.analysis.comparison import Comparison
from fedvarp.analysis.report.diagnosed import DIAGNOSIS_FILE
from fedvarp.analysis.report.page import Inline, page
from fedvarp.analysis.runs import Paths, listed, runs_at
from fedvarp.analysis.templating import fixed_part, render
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError

LOOPBACK: Final = "127.0.0.1"

_POLICY: Final = "default-src 'none'; frame-ancestors 'none'"  # the page's own is stricter yet


class Watcher:
    """Makes the page anew whenever the runs have changed, and not otherwise.

    Args:
        paths: Run directories, or directories that hold some; those that begin later are found.
        compared: Compares the runs, as `fedvarp.analysis.compare` does.
        title: The headline of the page.
    """

    def __init__(self, paths: Paths, compared: Callable[[], Comparison], title: str) -> None:
        self._paths = listed(paths)
        self._compared = compared
        self._title = title
        self._lock = threading.Lock()  # a browser may ask for several things at once
        self._made: tuple[str, dict[bool, str]] = ("", {})

    def version(self) -> str:
        """What the files of the runs are like: another text once one has grown or changed."""
        digest = hashlib.sha256()
        with contextlib.suppress(RunError, OSError):  # a run may be moved or deleted meanwhile
            for place in (place for path in self._paths for place in runs_at(path)):
                run = RunDirectory(place)
                for file in (place, run.metrics_file, place / DIAGNOSIS_FILE):
                    if file.is_file():
                        state = file.stat()
                        digest.update(f"{file} {state.st_size} {state.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:16]

    def text(self, *, whole: bool) -> str:
        """The page; without its scripts if it is to renew one that has them.

        Raises:
            RunError: There is nothing to look at yet, or the runs are of different tasks.
        """
        with self._lock:
            version = self.version()
            known = self._made[1] if self._made[0] == version else {}
            if whole not in known:
                known[whole] = page(self._compared(), self._title, live=version, whole=whole)
            self._made = (version, known)
            return known[whole]


@contextlib.contextmanager
def serving(watcher: Watcher, port: int = 0) -> Iterator[http.server.ThreadingHTTPServer]:
    """Serves the page while the `with` block lasts, in a thread of its own.

    Args:
        watcher: Makes the page.
        port: Of 127.0.0.1; 0: one that is free.

    Yields:
        The server; its port is ``server_address[1]``.

    Raises:
        RunError: The port is taken.
    """
    try:
        server = http.server.ThreadingHTTPServer((LOOPBACK, port), _handler(watcher))
    except OSError as error:
        raise RunError(
            f"Port {port} of {LOOPBACK} cannot be had: {error.strerror}. Leave --port out, and a "
            f"free one is taken."
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(watcher: Watcher) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        """Answers `/`, the page, and `/part`, what has changed in it."""

        def do_GET(self) -> None:  # http.server calls it so
            port = self.connection.getsockname()[1]
            # Under another name, a stranger's page could read this one through its visitor.
            if self.headers.get("Host") not in (f"{LOOPBACK}:{port}", f"localhost:{port}"):
                self._answer(HTTPStatus.FORBIDDEN, "This page is for 127.0.0.1 alone.", "plain")
                return
            asked = urlsplit(self.path)
            if asked.path == "/":
                self._answer(HTTPStatus.OK, _page_or_waiting(watcher))
            elif asked.path == "/part":
                self._part(parse_qs(asked.query).get("have", [""])[0])
            else:
                self._answer(HTTPStatus.NOT_FOUND, "There is nothing here but /.", "plain")

        def _part(self, have: str) -> None:
            if have == watcher.version():
                self._answer(HTTPStatus.NO_CONTENT, "")
                return
            try:
                self._answer(HTTPStatus.OK, watcher.text(whole=False))
            except RunError:  # a file is being written, or a run was taken away: soon it is known
                self._answer(HTTPStatus.NO_CONTENT, "")

        def _answer(self, status: HTTPStatus, text: str, kind: str = "html") -> None:
            content = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.send_header("Referrer-Policy", "no-referrer")
            if kind == "plain":
                self.send_header("Content-Security-Policy", _POLICY)
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it was closed
                self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing: whoever watches looks at the page."""

    return Handler


def _page_or_waiting(watcher: Watcher) -> str:
    try:
        return watcher.text(whole=True)
    except RunError as error:
        return render("waiting.html", why=str(error), style=Inline(fixed_part("waiting.css")))
