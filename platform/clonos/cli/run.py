"""``clonos run``: run one job on this machine without a control plane."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from clonos.cli.options import TextOutput, pairs

if TYPE_CHECKING:
    from clonos.telemetry.driver_events import DriverEvent
    from clonos.telemetry.events import EventHandler


def run(
    ctx: typer.Context,
    job: Annotated[Path, typer.Argument(help="The job file (.py), its specification (.yaml), or their folder.")],
    param: Annotated[list[str] | None, typer.Option("--param", "-p", help="Job parameter: name=value.")] = None,
    conf: Annotated[list[str] | None, typer.Option("--conf", help="Spark configuration: key=value.")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="Checkpoint location (path or URI).")] = None,
    events: Annotated[Path | None, typer.Option(help="Append events to this file, as JSON lines.")] = None,
    output: Annotated[
        TextOutput, typer.Option("--output", "-o", help="Output format; json: events as JSON lines on stdout.")
    ] = TextOutput.TEXT,
    plain: Annotated[bool, typer.Option("--plain", help="Print log lines instead of the live view.")] = False,
    new_lineage: Annotated[
        bool, typer.Option(help="Start a new lineage, independent of what older runs published.")
    ] = False,
    request_key: Annotated[
        str, typer.Option(help="Idempotency key of --new-lineage: a retry with the same key continues its lineage.")
    ] = "",
    wait_for_kafka: Annotated[
        bool, typer.Option("--wait-for-kafka", help="If Kafka does not answer at the start, wait without a limit.")
    ] = False,
    stop_timeout: Annotated[
        float | None,
        typer.Option(min=0.1, help="Seconds for the epoch in progress after a stop request (default: no limit)."),
    ] = None,
    accept_new_code: Annotated[bool, typer.Option(help="Replay an epoch in doubt with the current code.")] = False,
    accept_unpublished: Annotated[
        bool, typer.Option(help="As --accept-new-code, for epochs in doubt without any published output.")
    ] = False,
    finish_in_doubt: Annotated[
        bool, typer.Option("--finish-in-doubt", help="Only finish the epochs in doubt that this code planned.")
    ] = False,
    resolve: Annotated[
        list[str] | None,
        typer.Option(
            help="Decide about an epoch in doubt: QUERY:EPOCH=keep, =republish, =dead-letter:TOPIC or =new-code."
        ),
    ] = None,
    standby: Annotated[
        Path | None,
        typer.Option(help="Warm up as a standby until a promotion arrives in this named pipe, which is created."),
    ] = None,
    cluster: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Run on the Spark cluster that this file (cluster.yaml) describes."),
    ] = None,
    owner: Annotated[
        list[str] | None,
        typer.Option(hidden=True, help="Subjects whose folders the job may open, its own first (from the agent)."),
    ] = None,
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt", help="Take over the job from another platform: a control plane, or another CLONOS_HOME."
        ),
    ] = False,
    platform: Annotated[
        str | None, typer.Option(hidden=True, help="Id and name of the control plane (from the agent).")
    ] = None,
    lint: Annotated[bool, typer.Option(help="Log the linter's findings in the job's code.")] = True,
) -> None:
    """Run a job until it is stopped (SIGTERM, Ctrl-C)."""
    from clonos.agent.process import RUN
    from clonos.driver.options import RunOptions
    from clonos.driver.process import run_job
    from clonos.driver.resolutions import RequestedResolution
    from clonos.host_inputs import fix_zone_and_locale
    from clonos.jobs.cluster import read_cluster
    from clonos.jobs.loading import find_job_file, load_job
    from clonos.jobs.packages import activate
    from clonos.log.platform_identity import Platform, platform_of_home
    from clonos.scratch import own_scratch
    from clonos.settings import Settings
    from clonos.spark.session import Session
    from clonos.standby.standby_driver import wait_for_promotion
    from clonos.telemetry.logs import configure_logs

    settings = Settings()
    configure_logs(settings.log_format, settings.log_level)
    activate(find_job_file(job), settings.home.absolute())
    # An agent has given its driver a folder of the run.
    has_agent = RUN in os.environ
    scratch = contextlib.nullcontext() if has_agent else own_scratch(settings.scratch or settings.home / "scratch")
    if platform:
        identity: Platform | None = Platform.parse(platform)
    else:  # a control plane of an older version names no platform
        identity = None if has_agent else platform_of_home(settings.home)
    with scratch, _event_writer(output) as write_line:
        fix_zone_and_locale()
        loaded = load_job(job)
        with _reporter(
            loaded.spec.name, output, write_line, live=not plain and settings.log_format == "console"
        ) as report:
            options = RunOptions(
                params=pairs(param, "--param"),
                conf=pairs(conf, "--conf"),
                checkpoint=checkpoint or "",
                owners=tuple(owner or ()),
                platform=identity,
                adopt=adopt,
                events=events,
                new_lineage=new_lineage,
                request_key=request_key,
                stop_timeout_s=stop_timeout,
                wait_for_kafka=wait_for_kafka,
                resolutions=tuple(map(RequestedResolution.parse, resolve or [])),
                accept_new_code=accept_new_code,
                accept_unpublished=accept_unpublished,
                finish_in_doubt=finish_in_doubt,
                cluster=None if cluster is None else read_cluster(cluster),
            )
            run_job(
                loaded,
                options,
                handlers=[report],
                advice=lint,
                session=ctx.find_object(Session),
                before_run=None
                if standby is None
                else wait_for_promotion(standby, loaded.spec.name, loaded.spec.spec.standby),
            )


def pool_driver(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Directory of the pool driver, created by its agent.")],
    agent: Annotated[int, typer.Option(help="Process ID of the agent; the pool driver exits with it.")],
) -> None:
    """Warm up without a job, then run the job that the agent assigns (internal: `clonos agent --pool-size`)."""
    from clonos.standby.pool_driver import PoolDriver

    driver = PoolDriver(folder, agent)
    with driver.warm() as session:
        request = driver.wait(session)
        if request is not None:
            driver.adopt_run(request)
            ctx.find_root().command.main(request.arguments, obj=session, standalone_mode=False)


@contextlib.contextmanager
def _event_writer(output: TextOutput) -> Iterator[EventHandler]:
    """Yield a writer of JSON lines on stdout. With JSON output, the job's own prints go to stderr."""
    from clonos.telemetry.driver_events import as_line
    from clonos.telemetry.printable import printable_json

    out = sys.stdout

    def write_line(event: DriverEvent) -> None:
        out.write(printable_json(as_line(event)) + "\n")
        out.flush()

    if output is TextOutput.JSON:
        with contextlib.redirect_stdout(sys.stderr):
            yield write_line
    else:
        yield write_line


@contextlib.contextmanager
def _reporter(job: str, output: TextOutput, write_line: EventHandler, *, live: bool) -> Iterator[EventHandler]:
    from clonos.telemetry.events import log_event
    from clonos.telemetry.printable import console

    out = console(stderr=True)
    if output is TextOutput.JSON:
        yield write_line
    elif live and out.is_terminal and not out.is_dumb_terminal:
        from clonos.cli.live import LiveView

        with LiveView(job) as view:
            yield view.report
    else:
        yield log_event
