"""The page "Submit" validates text that is typed during the upload of the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from component.browser.browser_session import BrowserSession
from component.browser.sample_platform import sample_platform
from support.serving import Served


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with sample_platform(tmp_path_factory.mktemp("submit"), jobs=0, hosts=1) as served:
        yield served


def test_text_typed_during_the_upload_is_validated(
    api: Served, look: Callable[..., BrowserSession], tmp_path: Path
) -> None:
    code = tmp_path / "job.py"
    code.write_text("import clonos\n")
    page = look(api.url, api.admin).go("/submit")
    page.clock.install()
    uploads: list[Route] = []
    page.route("**/api/v1/artifacts", lambda route: uploads.append(route))
    with page.expect_request("**/api/v1/artifacts"):
        page.get_by_label("Code").set_input_files(code)
    page.get_by_label("Specification").fill("metadata: {name: 'not a name'}")
    page.clock.run_for(1000)  # longer than the pause after which typed text is validated

    expect(page.locator("#verdict")).to_contain_text("Choose the code")
    uploads[0].continue_()
    expect(page.locator("#verdict")).to_contain_text("Invalid")
    expect(page.get_by_role("button", name="Submit")).to_be_disabled()
