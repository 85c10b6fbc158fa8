"""Commands that use a control plane: the options that they share, and what these options do.

`remote` adds the options to a command. The command gets a `Call`, which has the connection and prints its results.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, TypeVar, get_args

from clonos.cli import show
from clonos.cli.options import Api, Context, Quiet, Token, Wait, echo
from clonos.errors import Unauthenticated

if TYPE_CHECKING:
    from pydantic import BaseModel
    from rich.console import RenderableType

    from clonos.cli.show import Cell
    from clonos.client import Client
    from clonos.resources.base import Page

Row = TypeVar("Row", bound="BaseModel")
Body = TypeVar("Body")
Command = Callable[..., None]


@dataclass(frozen=True)
class Call:
    """One call of a command, with the values of the shared options."""

    client: Client  # the connection to the control plane
    output: str = "table"  # output format: ``table``, ``json`` or ``name``
    wait: bool = True  # wait until the operation is complete
    quiet: bool = False  # show no progress

    @property
    def as_json(self) -> bool:
        """Whether results are printed as JSON."""
        return self.output == "json"

    def show(self, body: Body, text: Callable[[Body], str | RenderableType]) -> None:
        """Print a REST body as JSON, or as its `text`."""
        show.show(body, text, as_json=self.as_json)

    def show_list(
        self,
        page: Page[Row],
        columns: Mapping[str, Callable[[Row], Cell]],
        name: Callable[[Row], str] | None = None,
        *,
        none: str,
    ) -> None:
        """Print a page of the REST API as a table (`clonos.cli.show.table`), as JSON, or as names.

        `name` is the text of a row for the format ``name`` (default: the first column), `none` the message about no
        rows.
        """
        if self.as_json:
            show.show_json(page)
        elif self.output == "name":
            for row in page.data:
                echo(str((name or next(iter(columns.values())))(row)))
        elif not page.data:
            echo(none, err=True)
        else:
            show.console().print(show.table(page.data, columns))
            if page.has_more:
                echo("More results exist; raise --limit.", err=True)


def remote(
    *, output: Any = None, waits: bool = False, quiet: bool = False, patience_s: float = 5.0
) -> Callable[[Callable[Concatenate[Call, ...], None]], Command]:
    """Add the options of the control plane to a command, whose first parameter is the `Call`.

    Args:
        output: The type of ``--output``, such as `clonos.cli.options.Listed`; its first member is the default. None:
            the command has no such option.
        waits: Add ``--wait/--no-wait`` and ``--quiet``.
        quiet: Add ``--quiet``.
        patience_s: Seconds in which a request is repeated while the control plane is unavailable.

    Example:
        >>> @remote(output=Listed)  # doctest: +SKIP
        ... def whoami(call: Call) -> None:
        ...     call.show(call.client.tokens.self(), lambda token: token.subject)
    """
    shared: dict[str, tuple[Any, Any]] = {"wait": (Wait, True)} if waits else {}
    if waits or quiet:
        shared["quiet"] = (Quiet, False)
    if output is not None:
        shared["output"] = (output, next(iter(get_args(output)[0])))
    connection = {"api": (Api, None), "token": (Token, None), "context": (Context, None)}

    def decorate(function: Callable[Concatenate[Call, ...], None]) -> Command:
        @functools.wraps(function)
        def command(**options: Any) -> None:
            address = {name: options.pop(name) for name in connection}
            how = {name: options.pop(name) for name in shared}
            with _connected(**address, patience_s=patience_s) as client:
                function(Call(client, **how), **options)

        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in {**shared, **connection}.items()
        ]
        parameters = [*(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own), *added]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


@contextmanager
def _connected(api: str | None, token: str | None, context: str | None, *, patience_s: float) -> Iterator[Client]:
    """Yield a client for the control plane that the options, the environment or the stored contexts name.

    While the control plane is unavailable or busy, the client retries a request for `patience_s` seconds.
    """
    from stamina.instrumentation import set_on_retry_hooks

    from clonos.client import Client
    from clonos.client.contexts import resolve
    from clonos.settings import Settings

    # The default hook logs to stdout, between the lines of the output. A timeout raises an error anyway.
    set_on_retry_hooks([])
    chosen = resolve(Settings(), api=api, token=token, context=context)
    with Client(chosen.api, chosen.token, patience_s=patience_s, timeout_s=30.0, ca=chosen.ca) as client:
        try:
            yield client
        except Unauthenticated as error:
            hint = (
                f"log in with `clonos login {chosen.api}`, or set CLONOS_TOKEN (or --token) to a valid token; "
                "`clonos up` writes one for its own control plane."
            )
            raise Unauthenticated(f"{chosen.api}: {error.what}", kept=error.kept, hint=hint) from error
