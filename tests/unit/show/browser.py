"""Pages in a real browser: headless Chromium of the system, driven by Playwright; tests skip where one is lacking."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDE, PHONE = 1200, 390
"""Widths that nothing may be cut at, CSS pixels."""

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")

CUT = """() => {
  const found = [];
  const edge = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > edge) found.push(`the page: ${document.documentElement.scrollWidth} px`);
  for (const own of document.querySelectorAll('main *, body > *')) {
    if (own.closest('details:not([open])') || own.closest('[aria-hidden=true]')) continue;
    const box = own.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const name = `${own.tagName.toLowerCase()}.${own.getAttribute('class') || ''}`;
    const svg = own.ownerSVGElement;
    const frame = svg ? svg.getBoundingClientRect() : null;
    if (!svg && (box.right > edge + 1 || box.left < -1)) found.push(`${name} ends at ${box.right} of ${edge}`);
    if (svg && own.tagName === 'text' && (box.right > frame.right + 2 || box.left < frame.left - 2))
      found.push(`text "${own.textContent}" beyond its drawing`);
    const style = getComputedStyle(own);
    const hides = style.overflowX !== 'visible' && !svg && !own.matches('svg');
    if (hides && own.scrollWidth > own.clientWidth + 1)
      found.push(`${name} shows ${own.clientWidth} of ${own.scrollWidth} px`);
  }
  return found.slice(0, 20);
}"""
"""What of a page is not to be seen without scrolling sideways, in words."""


def program() -> str:
    """Where the browser is; skips where there is none."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        pytest.skip("no Chromium here (apt install chromium)")
    return found


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
    """A browser, for as long as the block lasts; skips where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="no Playwright here (pip install playwright)")
    arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


class Shown:
    """A page that is open. said: what its console said of errors and warnings, and what it raised."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.said: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("requestfailed", self._failed)

    def cut(self) -> list[str]:
        """What is not to be seen without scrolling sideways, in words."""
        found: list[str] = self.page.evaluate(CUT)
        return found

    def _failed(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # which is the page's own doing
            self.said.append(f"not loaded: {request.url}: {request.failure}")

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.said.append(message.text)


@contextlib.contextmanager
def showing(browser: Browser, address: Path | str, width: int = WIDE, dark: bool = False) -> Iterator[Shown]:
    """A file or an address, as wide as asked and in the colours asked for."""
    url = address.resolve().as_uri() if isinstance(address, Path) else address
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
    )
    page.set_default_timeout(30_000)  # other tests use the machine, too
    try:
        shown = Shown(page)
        page.goto(url)
        yield shown
    finally:
        page.close()


def contrast(page: Page, selector: str) -> float:
    """Of an element's letters against the page's colour, as WCAG 2 has it: 1 to 21."""
    found: float = page.evaluate(
        """selector => {
          const light = colour => {
            const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map(value => value / 255)
              .map(value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
            return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
          };
          const ink = light(getComputedStyle(document.querySelector(selector)).color);
          const paper = light(getComputedStyle(document.body).backgroundColor);
          return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
        }""",
        selector,
    )
    return found
