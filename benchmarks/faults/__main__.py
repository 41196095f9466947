"""``python -m benchmarks.faults CAMPAIGN …``: throws faults at real runs and counts what they cost.

A campaign is a module of this package with a ``main(arguments)`` that prints its counts and returns
the number of things that should not have happened: the counts of docs/reliability.md.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Final

CAMPAIGNS: Final[dict[str, str]] = {
    "replies": "broken replies and lies, at Flower strategies",
    "kills": "processes killed, and calls that fail, at every storage call of a run",
    "power": "power failures: what had not been waited for is lost, in part and in any order",
    "damage": "flipped bits, lost pages, cut-off and missing files of runs",
}
"""Module: what it throws, at what."""


def main() -> int:
    """Runs the campaign that is named.

    Returns:
        The exit code: 0 if nothing went wrong that should not.
    """
    told = "\n".join(f"  {name:8} {what}" for name, what in CAMPAIGNS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults",
        description=__doc__,
        epilog=f"campaigns:\n{told}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("campaign", choices=list(CAMPAIGNS))
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the campaign")
    given = parser.parse_args()
    module = importlib.import_module(f"benchmarks.faults.{given.campaign}")
    return min(int(module.main(given.arguments)), 1)


if __name__ == "__main__":
    sys.exit(main())
