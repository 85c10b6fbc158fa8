"""A Java that PySpark's own launcher can start, for tests of programs that build their session themselves."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from clonos.embedded.java import java_binary, java_major

_UNSAFE_MAJOR = 24


def java_home(folder: Path) -> str:
    """The user's ``JAVA_HOME``, or one in `folder` that runs the wheel's Java.

    PySpark asks for a module that the wheel's Java lacks and does not need; Arrow needs what it has locked away.
    """
    if os.environ.get("JAVA_HOME"):
        return os.environ["JAVA_HOME"]
    java = java_binary()
    flags = ["-Dio.netty.noUnsafe=false", "--sun-misc-unsafe-memory-access=allow"]
    more = shlex.join([*flags, "--enable-native-access=ALL-UNNAMED"]) if java_major(java) >= _UNSAFE_MAJOR else ""
    script = folder / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        "#!/usr/bin/env bash\nwanted=()\n"
        'for one in "$@"; do [ "$one" = --add-modules=jdk.incubator.vector ] || wanted+=("$one"); done\n'
        f'exec {shlex.quote(str(java))} {more} "${{wanted[@]}}"\n'
    )
    script.chmod(0o755)
    return str(folder)
