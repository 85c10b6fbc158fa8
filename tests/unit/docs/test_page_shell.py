"""What the tests of pages rely on: the parts of a page, the comparison of outputs, and a shell that sees failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.page_shell import PageCommand, PageFile, Shell, is_shown, steps

PAGE = """
`shop/job.py` (short):

```python
import clonos
```

Then `job.yaml` has the rest:

```sh
first \\
  --long   # a comment
second
```

```text
… done
```
"""


def test_a_page_has_files_commands_and_outputs(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert steps(page) == [
        PageFile("shop/job.py", "import clonos\n"),
        PageCommand("first    --long"),
        PageCommand("second", "… done\n"),
    ]


@pytest.mark.parametrize(
    ("shown", "same"),
    [("a … c\nd", True), ("a b\nc", True), ("d\na", False), ("a b d", False), ("x", False)],
)
def test_shown_lines_come_in_their_order(shown: str, same: bool) -> None:
    assert is_shown(shown, "a b\n   c\nbetween\nd\n") == same


def test_a_command_that_fails_is_seen(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    try:
        shell.write(PageFile("folder/file", "text\n"))
        assert shell.type("cat folder/file") == "text\n\n"
        with pytest.raises(AssertionError, match="false: <<1"):
            shell.type("false")
        assert shell.type("echo again").strip() == "again"
    finally:
        shell.end()
