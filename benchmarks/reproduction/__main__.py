"""`make reproduction`: draws the figures and prints the tables of the pages of results anew.

The pages name the command of each; they read the metrics in reproduction/.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.reproduction.page import PAGES, commands, renewed, run


def main() -> None:
    """Draws, and rewrites the pages."""
    for file in PAGES:
        page = file.read_text()
        for typed in commands(page, "plot"):
            print(run(typed.words), end="")
        file.write_text(renewed(page))
        print(file.relative_to(Path.cwd()))


if __name__ == "__main__":
    main()
