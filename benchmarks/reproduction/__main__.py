"""`make reproduction`: draws the figures and prints the tables of docs/reproduction.md anew.

The page names the command of each; they read the metrics in reproduction/.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.reproduction.page import PAGE, commands, renewed, run


def main() -> None:
    """Draws, and rewrites the page."""
    page = PAGE.read_text()
    for typed in commands(page, "plot"):
        print(run(typed.words), end="")
    PAGE.write_text(renewed(page))
    print(PAGE.relative_to(Path.cwd()))


if __name__ == "__main__":
    main()
