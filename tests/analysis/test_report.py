"""The page without a browser: what is in it, what is counted, and that nothing slips through."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedvarp.analysis import compact, group_runs, read_runs
from fedvarp.analysis.report import write_report
from fedvarp.analysis.report.participation import participation, staleness
from fedvarp.runs.directory import RunDirectory
from fedvarp.runs.errors import RunError
from some_runs import digits_runs, write_run

pytest.importorskip("plotly", reason="the extra fedvarp[plots] is not installed")


class Page(HTMLParser):
    """The words of a page outside its scripts, and the names of its elements and attributes."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.words = ""
        self.tags: set[str] = set()
        self.links: list[str] = []
        self._within = ""
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self._within = tag
        self.links += [value or "" for name, value in attributes if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if self._within not in ("script", "style"):
            self.words += data

    def handle_endtag(self, tag: str) -> None:
        self._within = ""


def data_of(file: Path) -> dict[str, Any]:
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', file.read_text(), re.DOTALL
    )
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def chart(file: Path, name: str) -> dict[str, Any]:
    (found,) = [chart for chart in data_of(file)["charts"] if chart["id"] == name]
    return dict(found)


@pytest.fixture(scope="module")
def real_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return digits_runs(tmp_path_factory.mktemp("real"))


def test_a_page_of_copies_claims_nothing_they_leave_out(real_runs: Path, tmp_path: Path) -> None:
    compact([real_runs], tmp_path / "copies")
    page = Page(write_report([tmp_path / "copies"], tmp_path / "page.html"))
    assert "6 runs of 20 rounds: FedAvg, MIFA, FedVARP." in page.words
    assert "these copies of runs leave it out" in page.words
    assert "every reply was finite" not in page.words


def test_the_page_is_complete_repeats_to_the_byte_and_leaves_no_draft(
    real_runs: Path, tmp_path: Path
) -> None:
    file = write_report([real_runs], tmp_path / "new" / "page.html", title="Digits, 2 of 100")
    assert [path.name for path in file.parent.iterdir()] == ["page.html"]
    page = Page(file)
    assert page.links == ["data:,"]  # no element loads anything
    assert "Digits, 2 of 100" in page.words
    assert "6 runs of 20 rounds: FedAvg, MIFA, FedVARP." in page.words
    assert "None: every reply was finite" in page.words
    again = write_report([real_runs], tmp_path / "again.html", title="Digits, 2 of 100")
    assert again.read_bytes() == file.read_bytes()
    assert len(file.read_bytes()) < 6_000_000


def test_curves_hold_the_mean_and_the_band_against_all_three_axes(tmp_path: Path) -> None:
    write_run(tmp_path / "0", [0.1, 0.2, 0.6], seed=0)
    write_run(tmp_path / "1", [0.1, 0.4, 0.8], seed=1)
    file = write_report([tmp_path / "0", tmp_path / "1"], tmp_path / "page.html")
    (line,) = chart(file, "test-accuracy")["lines"]
    assert line["y"] == pytest.approx([10, 30, 70])
    assert line["low"] == pytest.approx([10, 20, 60])
    assert line["high"] == pytest.approx([10, 40, 80])
    assert line["x"] == {"rounds": [0, 10, 20], "bytes": [0, 3000, 6000], "time": [2, 22, 42]}
    (memory,) = chart(file, "memory")["lines"]
    assert memory["y"] == [1000 + t for t in range(1, 21)]


def test_a_diverged_curve_has_gaps(tmp_path: Path) -> None:
    run = write_run(tmp_path / "0", train_loss=[2.0, None, None])
    (line,) = chart(write_report([run], tmp_path / "page.html"), "train-loss")["lines"]
    assert line["y"] == [2.0, None, None]


def test_time_is_offered_only_where_it_is_known(tmp_path: Path) -> None:
    run = write_run(tmp_path / "0", [0.1, 0.2], seconds=None)
    text = write_report([run], tmp_path / "page.html").read_text()
    assert 'value="bytes"' in text
    assert 'value="time"' not in text


def test_participation_by_hand(tmp_path: Path) -> None:
    # Clients 0 and 1 of 4 take part in each of 10 rounds, 2 and 3 never. So after round t the
    # stalest has waited t rounds, and the mean is (0 + 0 + t + t) / 4.
    run = write_run(tmp_path / "0", [0.1, 0.2], clients=(0, 1))
    (group,) = group_runs(read_runs([run])[0])
    found = participation(group)
    assert found is not None
    assert found.counts.tolist() == [2] + [0] * 9 + [2]
    np.testing.assert_allclose(found.max_staleness, range(1, 11))
    np.testing.assert_allclose(found.mean_staleness, np.arange(1, 11) / 2)


def test_participation_of_real_runs_against_a_loop_over_all_clients(
    real_runs: Path, tmp_path: Path
) -> None:
    for algorithm in ("fedvarp", "mifa"):
        (group,) = group_runs(read_runs([real_runs / f"{algorithm}-0"])[0])
        found = participation(group)
        assert found is not None
        last, times = np.zeros(100), np.zeros(100, dtype=int)
        for record in RunDirectory(real_runs / f"{algorithm}-0").metrics()[1:]:
            last[record["clients"]] = record["round"]
            times[record["clients"]] += 1
            t = record["round"]
            assert found.mean_staleness[t - 1] == pytest.approx((t - last).mean())
            assert found.max_staleness[t - 1] == (t - last).max()
        assert found.counts.tolist() == np.bincount(times).tolist()
    # All algorithms met the same clients, so one set of bars stands for them all.
    file = write_report([real_runs], tmp_path / "page.html")
    (bars,) = chart(file, "participation")["lines"]
    assert bars["groups"] == [0, 1, 2]
    assert bars["name"] == "all algorithms"
    # MIFA and FedVARP have equal tables; FedAvg has none.
    assert [line["groups"] for line in chart(file, "memory")["lines"]] == [[0], [1, 2]]


def test_staleness_against_a_loop_when_every_client_comes_round() -> None:
    generator = np.random.default_rng(0)
    cohorts = [generator.choice(5, size=2, replace=False).tolist() for _ in range(200)]
    cohorts[50] = []  # nobody was online
    mean, longest = staleness(cohorts, num_clients=5)
    last = np.zeros(5)
    for t, clients in enumerate(cohorts, start=1):
        last[clients] = t
        assert mean[t - 1] == pytest.approx((t - last).mean())
        assert longest[t - 1] == (t - last).max()


def test_many_participations_are_put_into_few_bars(tmp_path: Path) -> None:
    run = write_run(tmp_path / "0", [0.1] * 11)  # 100 rounds: 0 or 100 times
    bars = chart(write_report([run], tmp_path / "page.html"), "participation")["lines"][0]
    assert len(bars["y"]) <= 40
    assert sum(bars["y"]) == 4
    assert bars["x"]["rounds"][0] == "0–2"
    assert bars["y"][-1] == 2


def test_refused_replies_are_listed_with_their_reason(tmp_path: Path) -> None:
    run = write_run(tmp_path / "0", [0.1, 0.2], refused={"3": "not finite: inf"})
    words = Page(write_report([run], tmp_path / "page.html")).words
    assert "10 in all" in words
    assert "not finite: inf" in words
    many = write_run(tmp_path / "1", [0.1] * 12, refused={"3": "not finite"})
    assert "The first 100 of 110" in Page(write_report([many], tmp_path / "page.html")).words


def test_settings_and_their_differences(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "0", [0.1, 0.2], lr=0.1)
    write_run(tmp_path / "runs" / "1", [0.1, 0.2], lr=0.3, algorithm="fedavg")
    words = Page(write_report([tmp_path / "runs"], tmp_path / "page.html")).words
    differs, shared = words.split("What differs")[1].split("What all runs share")
    assert "local_sgd.lr" in differs
    assert "local_sgd.batch_size" not in differs
    assert "local_sgd.batch_size" in shared


def test_all_user_text_is_escaped(tmp_path: Path) -> None:
    evil = '</script><marquee onload="x">&amp;<b>'
    run = write_run(
        tmp_path / "<marquee>",
        [0.1, 0.2],
        algorithm=evil,
        settings={"data": {evil: evil}, "rounds": 99},
        refused={evil: evil},
    )
    file = write_report([run], tmp_path / "page.html", title=evil)
    page = Page(file)
    assert "marquee" not in page.tags
    assert "b" not in page.tags
    assert page.words.count(evil) >= 6  # title, headline, legend, tables, settings, refusals
    # plotly reads names as HTML: there it must come escaped once more.
    assert data_of(file)["groups"][0]["name"] == evil.replace("&", "&amp;").replace(
        "<", "&lt;"
    ).replace(">", "&gt;")


def test_a_report_of_nothing_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist"):
        write_report([tmp_path / "nowhere"], tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_without_plotly_the_command_that_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "0", [0.1, 0.2])
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.delitem(sys.modules, "plotly.offline", raising=False)
    with pytest.raises(ImportError, match=r'pip install "fedvarp\[plots\]"'):
        write_report([run], tmp_path / "page.html")
