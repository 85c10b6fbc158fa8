"""`clonos open` against a fake control plane, with a program instead of the browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from clonos import errors
from component.cli.conftest import Clonos
from component.cli.service import FakeService, problem

CODE = "c0de"


def test_the_link_has_the_code_in_its_fragment(clonos: Clonos, service: FakeService) -> None:
    service.add("wordcount")
    link = urlsplit(clonos("open", "wordcount", "--print").stdout.strip())
    assert f"{link.scheme}://{link.netloc}" == service.url
    assert link.path == "/signin"
    assert parse_qs(link.query) == {"next": ["/jobs/wordcount"]}, "no part that is sent has the code"
    assert parse_qs(link.fragment) == {"code": [CODE]}
    assert parse_qs(urlsplit(clonos("open", "--print").stdout.strip()).query) == {"next": ["/"]}
    with pytest.raises(errors.NotFound):
        clonos("open", "wordcuont", "--print")


def test_the_browser_gets_a_file_that_only_the_user_can_read(service: FakeService, clonos: Clonos, home: Path) -> None:
    """In a process of its own, because the library reads BROWSER once."""
    arguments = home.with_name("arguments")
    browser = home.with_name("browser")
    browser.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {arguments}\n')
    browser.chmod(0o700)
    process = subprocess.run(
        [sys.executable, "-m", "clonos", "open"],
        env={**os.environ, "BROWSER": str(browser)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == 0, process.stderr
    assert "Press “Sign in by link”" in process.stdout
    (address,) = arguments.read_text().split()
    assert CODE not in address + process.stdout, "others can read the command line of the browser"
    file = Path(urlsplit(address).path)
    assert file.stat().st_mode & 0o777 == 0o600
    match = re.search(r'content="0; url=([^"]+)"', file.read_text())
    assert match
    assert match[1] == f"{service.url}/signin?next=%2F#code={CODE}"
    assert '<meta name="referrer" content="no-referrer">' in file.read_text()


def test_without_a_browser_the_link_is_printed(
    clonos: Clonos, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webbrowser.open", lambda _url: False)
    result = clonos("open")
    assert result.stdout.startswith(f"{service.url}/signin?")
    assert "within a minute" in result.stderr


def test_a_control_plane_without_tokens_needs_no_code(clonos: Clonos, service: FakeService) -> None:
    service.faults.append(problem(404, "not-found", "There is no token local."))
    assert clonos("open", "--print").stdout.strip() == f"{service.url}/"
