"""A process that trains runs of a sweep: ``python -m fedvarp.experiments.sweep_worker [DATA]``.

It resumes each run that it is given on standard input, one line of JSON with its directory, and
writes how that ended to standard output, as one line of JSON. Runs follow each other in a process
because loading torch takes as long as a short run does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Final

from fedvarp.errors import sentence, wants_tracebacks
from fedvarp.system.processes import interrupt_on_sigterm, interrupt_once_on

SWEEP_IS_DEAD: Final = signal.SIGHUP
"""What a run of a sweep is sent when the sweep's process has died; it finishes its round then."""
INTERRUPTED_ALONE: Final = (
    "it was interrupted, though the sweep was not: by a SIGINT or SIGTERM of somebody else. Its "
    "rounds are kept; the same command again goes on"
)


def train_to_the_end(run: str | Path, data_dir: str | Path | None) -> str | None:
    """Resumes a run of a sweep, whoever it is that does so.

    Args:
        run: Its directory.
        data_dir: Where the data files are; None: in the folder of FEDVARP_DATA.

    Returns:
        Why the run did not come to its end, in a sentence; None if it did.
    """
    try:
        from fedvarp.experiments.resuming import resume

        stopped = resume(run, data_dir=data_dir, progress=False).stopped
    except KeyboardInterrupt:  # before the first round
        return INTERRUPTED_ALONE
    except Exception as error:
        if wants_tracebacks():
            traceback.print_exception(error)
        return sentence(error)
    return INTERRUPTED_ALONE if stopped == "interrupted" else None


def main() -> None:
    """The program: its argument is, if need be, the folder of the data."""
    given, report_to = os.dup(sys.stdin.fileno()), os.dup(sys.stdout.fileno())
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), sys.stdin.fileno())  # no run takes another's place by reading
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what others print is no report
    interrupt_on_sigterm()
    interrupt_once_on(SWEEP_IS_DEAD)
    data_dir = sys.argv[1] if len(sys.argv) > 1 else None
    with (
        os.fdopen(given) as runs,
        os.fdopen(report_to, "w") as reports,
        suppress(KeyboardInterrupt),  # between two runs
    ):
        for line in runs:
            error = train_to_the_end(json.loads(line), data_dir)
            reports.write(json.dumps({"error": error}) + "\n")
            reports.flush()


if __name__ == "__main__":
    main()
