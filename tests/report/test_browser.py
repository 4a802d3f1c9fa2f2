"""The report in headless Chromium: no complaints, no requests, no sideways scrolling, readable in light
and dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ddtree_deploy.report import bundle, html
from tests.need import lacking

from . import samples
from .browser import Page, browser, executable

pytestmark = pytest.mark.browser

# Contrast of each text element against the nearest painted background, by the WCAG formula.
CONTRAST = """
(() => {
  const rgb = c => (c.match(/[\\d.]+/g) || []).map(Number);
  const lum = c => { const [r, g, b] = c.slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126*r + 0.7152*g + 0.0722*b; };
  const ground = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length && (c.length < 4 || c[3] > 0)) return c; } return [255, 255, 255]; };
  const low = [];
  for (const e of document.body.querySelectorAll('*')) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || e.tagName === 'SCRIPT') continue;
    if (e.closest('details:not([open])') && e.tagName !== 'SUMMARY') continue;
    const style = getComputedStyle(e), svg = e instanceof SVGElement;
    if (svg && e.tagName !== 'text' && e.tagName !== 'tspan') continue;
    const a = lum(rgb(svg ? style.fill : style.color)), b = lum(ground(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(e.tagName + ' ' + e.textContent.trim().slice(0, 40) + ' ' + ratio.toFixed(2));
  }
  return low;
})()
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if not executable():
        lacking("no Chromium here: apt-get install chromium", "BROWSER")
    with browser(tmp_path_factory.mktemp("browser") / "profile") as found:
        yield found


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("reports")
    made = {}
    for kind in samples.KINDS:
        found = bundle.load(samples.write_run(folder / "runs", kind))
        made[kind] = folder / f"{kind}.html"
        made[kind].write_text(html.render(found), encoding="utf-8")
    return made


@pytest.mark.parametrize("phone", [False, True], ids=["desk", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("kind", samples.KINDS)
def test_a_report_shows_well(
    page: Page, reports: dict[str, Path], kind: str, dark: bool, phone: bool
) -> None:
    width = 390 if phone else 1000
    page.open(reports[kind], width=width, height=844, dark=dark, phone=phone)
    assert page.complaints == []
    assert page.value("document.documentElement.scrollWidth") <= width
    paper = page.value("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(17, 20, 24)" if dark else "rgb(255, 255, 255)")
    assert page.value(CONTRAST) == []
    assert page.screenshot(0, width, 400).startswith(b"\x89PNG")


def test_plots_are_drawn_in_the_page_s_colours(page: Page, reports: dict[str, Path]) -> None:
    fills = {}
    for dark in (False, True):
        page.open(reports["good"], width=1000, height=844, dark=dark, phone=False)
        dots = "[...document.querySelectorAll('#chart-plot-rounds .plot .dot')]"
        assert page.value(f"{dots}.length") == 16
        fills[dark] = page.value(f"[...new Set({dots}.map(d => getComputedStyle(d).fill))]")
    assert len(fills[False]) == len(fills[True]) == 2
    assert not set(fills[False]) & set(fills[True])


def test_text_of_the_plots_stays_inside_them(page: Page, reports: dict[str, Path]) -> None:
    outside = """
    [...document.querySelectorAll('figure svg text')].filter(t => {
      const a = t.getBoundingClientRect(), b = t.closest('figure').getBoundingClientRect();
      return a.width > 0 && (a.left < b.left || a.right > b.right || a.top < b.top || a.bottom > b.bottom);
    }).map(t => t.textContent)
    """
    for kind in ("good", "slow", "noisy"):
        page.open(reports[kind], width=390, height=844, dark=False, phone=True)
        assert page.value(outside) == []


def test_a_browser_that_finds_fault_says_so(page: Page, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    broken.write_text("<script>console.error('no'); nosuch()</script><img src='missing.png'>")
    page.open(broken, width=400, height=400, dark=False, phone=False)
    assert len(page.complaints) >= 3
