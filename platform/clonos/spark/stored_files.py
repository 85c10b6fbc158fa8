"""Files and folders of Hadoop's file systems, such as HDFS and S3, for savepoints and rehearsals.

On a mounted file system, `clonos.spark.local_folder` does the same without a JVM.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, Protocol, Self

from py4j.protocol import Py4JJavaError

_ABORTABLE: Final = "fs.capability.outputstream.abortable"
_DEEPEST_CAUSE: Final = 10
# Of HDFS and of object stores.
_DENIED: Final = frozenset({"AccessControlException", "AccessDeniedException"})


class Folder(Protocol):
    """A folder with a checkpoint or savepoint: a `StoredFolder` or a `LocalFolder`; `StoredFolder` has the meanings."""

    location: str

    @property
    def is_store_of_objects(self) -> bool: ...  # noqa: D102
    def at(self, location: str) -> Self: ...  # noqa: D102
    def files(self) -> dict[str, int]: ...  # noqa: D102
    def exists(self, name: str = "") -> bool: ...  # noqa: D102
    def read_text(self, name: str) -> str | None: ...  # noqa: D102
    def texts_above(self, name: str) -> list[str | None]: ...  # noqa: D102
    def write_text(self, name: str, text: str) -> None: ...  # noqa: D102
    def copy(self, target: Self, names: Collection[str]) -> list[str]: ...  # noqa: D102
    def held(self, names: Collection[str]) -> contextlib.AbstractContextManager[Self]: ...  # noqa: D102
    def sync(self) -> None: ...  # noqa: D102
    def delete(self, name: str = "") -> None: ...  # noqa: D102
    def rename(self, target: Self) -> None: ...  # noqa: D102
    def siblings(self, suffix: str) -> list[Self]: ...  # noqa: D102


class StoredFolder:
    """One folder. Every method may raise `OSError`, with Hadoop's reason.

    Args:
        jvm: A JVM with Hadoop's and Clonos's classes.
        configuration: Hadoop's configuration, as a JVM object; it defines the file systems.
        location: Path or URI of the folder.
    """

    def __init__(self, jvm: Any, configuration: Any, location: str) -> None:
        self.location = location.rstrip("/")
        self._jvm = jvm
        self._conf = configuration
        self._path: Callable[..., Any] = jvm.org.apache.hadoop.fs.Path
        with _hadoop_errors():
            self._folder: Any = self._path(location)  # `file:///` without its last slashes is not a path
            self._fs: Any = self._folder.getFileSystem(configuration)

    def at(self, location: str) -> StoredFolder:
        """Another folder, with the same configuration."""
        return StoredFolder(self._jvm, self._conf, location)

    @property
    def is_store_of_objects(self) -> bool:
        """Whether a rename of a folder copies its files one by one, as on S3."""
        with _hadoop_errors():
            return bool(self._fs.hasPathCapability(self._folder, _ABORTABLE))

    def files(self) -> dict[str, int]:
        """Path in the folder → size in bytes, of all files; empty if there is no folder."""
        with _hadoop_errors():
            lines: str = self._jvm.clonos.StoredFiles.list(self._folder, self._conf)
        sizes = (line.split(" ", 1) for line in lines.splitlines())
        return {name: int(size) for size, name in sizes}

    def exists(self, name: str = "") -> bool:
        """Whether the folder, or a file or folder in it, exists."""
        with _hadoop_errors():
            return bool(self._fs.exists(self._in(name)))

    def read_text(self, name: str) -> str | None:
        """Return the content of a file; None if there is none."""
        return self._text_of(self._in(name))

    def _text_of(self, file: Any) -> str | None:
        with _hadoop_errors():
            if not self._fs.exists(file):
                return None
            stream = self._fs.open(file)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def texts_above(self, name: str) -> list[str | None]:
        """Return the contents of the files `name` in the folders above this one, whether it exists or not.

        A file that the file system refuses to read counts as missing: a user may have rights below a prefix only.
        """
        texts: list[str | None] = []
        folder = self._folder.getParent()
        while folder is not None:
            with contextlib.suppress(PermissionError):
                texts.append(self._text_of(self._path(folder, name)))
            folder = folder.getParent()
        return texts

    def write_text(self, name: str, text: str) -> None:
        """Write or replace a file."""
        with _hadoop_errors():
            stream = self._fs.create(self._in(name), True)
            try:
                stream.write(text.encode())
            finally:
                stream.close()

    def copy(self, target: StoredFolder, names: Collection[str]) -> list[str]:
        """Copy files into another folder; returns the names of those that do not exist."""
        with _hadoop_errors():
            source, into = self._folder, target._folder
            missing: str = self._jvm.clonos.StoredFiles.copy(source, into, "\n".join(names), self._conf)
        return missing.splitlines()

    @contextlib.contextmanager
    def held(self, names: Collection[str]) -> Iterator[Self]:
        """Yield a folder with the files. They may be removed before the end: these file systems have no links."""
        yield self

    def sync(self) -> None:
        """Do nothing: a written file survives the crash of a host."""

    def delete(self, name: str = "") -> None:
        """Remove the folder, or a file or folder in it, if it exists."""
        with _hadoop_errors():
            self._fs.delete(self._in(name), True)

    def rename(self, target: StoredFolder) -> None:
        """Move the folder within its file system."""
        with _hadoop_errors():
            moved = self._fs.rename(self._folder, target._folder)
        if not moved:
            raise OSError(f"{self.location} could not be renamed to {target.location}")

    def siblings(self, suffix: str) -> list[StoredFolder]:
        """Return the folders whose name begins with this one's name and `suffix`."""
        own = str(self._folder.getName())
        with _hadoop_errors():
            names = [str(status.getPath().getName()) for status in self._fs.listStatus(self._folder.getParent())]
        # Not Hadoop's own spelling of the locations: callers compare them with others of theirs.
        return [self.at(f"{self.location}{name[len(own) :]}") for name in names if name.startswith(f"{own}{suffix}")]

    def _in(self, name: str) -> Any:
        return self._path(self._folder, name) if name else self._folder


def causes(exception: Any) -> set[str]:
    """Return the simple class names of a Java exception and its causes."""
    names: set[str] = set()
    while exception is not None and len(names) < _DEEPEST_CAUSE:
        name = str(exception.getClass().getSimpleName())
        if name in names:
            break
        names.add(name)
        # A remote exception of Hadoop carries the name of its class.
        names |= {str(exception.getClassName()).rpartition(".")[2]} if name == "RemoteException" else set()
        exception = exception.getCause()
    return names


def is_denied(error: Py4JJavaError) -> bool:
    """Whether a file system refused access because the user lacks a right."""
    return not _DENIED.isdisjoint(causes(error.java_exception))


@contextlib.contextmanager
def _hadoop_errors() -> Iterator[None]:
    """Raise errors of Hadoop as `OSError`, or `PermissionError` if a right is missing."""
    try:
        yield
    except Py4JJavaError as error:
        kind = PermissionError if is_denied(error) else OSError
        raise kind(str(error.java_exception.toString())) from error
