"""The diagrams of the documentation: each text is within its box, also in a wide font."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

DOCS = Path(__file__).parents[3] / "docs"
OVER = """() => {
  const box = (element) => { const { x, y, width, height } = element.getBBox(); return [x, y, x + width, y + height]; };
  const boxes = [...document.querySelectorAll("svg rect")].map(box).filter(([left, , right]) => right - left > 30);
  const within = (x, y, [left, top, right, bottom]) => left <= x && x <= right && top <= y && y <= bottom;
  const area = ([left, top, right, bottom]) => (right - left) * (bottom - top);
  return [...document.querySelectorAll("svg text")].filter((text) => {
    const [left, top, right, bottom] = box(text);
    const around = boxes.filter((each) => within((left + right) / 2, (top + bottom) / 2, each));
    const [own] = around.sort((a, b) => area(a) - area(b));
    return own && (left < own[0] + 2 || right > own[2] - 2);
  }).map((text) => text.textContent);
}"""


@pytest.mark.parametrize("file", sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.svg")))
def test_texts_are_within_their_boxes(chromium: Browser, file: str) -> None:
    page = chromium.new_page()
    page.set_content((DOCS / file).read_text().replace("system-ui", "'DejaVu Sans'"))
    over: Any = page.evaluate(OVER)
    page.close()
    assert over == []
