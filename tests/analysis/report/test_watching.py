"""The page on a port of this machine: what it answers, to whom, and that it follows the runs."""

from __future__ import annotations

import http.client
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedvarp.analysis import compare
from fedvarp.analysis.report.watching import LOOPBACK, Watcher, serving
from fedvarp.runs import RunDirectory, RunError
from some_runs import write_run

pytest.importorskip("plotly")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs" / "a", [0.1, 0.5], algorithm="fedavg")
    return tmp_path / "runs"


@pytest.fixture
def port(runs: Path) -> Iterator[int]:
    with serving(Watcher([runs], lambda: compare([runs]), "Mine")) as server:
        assert server.server_address[0] == LOOPBACK
        yield int(server.server_address[1])


def get(port: int, path: str, host: str | None = None, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
    connection.request(method, path, headers={"Host": host or f"{LOOPBACK}:{port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def version_in(text: str) -> str:
    return text.partition('data-version="')[2].partition('"')[0]


def test_the_page_is_renewed_when_a_run_has_grown_and_not_before(runs: Path, port: int) -> None:
    status, page = get(port, "/")
    assert status == 200
    assert "connect-src 'self'" in page
    assert "default-src 'none'" in page
    have = version_in(page)
    assert get(port, f"/part?have={have}") == (204, "")
    write_run(runs / "b", [0.1, 0.875], algorithm="fedvarp")
    status, part = get(port, f"/part?have={have}")
    assert status == 200
    assert version_in(part) != have
    assert "87.5 %" in part
    assert len(part) < len(page) / 10, "without its scripts"


def test_nobody_else_is_answered(port: int) -> None:
    assert get(port, "/", host="evil.example")[0] == 403
    assert get(port, "/part?have=", host=f"evil.example:{port}")[0] == 403
    assert get(port, "/", host=f"localhost:{port}")[0] == 200
    assert get(port, "/../../etc/passwd")[0] == 404
    assert get(port, "/", method="POST")[0] == 501


def test_before_the_first_round_it_says_so_and_waits(tmp_path: Path) -> None:
    RunDirectory(tmp_path / "runs" / "a").create({"algorithm": "fedavg", "rounds": 5})
    watcher = Watcher([tmp_path / "runs"], lambda: compare([tmp_path / "runs"]), "Mine")
    with serving(watcher) as server:
        port = int(server.server_address[1])
        status, text = get(port, "/")
        assert (status, "Nothing to show yet" in text) == (200, True)
        assert 'http-equiv="refresh"' in text
        assert get(port, "/part?have=") == (204, "")


@pytest.mark.slow
def test_a_browser_shows_what_is_new_without_being_asked(runs: Path, port: int) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium is installed to open the page in")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(color_scheme="dark")
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.goto(f"http://{LOOPBACK}:{port}/")
        page.wait_for_selector("body[data-drawn]")
        write_run(runs / "b", [0.1, 0.75], algorithm="fedavg", seed=1)
        page.wait_for_selector("[data-live=tables] td:has-text('62.5')")
        points = page.evaluate("document.getElementById('test-accuracy').data.length")
        assert points == 3, "a band of two seeds, where there was a line"
        assert said == [], "the policy was kept to"
        browser.close()


def test_a_port_that_is_taken_is_refused(runs: Path, port: int) -> None:
    watcher = Watcher([runs], lambda: compare([runs]), "Mine")
    with pytest.raises(RunError, match=f"Port {port} .*--port"), serving(watcher, port):
        pass
