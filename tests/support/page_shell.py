"""The files, commands and outputs of a Markdown page, and a shell that runs them as a reader types them.

- A fence ``sh`` has commands. A fence ``text`` after it has the output of the last one, with ``…`` for what varies.
- A paragraph that begins with the name of a file in backticks and ends with a colon introduces a fence with the file.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
_STOP_TIMEOUT_S: Final = 300
_UNTIL_INTERRUPTED: Final = ("--watch", "job watch", "/events?")
_FENCE: Final = re.compile(
    r"(?:^`(?P<file>[\w./-]+)`[^\n]*:\n\n)?^```(?P<language>\w+)\n(?P<body>.*?)^```", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class PageFile:
    """A file that the reader of a page writes."""

    path: str
    text: str


@dataclass(frozen=True)
class PageCommand:
    """A command of a page, and the output that the page shows for it; empty: none."""

    line: str
    shown: str = ""


def steps(page: Path) -> list[PageFile | PageCommand]:
    """The files and commands of a page, in its order."""
    page_steps: list[PageFile | PageCommand] = []
    for fence in _FENCE.finditer(page.read_text()):
        if fence["file"]:
            page_steps.append(PageFile(fence["file"], fence["body"]))
        elif fence["language"] == "sh":
            page_steps += [PageCommand(line) for line in commands(fence["body"])]
        elif fence["language"] == "text":
            last = page_steps.pop()
            assert isinstance(last, PageCommand), f"{page}: no command precedes the output {fence['body']}"
            assert not last.shown, f"{page}: {last.line} has two outputs"
            page_steps.append(PageCommand(last.line, fence["body"]))
    return page_steps


def file_of(page: Path, path: str) -> PageFile:
    """A file that the reader of a page writes."""
    return next(step for step in steps(page) if isinstance(step, PageFile) and step.path == path)


def blocks(page: Path, language: str) -> list[str]:
    """The fences of a page that are in a language."""
    return [fence["body"] for fence in _FENCE.finditer(page.read_text()) if fence["language"] == language]


def commands(block: str) -> list[str]:
    """The block's commands, without comments; lines joined by a backslash are one command."""
    lines = block.replace("\\\n", " ").splitlines()
    return [line for line in (re.sub(r"\s+#\s.*", "", line).strip() for line in lines) if line]


def is_shown(shown: str, printed: str) -> bool:
    """Whether a command printed the lines that the page shows, in their order; others may be between them.

    The width of spaces, and where a line was broken, do not matter.
    """
    lines = (".*?".join(map(re.escape, " ".join(line.split()).split("…"))) for line in shown.splitlines())
    return re.search(".*?".join(lines), " ".join(printed.split())) is not None


class Shell:
    """The shell of a user with an empty home and an empty working directory.

    Args:
        home: Home of the user.
        programs: Folder with ``clonos`` and ``python``; default: this process's.
    """

    def __init__(self, home: Path, programs: Path = Path(sys.executable).parent) -> None:
        self.home = home
        self.work = home / "work"
        self.work.mkdir()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("CLONOS_")}
        self.environment |= {
            "HOME": str(home),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
            "PATH": f"{programs}:{self.environment['PATH']}",
        }
        self._shell = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.work,
            env=self.environment,
            text=True,
            start_new_session=True,
        )

    @property
    def session(self) -> int:
        """The session of the shell and of the processes that its commands start."""
        return self._shell.pid

    def write(self, file: PageFile) -> None:
        """Write a file to the working directory."""
        path = self.work / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)

    def type(self, command: str) -> str:
        """The output of a command that must succeed. Commands that run until Ctrl-C get SIGTERM after 20 s."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        if any(part in command for part in _UNTIL_INTERRUPTED) and "job.recovery.ended" not in command:
            command = f"timeout --preserve-status 20 {command}"
        elif "/events?" in command:
            command = f"timeout 240 {command} | grep -m 1 job.recovery.ended"
        print(f"$ {command}", flush=True)
        self._shell.stdin.write(f"{command}\nstatus_of_command=$?; echo; echo '<<'$status_of_command\n")
        self._shell.stdin.flush()
        output = []
        for line in self._shell.stdout:
            if line.startswith("<<"):
                break
            output.append(line)
        text = "".join(output)
        print(text, flush=True)
        interrupted = command.startswith("timeout --preserve-status")
        assert line.strip() in ("<<0", "<<143" if interrupted else "<<0"), f"{command}: {line}"
        return text

    def json(self, command: str) -> Any:
        """The output of a command that prints JSON."""
        return json.loads(self.type(command))

    def rows(self, topic: str) -> list[str]:
        """The records of a topic with a key, as a read_committed reader sees them: key, tab, value."""
        return [line for line in self.type(f"clonos kafka consume {topic}").splitlines() if "\t" in line]

    def end(self) -> None:
        """Kill the shell and the processes of its session."""
        os.killpg(self._shell.pid, signal.SIGKILL)
        self._shell.communicate()


@contextmanager
def shell_of(home: Path) -> Iterator[Shell]:
    """A shell where a page may start Kafka or a platform, which are stopped at the end."""
    user = Shell(home)
    try:
        yield user
    finally:
        user.end()
        # Not in the shell, which may be in the middle of a command that failed.
        stop = ["bash", "-c", "clonos down && clonos kafka stop"]
        subprocess.run(stop, env=user.environment, cwd=user.work, check=True, timeout=_STOP_TIMEOUT_S)
