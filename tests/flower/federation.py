"""A federation of real processes on this machine: a SuperLink, SuperNodes, apps submitted to it.

Every process carries a mark in its environment. By that all of them are found and ended, also those
that Flower starts in sessions of their own, and those whose parent was killed.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import tomli_w

MARK = "FEDVARP_TEST_FEDERATION"
PATIENCE = 600.0  # seconds until a test gives up; generous, since machines may be busy
SOURCES = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Tls:
    """The files of a SuperLink with TLS: its authority's certificate, its own, and its key."""

    ca: Path
    certificate: Path
    key: Path


@dataclass
class Federation:
    """One SuperLink and its SuperNodes; all files in one folder, all sockets on 127.0.0.1."""

    folder: Path
    tls: Tls | None = None
    port: int = field(default_factory=lambda: free_port())
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start_superlink(self, *options: str) -> None:
        """Starts the SuperLink, or starts it again, and waits until it answers."""
        safety = ["--insecure"]
        if self.tls is not None:
            safety = ["--ssl-ca-certfile", str(self.tls.ca)]
            safety += ["--ssl-certfile", str(self.tls.certificate)]
            safety += ["--ssl-keyfile", str(self.tls.key)]
        self.write_connection()
        self.start(
            "superlink",
            "flower-superlink",
            *safety,
            "--disable-runtime-dependency-installation",
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--database", str(self.folder / "superlink.db")),
            *options,
        )
        self.wait_for("the SuperLink to answer", self.answers)

    def write_connection(self) -> None:
        """What the `flwr` command reads to find the SuperLink."""
        here: dict[str, object] = {"address": f"127.0.0.1:{self.port}"}
        if self.tls is None:
            here["insecure"] = True
        else:
            here["root-certificates"] = str(self.tls.ca)
        connections = {"superlink": {"default": "here", "here": here}}
        (self.folder / "config.toml").write_text(tomli_w.dumps(connections))

    def answers(self) -> bool:
        """Whether the SuperLink's web server is up."""
        if self.processes["superlink"].poll() is not None:
            raise AssertionError(f"The SuperLink ended.\n{self.logs()}")
        scheme, context = "http", None
        if self.tls is not None:
            scheme, context = "https", ssl.create_default_context(cafile=str(self.tls.ca))
        try:
            url = f"{scheme}://127.0.0.1:{self.port}/health"
            with urllib.request.urlopen(url, timeout=5, context=context) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def start_supernode(self, partition: int, *options: str, of: int = 3, name: str = "") -> str:
        """Starts the SuperNode that holds this partition; returns its name."""
        name = name or f"supernode-{partition}"
        safety = ["--insecure"] if self.tls is None else ["--root-certificates", str(self.tls.ca)]
        self.start(
            name,
            "flower-supernode",
            *safety,
            *("--superlink", f"127.0.0.1:{self.port}"),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", f"partition-id={partition} num-partitions={of}"),
            *options,
        )
        return name

    def node_id(self, name: str) -> int:
        """The node id that the SuperLink gave this SuperNode, as soon as it has one."""
        found: list[str] = []

        def known() -> bool:
            found[:] = re.findall(r"SuperNode ID: (\d+)", self.log(name))
            return bool(found)

        self.wait_for(f"{name} to register", known)
        return int(found[-1])

    def submit(self, name: str, app: Path, config: Mapping[str, object]) -> str:
        """Submits the app; its log can be read under that name while it runs."""
        file = self.folder / f"{name}.toml"
        file.write_text(tomli_w.dumps(dict(config)))
        self.start(name, "flwr", "run", str(app), "here", "--stream", "--run-config", str(file))
        return name

    def wait_for_end(self, name: str) -> None:
        """Waits until a submitted run is over, and checks that Flower calls it completed."""
        self.wait_for(f"{name} to end", lambda: self.processes[name].poll() is not None)
        run_id = re.findall(r"Successfully started run (\d+)", self.log(name))[-1]
        listed = json.loads(self.flwr("list", "here", "--run-id", run_id, "--format", "json"))
        status = listed["runs"][0]["status"]
        assert status == "finished:completed", f"{name} is {status}.\n{self.logs()}"

    def flwr(self, *arguments: str) -> str:
        """Runs a `flwr` command to its end; returns what it printed."""
        done = subprocess.run(
            [program("flwr"), *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, f"{arguments} said {done.stdout}{done.stderr}"
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        """For every process: this clone's sources, no telemetry, the mark."""
        binaries = str(Path(sys.executable).parent)
        return {
            **os.environ,
            MARK: str(self.folder),
            "FLWR_HOME": str(self.folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "OMP_NUM_THREADS": "1",
            "PATH": os.pathsep.join([binaries, os.environ["PATH"]]),
            "PYTHONPATH": str(SOURCES),
        }

    def start(self, name: str, command: str, *arguments: str) -> None:
        """Starts a process in a group of its own; what it prints goes to `<name>.log`."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [program(command), *arguments],
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    def kill(self, name: str) -> None:
        """SIGKILL for a process and everything it started."""
        process = self.processes[name]
        family = descendants(process.pid)
        for pid in [process.pid, *family]:
            _kill(pid)
        process.wait()
        self.wait_for(f"all of {name} to be gone", lambda: all(has_ended(pid) for pid in family))

    def kill_server_app(self) -> None:
        """SIGKILL for the ServerApp's process; the SuperLink goes on."""
        found = [pid for pid in self.alive() if "flwr-serverapp" in command_line(pid)]
        assert found, f"No ServerApp is running.\n{self.logs()}"
        for pid in found:
            _kill(pid)
        self.wait_for("the ServerApp to be gone", lambda: all(has_ended(pid) for pid in found))

    def alive(self) -> list[int]:
        """Every process of this federation, whoever started it."""
        mark = f"{MARK}={self.folder}".encode()
        return [pid for pid in _pids() if mark in _read(pid, "environ").split(b"\0")]

    def end(self) -> None:
        """Ends all processes, however the test went."""
        deadline = time.monotonic() + 30
        while remaining := self.alive():
            for pid in remaining:
                _kill(pid)
            if time.monotonic() > deadline:
                raise AssertionError(f"Processes {remaining} do not end.")
            time.sleep(0.05)
        for process in self.processes.values():
            process.wait()

    def wait_for(self, what: str, condition: Callable[[], bool], during: str = "") -> None:
        """Waits until the condition holds; fails with all the logs if it never does.

        Args:
            what: Is waited for, in words.
            condition: The same as a function.
            during: A submitted run: nothing more happens once that is over.
        """
        deadline = time.monotonic() + PATIENCE
        while not condition():
            if during and self.processes[during].poll() is not None and not condition():
                raise AssertionError(f"{during} ended before {what}.\n{self.logs()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"Waited {PATIENCE:.0f} s for {what}.\n{self.logs()}")
            time.sleep(0.1)

    def log(self, name: str) -> str:
        """What a process has printed so far, without colours."""
        file = self.folder / f"{name}.log"
        text = file.read_text(errors="replace") if file.exists() else ""
        return re.sub(r"\x1b\[\d+m", "", text)

    def logs(self) -> str:
        """The end of every log, to be shown when a test fails."""
        return "\n".join(f"--- {name}\n{self.log(name)[-3000:]}" for name in self.processes)

    def listening_elsewhere(self) -> list[str]:
        """Sockets of this federation that listen on anything but 127.0.0.1."""
        if shutil.which("ss") is None:
            return []
        listed = subprocess.run(["ss", "-H", "-ltnp"], capture_output=True, text=True, check=True)
        ours = {f"pid={pid}," for pid in self.alive()}
        sockets = [line for line in listed.stdout.splitlines() if any(p in line for p in ours)]
        assert sockets, "ss shows no socket of ours: it may not tell processes apart here."
        return [line for line in sockets if not line.split()[3].startswith("127.0.0.1:")]


@contextmanager
def federation(folder: Path, tls: Tls | None = None) -> Iterator[Federation]:
    """A federation that is gone when the block is left, whichever way."""
    folder.mkdir(parents=True, exist_ok=True)
    started = Federation(folder, tls)
    try:
        yield started
    finally:
        started.end()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def program(name: str) -> str:
    """The command of that name beside this Python."""
    return str(Path(sys.executable).with_name(name))


def descendants(pid: int) -> list[int]:
    """All processes below this one."""
    parents = {other: _parent(other) for other in _pids()}
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def command_line(pid: int) -> str:
    """How a process was started; empty if it is gone."""
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")


def has_ended(pid: int) -> bool:
    """Whether a process is gone, and with its last thread its locks."""
    return _status(pid, b"State") in (b"", b"Z", b"X") and _status(pid, b"Threads") in (b"", b"1")


def _parent(pid: int) -> int:
    return int(_status(pid, b"PPid") or 0)


def _status(pid: int, field: bytes) -> bytes:
    found = re.search(rb"^" + field + rb":\s*(\w+)", _read(pid, "status"), re.MULTILINE)
    return found.group(1) if found else b""


def _pids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _read(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:  # it has ended, or is somebody else's
        return b""


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _end_with_parent() -> None:
    """Linux ends this process when the test's own process is killed outright."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
