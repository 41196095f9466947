"""What a sweep tries: every combination of some values of some settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from fedvarp.analysis.units import in_short
from fedvarp.experiments.files import SHORT_NAMES
from fedvarp.settings.calls import split_calls
from fedvarp.settings.problems import SettingsError
from fedvarp.system.parsing import parse_number

PAPER_GRID: Final = (1e-1, 10**-1.5, 1e-2, 10**-2.5, 1e-3)
ALGORITHMS: Final = ("fedavg", "fedvarp", "cluster_fedvarp", "mifa", "scaffold")
"""What is swept unless it is said: the paper's algorithms over the paper's rates."""

OPTIONS: Final = {"algorithm": "--algorithms", "local_sgd.lr": "--client-lrs", "seed": "--seeds"}
"""Settings with an option of their own."""


@dataclass(frozen=True)
class Grid:
    """What a sweep tries: each algorithm with each rate, each seed, and each of the other values.

    Attributes:
        algorithms: Their names.
        client_lrs: η_c; by default the paper's grid.
        seeds: Of the draws; the same seed gives all algorithms the same cohorts and batches.
        others: Other settings by their dotted names, and the values to try, as --set takes them.

    Raises:
        SettingsError: One of them is empty, or has a value twice.

    >>> Grid.parse("fedavg,fedvarp", "10^-1,0.03", "0,1").client_lrs
    (0.1, 0.03)
    >>> Grid.parse(None, None, None, ["local_sgd.epochs=1,5"]).others
    (('local_sgd.epochs', ('1', '5')),)
    """

    algorithms: tuple[str, ...] = ALGORITHMS
    client_lrs: tuple[float, ...] = PAPER_GRID
    seeds: tuple[int, ...] = (0,)
    others: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def __post_init__(self) -> None:
        for name, values in (
            ("algorithms", self.algorithms),
            ("client learning rates", [f"{lr:g}" for lr in self.client_lrs]),
            ("seeds", self.seeds),
            *((f"values of {name}", values) for name, values in self.others),
        ):
            if not values or len(set(values)) < len(values):
                raise SettingsError(
                    f"A sweep needs {name} that differ, at least one; got {list(values)}."
                )

    @classmethod
    def parse(
        cls,
        algorithms: str | None,
        client_lrs: str | None,
        seeds: str | None,
        axes: Sequence[str] = (),
    ) -> Grid:
        """Reads a grid from texts separated by commas.

        Args:
            algorithms: Such as "fedavg,fedvarp".
            client_lrs: Such as "0.1,10^-1.5": rates may be powers, as the paper writes its grid.
            seeds: Such as "0,1,2".
            axes: Any setting and its values, such as "local_sgd.epochs=1,5".

        Returns:
            The grid; what was not given is as in `Grid`.

        Raises:
            SettingsError: A text is no number, or the grid is empty or repeats itself.
        """
        told = {"algorithm": algorithms, "local_sgd.lr": client_lrs, "seed": seeds}
        given = {name: values for name, values in told.items() if values is not None}
        for text in axes:
            key, equals, values = text.partition("=")
            name = SHORT_NAMES.get(key.strip(), key.strip())
            if not equals or not name:
                raise SettingsError(
                    f"--grid {text}: write key=value,value, such as --grid local_sgd.epochs=1,5."
                )
            if name in given:
                both = f"{OPTIONS[name]} and --grid {name}" if name in OPTIONS else "--grid, twice,"
                raise SettingsError(f"--grid {text}: {both} say what values to try; give one.")
            given[name] = values
        others = tuple((n, tuple(_values(v))) for n, v in given.items() if n not in OPTIONS)
        try:
            known = cls()
            return cls(
                algorithms=tuple(split_calls(given.get("algorithm", ",".join(known.algorithms)))),
                client_lrs=tuple(map(parse_number, _parts(given["local_sgd.lr"])))
                if "local_sgd.lr" in given
                else known.client_lrs,
                seeds=tuple(int(text) for text in _parts(given.get("seed", "0"))),
                others=others,
            )
        except SettingsError:
            raise
        except ValueError as error:
            raise SettingsError(
                f"A sweep takes numbers separated by commas, such as --client-lrs 0.1,10^-1.5 and "
                f"--seeds 0,1,2; {error}."
            ) from error

    def points(self) -> Iterator[tuple[dict[str, str], list[str]]]:
        """Every combination, in the order of the options.

        Yields:
            The values of the other settings, and ``key=value`` texts of all of them.
        """
        names = [name for name, _ in self.others]
        of_others = list(product(*(values for _, values in self.others)))
        for algorithm, other, lr, seed in product(
            self.algorithms, of_others, self.client_lrs, self.seeds
        ):
            told = dict(zip(names, other, strict=True))
            yield (
                told,
                [
                    f"algorithm={json.dumps(algorithm)}",
                    *(f"{name}={value}" for name, value in told.items()),
                    f"local_sgd.lr={lr!r}",
                    f"seed={seed}",
                ],
            )

    def refuse_set(self, overrides: Sequence[str]) -> None:
        """Refuses settings that are to be one thing for all runs, and are swept.

        Args:
            overrides: ``key=value`` texts.

        Raises:
            SettingsError: One is swept; says by which option.
        """
        for text in overrides:
            key = text.partition("=")[0].strip()
            name = SHORT_NAMES.get(key, key)
            option = OPTIONS.get(name, f"--grid {name}" if name in dict(self.others) else None)
            if option is not None:
                raise SettingsError(f"--set {text}: a sweep is told so by {option}.")


def in_words(others: Mapping[str, str]) -> str:
    """The values of some settings, short, to stand behind an algorithm.

    >>> in_words({"local_sgd.epochs": "5", "server.lr": "0.0031622776601683794"})
    'epochs=5, server.lr=10^-2.5'
    """
    names = {name: name if name.endswith(".lr") else _short(name, others) for name in others}
    return ", ".join(f"{names[name]}={_number_in_short(value)}" for name, value in others.items())


def in_a_file_name(others: Mapping[str, str]) -> str:
    """The same as the end of a directory's name.

    >>> in_a_file_name({"local_sgd.epochs": "5", "table.codec": "int8"})
    '-epochs5-codecint8'
    """
    said = (f"-{_short(name, others)}{value}" for name, value in others.items())
    return re.sub(r"[^\w.+-]+", "-", "".join(said)).rstrip("-")


def _short(name: str, among: Mapping[str, str]) -> str:
    last = name.rpartition(".")[2]
    return name if sum(other.rpartition(".")[2] == last for other in among) > 1 else last


def _number_in_short(value: str) -> str:
    """As people write it, where that is the same number; all else as it is."""
    try:
        short = in_short(float(value))
    except ValueError:
        return value
    return short if parse_number(short) == float(value) else value


def _values(text: str) -> list[str]:
    """Values as --set takes them; lists and calls keep their commas, powers become numbers."""
    parts = re.split(r",(?![^\[\](){}]*[\])}])", text)
    return [_without_power(part.strip()) for part in parts if part.strip()]


def _without_power(value: str) -> str:
    """A power as the number that it is, which directories are named after; all else as it is."""
    try:
        return repr(parse_number(value)) if "^" in value else value
    except ValueError:
        return value


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
