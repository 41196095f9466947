"""The page in a real browser: it draws, it answers to clicks, it fits a phone, it stays offline."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedvarp.analysis.report import write_report
from some_runs import digits_runs, write_run

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright, which drives the browser, is not installed"
)
pytest.importorskip("plotly", reason="the extra fedvarp[plots] is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")  # fmt: skip # noqa: E501
if CHROMIUM is None:
    pytest.skip("no Chromium is installed to open the page in", allow_module_level=True)

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 812}
EVIL = "<img src=x onerror='document.title=1'>"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = digits_runs(tmp_path_factory.mktemp("runs"))
    return write_report([folder], tmp_path_factory.mktemp("report") / "page.html")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        arguments = [
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
        ]  # fmt: skip
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield opened
        opened.close()


class Tab:
    """The page in a tab of its own, with everything that it complained about and asked for."""

    def __init__(self, browser: Any, file: Path, size: dict[str, int]) -> None:
        self.page = browser.new_page(viewport=size)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("body[data-drawn=true]", timeout=20_000)

    def curves(self, chart: str = "test-accuracy") -> int:
        """How many curves, not counting bands, can be seen."""
        return int(self.page.locator(f"#{chart} .scatterlayer .trace path.js-line").count())

    def plotted(self, chart: str, what: str) -> Any:
        """Something that plotly holds about a chart, such as _fullLayout.yaxis.type."""
        return self.page.evaluate(f"document.getElementById('{chart}').{what}")


@pytest.fixture(scope="module")
def open_tab(browser: Any, report: Path) -> Iterator[Tab]:
    opened = Tab(browser, report, DESKTOP)  # takes seconds, as plotly is large: once for all tests
    yield opened
    opened.page.close()


@pytest.fixture
def tab(open_tab: Tab, report: Path) -> Iterator[Tab]:
    yield open_tab
    # Whatever a test did: nothing to complain about, and no request but for the page itself.
    assert open_tab.complaints == []
    assert open_tab.requests == [report.as_uri()]
    for hidden in open_tab.page.locator("#legend button[aria-pressed=false]").all():
        hidden.click()
    open_tab.page.get_by_label("rounds", exact=True).check()
    open_tab.page.get_by_label("logarithmic").uncheck()


def visible_lines(tab: Tab, chart: str) -> list[str]:
    drawn = tab.plotted(chart, "_fullData.map(t => [t.name, t.visible, t.line?.width])")
    return [name for name, visible, width in drawn if visible is True and width]


def test_it_renders_all_charts(tab: Tab) -> None:
    for chart in ("train-loss", "test-accuracy", "test-loss", "staleness", "memory"):
        assert tab.curves(chart) > 0, chart
    assert tab.page.locator("#participation .barlayer .point path").count() > 0
    assert visible_lines(tab, "test-accuracy") == ["FedAvg", "MIFA", "FedVARP"]
    assert tab.page.locator("table").count() == 7


def test_a_legend_click_hides_a_curve_in_every_chart_and_another_brings_it_back(tab: Tab) -> None:
    before = tab.curves()
    button = tab.page.get_by_role("button", name="FedAvg")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert visible_lines(tab, "test-accuracy") == ["MIFA", "FedVARP"]
    assert visible_lines(tab, "train-loss") == ["MIFA", "FedVARP"]
    # Its line and the two edges of its band are gone from the screen too.
    assert tab.curves() == before * 2 / 3
    # The line that stands for all algorithms stays while one of them is shown.
    assert len(visible_lines(tab, "staleness")) == 2
    button.click()
    assert tab.curves() == before
    assert visible_lines(tab, "test-accuracy") == ["FedAvg", "MIFA", "FedVARP"]


def test_the_legend_works_by_keyboard(tab: Tab) -> None:
    tab.page.get_by_role("button", name="MIFA").focus()
    tab.page.keyboard.press("Space")
    assert visible_lines(tab, "test-accuracy") == ["FedAvg", "FedVARP"]


def test_the_axis_can_be_rounds_bytes_or_time(tab: Tab) -> None:
    end = "_fullData.find(t => t.line.width > 0).x.at(-1)"
    assert tab.plotted("train-loss", end) == 20
    tab.page.get_by_label("bytes").check()
    assert tab.plotted("train-loss", end) == 20 * 2 * 2 * 650 * 4
    assert "2" in tab.page.locator("#train-loss .xtick").last.text_content()
    tab.page.get_by_label("time").check()
    assert 0 < tab.plotted("train-loss", end) < 60
    # Memory and staleness are told round by round.
    assert tab.plotted("staleness", end) == 20


def test_the_loss_axis_can_be_logarithmic(tab: Tab) -> None:
    assert tab.plotted("train-loss", "_fullLayout.yaxis.type") == "linear"
    tab.page.get_by_label("logarithmic").check()
    assert tab.plotted("train-loss", "_fullLayout.yaxis.type") == "log"
    assert tab.plotted("test-accuracy", "_fullLayout.yaxis.type") == "linear"
    ticks = tab.page.locator("#train-loss .ytick").all_text_contents()
    assert ticks
    assert all(re_number(tick) in {1, 2, 5} for tick in ticks)


def re_number(tick: str) -> int:
    """The leading digit of 0.05, 2 or 1000."""
    return int(f"{float(tick):e}"[0])


def test_hovering_tells_the_figures(tab: Tab) -> None:
    box = tab.page.locator("#test-accuracy .nsewdrag").bounding_box()
    assert box is not None
    tab.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    words = tab.page.locator("#test-accuracy .hoverlayer").text_content()
    assert "FedVARP" in words
    assert "%" in words


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_it_fits_the_screen(browser: Any, report: Path, size: dict[str, int]) -> None:
    tab = Tab(browser, report, size)
    for details in tab.page.locator("summary").all():
        details.click()
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    for chart in tab.page.locator(".chart").all():
        box = chart.bounding_box()
        assert box is not None
        assert box["width"] >= min(330, size["width"] - 24)
        assert box["x"] + box["width"] <= size["width"]
    # Text that one can read, and a wide table that scrolls in its own box.
    smallest = tab.page.evaluate(
        "Math.min(...[...document.querySelectorAll('main :not(svg *)')]"
        ".filter(e => e.innerText).map(e => parseFloat(getComputedStyle(e).fontSize)))"
    )
    assert smallest >= 12
    if size == PHONE:
        assert tab.page.evaluate(
            "[...document.querySelectorAll('.scroll')].some(e => e.scrollWidth > e.clientWidth)"
        )
    assert tab.complaints == []


def test_text_of_the_user_does_nothing(browser: Any, tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(
            tmp_path / str(seed),
            [0.1, 0.2],
            algorithm=EVIL,
            seed=seed,
            refused={EVIL: EVIL},
            settings={"name of": {EVIL: EVIL}, "rounds": 99},
        )
    file = write_report([tmp_path], tmp_path / "page.html", title=EVIL)
    tab = Tab(browser, file, DESKTOP)
    box = tab.page.locator("#test-accuracy .nsewdrag").bounding_box()
    assert box is not None
    tab.page.mouse.move(box["x"] + 1, box["y"] + box["height"] / 2)  # round 0
    assert EVIL in tab.page.locator("#test-accuracy .hoverlayer").text_content()
    assert tab.page.locator("img[src=x]").count() == 0
    assert tab.page.title() == EVIL
    assert tab.complaints == []
