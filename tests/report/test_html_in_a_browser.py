"""The HTML view in headless Chromium: on a phone, in the dark, without scripts, without a network."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from example import compared, everything, holding, pictured, report, unchanged

from gradoracle.model.verdict import Report
from gradoracle.report.formats import render

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver (make browser)"),
    pytest.mark.xdist_group("browser"),
]
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
)  # fmt: skip
PAGES = {
    "faults": [pictured(), everything()],
    "green": [report(holding())],
    "open": [report()],
    "gate": [compared(), unchanged()],
}
CONTRAST = """
function rgb(text) { const m = text.match(/[\\d.]+/g).map(Number); return m.length > 3 && m[3] === 0 ? null : m; }
function light(c) { const [r, g, b] = c.slice(0, 3).map(x => { x /= 255;
  return x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; }
function ground(e) {
  for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c) return c; }
  return [255, 255, 255]; }
const found = [];
for (const e of document.querySelectorAll('body *')) {
  if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || !e.getClientRects().length) continue;
  if (e.closest('svg') && e.tagName.toLowerCase() !== 'text') continue;
  const style = getComputedStyle(e), ink = rgb(e.closest('svg') ? style.fill : style.color), back = ground(e);
  const [a, b] = [light(ink), light(back)].sort((x, y) => y - x);
  found.push([(a + 0.05) / (b + 0.05), e.tagName + ' ' + e.textContent.slice(0, 40)]);
}
return found;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver

    chosen = webdriver.ChromeOptions()
    chosen.binary_location = CHROMIUM
    chosen.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    for word in (*QUIET, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        chosen.add_argument(word)
    driver = webdriver.Chrome(options=chosen, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Any:
    """Opens reports on a screen of this width, in the dark or not, and gives the browser."""

    def see(reports: list[Report], width: int = 360, dark: bool = False) -> Any:
        file = tmp_path / "report.html"
        file.write_text(render(reports, "html"), encoding="utf-8")
        screen = {"width": width, "height": 740, "deviceScaleFactor": 1, "mobile": width < 600}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        browser.get_log("browser")
        browser.get_log("performance")
        browser.get(file.as_uri())
        return browser

    return see


@pytest.mark.parametrize("width", [320, 360, 1200])
@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_as_wide_as_its_screen_and_the_verdict_on_the_first(opened: Any, name: str, width: int) -> None:
    seen = opened(PAGES[name], width)
    assert seen.execute_script("return document.documentElement.scrollWidth") <= width
    box = seen.execute_script("return document.querySelector('h1').getBoundingClientRect().toJSON()")
    assert box["top"] >= 0 and box["bottom"] <= 740 / 2 and box["right"] <= width
    small = seen.execute_script(
        "return [...document.querySelectorAll('p, dd, td, li, h1, h3')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(small) >= 12


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_every_text_stands_out_from_its_ground(opened: Any, name: str, dark: bool) -> None:
    seen = opened(PAGES[name], 1000, dark)
    seen.execute_script("document.querySelectorAll('details').forEach(e => e.open = true)")
    ground = seen.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground)[:3])) < 120) == dark
    found = seen.execute_script(CONTRAST)
    assert len(found) > 3
    assert [text for ratio, text in found if ratio < 4.5] == []


def test_pictures_fit_and_are_drawn(opened: Any) -> None:
    seen = opened(PAGES["faults"], 360)
    boxes = seen.execute_script(
        "return [...document.querySelectorAll('figure svg')].map(e => e.getBoundingClientRect().toJSON())"
    )
    assert len(boxes) == 6 and all(200 <= box["width"] <= 360 and box["height"] >= 80 for box in boxes)
    images = seen.execute_script(
        "return [...document.querySelectorAll('svg image')].map(e => e.getBoundingClientRect().toJSON())"
    )
    assert len(images) == 2 and all(image["width"] > 200 for image in images)
    texts = seen.execute_script("return [...document.querySelectorAll('svg text')].map(e => e.textContent.trim())")
    assert {"T", "D", "got"} <= set(texts)
    assert all(any(text.startswith(label) for text in texts) for label in ("error in sigma", "true (1 more NaN"))


def test_nothing_is_fetched_and_nothing_complains(opened: Any) -> None:
    seen = opened(PAGES["faults"], 1000)
    assert [entry["message"] for entry in seen.get_log("browser")] == []
    messages = [entry["message"] for entry in seen.get_log("performance")]
    asked = [message for message in messages if '"Network.requestWillBeSent"' in message]
    urls = {url for message in asked for url in re.findall(r'"url":"([^"]+)"', message)}
    assert any(url.startswith("file:") for url in urls)
    assert [url for url in urls if not url.startswith(("file:", "data:"))] == []
    assert seen.execute_script("return document.scripts.length") == 0


def test_folds_open_without_scripts(opened: Any) -> None:
    seen = opened(PAGES["green"], 1000)
    fold = seen.find_element("css selector", "details")
    assert fold.get_attribute("open") is None
    fold.find_element("css selector", "summary").click()
    assert fold.get_attribute("open") is not None
