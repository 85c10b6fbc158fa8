"""``clonos agent``: run the drivers of one host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.errors import SpecError

if TYPE_CHECKING:
    from clonos.agent import Agent


def agent(
    api: Annotated[str, typer.Option(help="Where the control plane is.", envvar="CLONOS_API")],
    name: Annotated[str | None, typer.Option(help="Unique among the agents; default the host's name.")] = None,
    failure_domain: Annotated[str, typer.Option(help="What fails together: rack, zone; default the host itself.")] = "",
    slots: Annotated[int, typer.Option(help="Drivers that it may run at once.")] = 2,
    spares: Annotated[int, typer.Option(help="Warm drivers without a job, for jobs with standby mode pool.")] = 0,
    token_file: Annotated[Path | None, typer.Option(help="File with the agent's token.")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", help="name=value.")] = None,
    ca: Annotated[Path | None, typer.Option(help="PEM file with the authorities to trust.")] = None,
    uid: Annotated[int | None, typer.Option(help="User that drivers run as; the agent must be root.")] = None,
    gid: Annotated[
        int | None, typer.Option(help="Group that drivers run as; default that of the user's number.")
    ] = None,
    memory_limit_mb: Annotated[int | None, typer.Option(help="Memory of one driver with all of its processes.")] = None,
    cgroup: Annotated[Path | None, typer.Option(help="Delegated cgroup (v2) for drivers; default our own.")] = None,
    stop_drivers: Annotated[bool, typer.Option("--stop-drivers", help="Stop the drivers when the agent ends.")] = False,
    stop_grace_s: Annotated[float, typer.Option(help="How long they may take then.")] = 10.0,
    metrics: Annotated[str | None, typer.Option(help="HOST:PORT for Prometheus; default: none.")] = None,
    silent_s: Annotated[
        float, typer.Option(help="Kill a driver that gives no sign of life for so long; 0: never.")
    ] = 10.0,
) -> None:
    """Run what the control plane orders on this host.

    SIGTERM ends the agent; its drivers go on, and the next agent of that name adopts them.
    """
    import asyncio

    from pydantic import ValidationError

    from clonos.agent import Agent, AgentSettings
    from clonos.logs import about, configure_logs
    from clonos.settings import Settings
    from clonos.spec import explain

    settings = Settings()
    configure_logs(settings.log_format, settings.log_level)
    try:
        chosen = AgentSettings(
            api=api,
            **({"name": name} if name else {}),
            failure_domain=failure_domain,
            slots=slots,
            spares=spares,
            token_file=token_file,
            labels=dict(_pair(one) for one in label or []),
            ca=ca,
            uid=uid,
            gid=gid,
            memory_limit_mb=memory_limit_mb,
            cgroup=cgroup,
            stop_drivers=stop_drivers,
            stop_grace_s=stop_grace_s,
            metrics=metrics,
            silent_s=silent_s,
        )
    except ValidationError as error:
        raise SpecError(f"The agent cannot be started so: {explain(error)}.") from error
    about(agent=chosen.name)
    asyncio.run(run_until_told(Agent(chosen)))


async def run_until_told(agent: Agent) -> None:
    """Run an agent until SIGTERM or SIGINT."""
    import asyncio
    import signal

    loop = asyncio.get_running_loop()
    running = asyncio.create_task(agent.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    await asyncio.wait([running])
    if not running.cancelled():
        running.result()


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise SpecError(f"--label {text!r} is not name=value.")
    return name, value
