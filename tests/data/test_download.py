"""Downloads from a real server on this machine that can be told to misbehave."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedvarp.data import DataError, cifar10, download, shakespeare
from fedvarp.data.download import fetch, has_md5, is_sound_zip

CONTENT = hashlib.shake_256(b"content").digest(3_000_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves ``content``; the attributes are its moods."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.supports_range = True
        self.sends_length = True
        self.drop_after: list[int] = []  # one entry a response: bytes sent before hanging up
        self.answers: list[int] = []  # one entry a request: an error status instead of content
        self.ranges: list[str | None] = []  # what was asked for

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/file"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers["Range"]
        self.server.ranges.append(wanted)
        if self.server.answers:
            self.send_error(self.server.answers.pop(0))
            return
        content, start = self.server.content, 0
        if wanted and self.server.supports_range:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        body = content[start:]
        if self.server.sends_length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.server.drop_after:
            body = body[: self.server.drop_after.pop(0)]
        with contextlib.suppress(ConnectionError):  # the client may hang up as well
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "file.bin"


def part_of(target: Path) -> Path:
    return target.with_name(target.name + ".part")


def put_part(target: Path, content: bytes) -> None:
    target.parent.mkdir(parents=True)
    part_of(target).write_bytes(content)


def get(server: Server, target: Path, **options: object) -> Path:
    return fetch(server.url, target, **({"verify": has_md5(MD5), "backoff": 0.0} | options))  # type: ignore[arg-type]


def test_a_plain_download(server: Server, target: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    assert get(server, target, progress=lambda done, total: seen.append((done, total))) == target
    assert target.read_bytes() == CONTENT
    assert not part_of(target).exists()
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert seen == sorted(seen)
    assert server.ranges == [None]


def test_a_whole_file_is_not_downloaded_again(server: Server, target: Path) -> None:
    get(server, target)
    get(server, target)
    assert len(server.ranges) == 1


def test_a_wrong_file_in_its_place_is_replaced(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(CONTENT[:1000])
    get(server, target)
    assert target.read_bytes() == CONTENT


def test_a_part_is_continued(server: Server, target: Path) -> None:
    put_part(target, CONTENT[:1_234_567])
    seen: list[int] = []
    get(server, target, progress=lambda done, total: seen.append(done))
    assert target.read_bytes() == CONTENT
    assert server.ranges == ["bytes=1234567-"]
    assert min(seen) > 1_234_567


def test_a_server_that_ignores_range_starts_over(server: Server, target: Path) -> None:
    server.supports_range = False
    put_part(target, CONTENT[:1_234_567])
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert len(server.ranges) == 1


def test_dropped_connections_are_taken_up_again(server: Server, target: Path) -> None:
    server.drop_after = [1_000_000, 700_000, 0, 300_000]
    get(server, target, attempts=2)  # four drops, but only one of them brought nothing
    assert target.read_bytes() == CONTENT
    assert server.ranges == [
        None,
        "bytes=1000000-",
        "bytes=1700000-",
        "bytes=1700000-",
        "bytes=2000000-",
    ]


def test_giving_up_keeps_the_part_and_says_so(server: Server, target: Path) -> None:
    server.drop_after = [1_000_000, 0, 0, 0]
    with pytest.raises(
        DataError, match=r"3 attempts in a row brought nothing .*ended early.*goes on"
    ):
        get(server, target, attempts=3)
    assert not target.exists()
    assert part_of(target).read_bytes() == CONTENT[:1_000_000]
    get(server, target)
    assert target.read_bytes() == CONTENT


def test_a_server_that_ignores_range_and_never_finishes(server: Server, target: Path) -> None:
    server.supports_range = False
    server.drop_after = [1_000_000, 900_000, 950_000, 999_999]  # none gets beyond the first
    with pytest.raises(DataError, match="3 attempts in a row brought nothing"):
        get(server, target, attempts=3)
    assert len(server.ranges) == 4


def test_a_part_of_a_file_that_has_changed_since(server: Server, target: Path) -> None:
    put_part(target, b"an older file" * 1000)
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert server.ranges == ["bytes=13000-", None]


@pytest.mark.parametrize("extra", [b"", b"and more than there should be"])
def test_a_part_with_nothing_left_to_ask_for(server: Server, target: Path, extra: bytes) -> None:
    put_part(target, CONTENT + extra)
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert len(server.ranges) == (2 if extra else 1)


def test_wrong_content_never_gets_the_name(server: Server, target: Path) -> None:
    server.content = b"<html>Please log in</html>"
    with pytest.raises(DataError, match=rf"is not the expected file: its md5 is .* not {MD5}"):
        get(server, target)
    assert not target.exists()
    assert not part_of(target).exists()


def test_not_found_is_final(server: Server, target: Path) -> None:
    server.answers = [404]
    with pytest.raises(DataError, match=r"answered 404 .*by hand and put it at .*file\.bin\."):
        get(server, target)
    assert len(server.ranges) == 1
    assert not target.exists()


def test_passing_errors_of_the_server_are_retried(server: Server, target: Path) -> None:
    server.answers = [503, 500, 429]
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert len(server.ranges) == 4


def test_no_server_at_all(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as stopped:
        url = stopped.url
    with pytest.raises(DataError, match=r"2 attempts in a row brought nothing .*refused"):
        fetch(url, target, verify=has_md5(MD5), attempts=2, backoff=0.0)


def test_a_server_that_does_not_say_the_length(server: Server, target: Path) -> None:
    server.sends_length = False
    get(server, target)
    assert target.read_bytes() == CONTENT
    # Without a length, an early end looks like the end; the checksum knows better.
    server.drop_after = [1000]
    with pytest.raises(DataError, match="not the expected file"):
        get(server, target.with_name("other.bin"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_linked_part_is_not_written_through(server: Server, target: Path) -> None:
    target.parent.mkdir()
    elsewhere = target.parent / "elsewhere"
    elsewhere.write_bytes(b"mine")
    part_of(target).symlink_to(elsewhere)
    with pytest.raises(DataError, match=r"is a link.*Remove"):
        get(server, target)
    assert elsewhere.read_bytes() == b"mine"


def test_a_full_disk(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target.parent.mkdir()
    full = "fedvarp.data.download._no_link"
    monkeypatch.setattr(full, lambda path, flags: os.open("/dev/full", os.O_WRONLY))
    with pytest.raises(DataError, match=r"disk is full.*Free some space"):
        get(server, target)
    assert not target.exists()


def test_two_at_once_download_once(server: Server, target: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        for path in pool.map(lambda _: get(server, target), range(4)):
            assert path.read_bytes() == CONTENT
    assert len(server.ranges) == 1


def test_other_schemes_are_refused(target: Path) -> None:
    with pytest.raises(ValueError, match="not an http or https address"):
        fetch("file:///etc/hostname", target, verify=has_md5(MD5))


def test_a_whole_file_in_a_folder_that_cannot_be_written(server: Server, target: Path) -> None:
    get(server, target)
    target.with_name(target.name + ".lock").unlink(missing_ok=True)
    target.parent.chmod(0o500)
    try:
        get(server, target)
    finally:
        target.parent.chmod(0o700)
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_the_data_sets_look_where_their_downloads_go(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "CIFAR10_URL", server.url)
    monkeypatch.setattr(download, "CIFAR10_MD5", MD5)
    path = download.download_cifar10(tmp_path)
    with pytest.raises(DataError, match=f"{path.name} .* is damaged"):  # found, but random bytes
        cifar10(tmp_path)

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("100.txt", "not by William Shakespeare")
    server.content = buffer.getvalue()
    monkeypatch.setattr(download, "SHAKESPEARE_URL", server.url)
    path = download.download_shakespeare(tmp_path)
    assert path.read_bytes() == server.content
    with pytest.raises(DataError, match="Found 0 lines 'by William Shakespeare'"):
        shakespeare(tmp_path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_sound_and_broken_zips(server: Server, target: Path, compression: int) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr("100.txt", CONTENT.hex()[:10_000])
    server.content = buffer.getvalue()
    get(server, target, verify=is_sound_zip)
    assert target.read_bytes() == server.content

    damaged = bytearray(server.content)
    damaged[40:60] = b"\xff" * 20  # right after the header
    server.content = bytes(damaged)
    with pytest.raises(DataError, match=r"100\.txt in it is damaged|sound zip archive"):
        get(server, target.with_name("damaged.zip"), verify=is_sound_zip)
    server.content = server.content[:-100]
    with pytest.raises(DataError, match="not a whole and sound zip archive"):
        get(server, target.with_name("short.zip"), verify=is_sound_zip)
