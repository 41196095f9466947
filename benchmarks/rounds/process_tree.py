"""What a process and all its descendants take, from Linux's /proc."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType

PROC = Path("/proc")


def tree(root: int) -> set[int]:
    """The process and its descendants that are alive."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                # The command, in brackets, may hold spaces; the parent is the second field after.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended meanwhile
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, new = {root}, [root]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found.update(new)
    return found


def pss_mb(root: int) -> float:
    """Memory of a tree of processes, each shared page divided among those who share it."""
    total = 0
    for pid in tree(root):
        try:
            lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e6


class PeakMemory:
    """The largest PSS of a process tree while it is entered, looked at a few times a second."""

    def __init__(self, root: int, every: float = 0.1) -> None:
        self.mb = 0.0
        self._root = root
        self._every = every
        self._done = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._looking.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._looking.join()

    def _look(self) -> None:
        while not self._done.wait(self._every):
            self.mb = max(self.mb, pss_mb(self._root))
