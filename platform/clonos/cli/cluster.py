"""``clonos cluster`` and ``connector``: the Spark clusters, sources and sinks that jobs can use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clonos.cli import completion, show
from clonos.cli.options import Limit, Listed, Lists, Output, echo, pairs, valid
from clonos.cli.progress import completed
from clonos.cli.remote import Call, remote
from clonos.errors import NotFound

if TYPE_CHECKING:
    from rich.table import Table

    from clonos.jobs.cluster import ClusterSettings, ClusterSpec
    from clonos.resources.clusters import Cluster
    from clonos.spark.environment_archive import EnvironmentArchive
from typing import TYPE_CHECKING

from clonos.errors import SpecError

if TYPE_CHECKING:
    from clonos.resources.service import Validation

app = typer.Typer(no_args_is_help=True, help="Manage the Spark clusters that jobs can use.")
connectors = typer.Typer(no_args_is_help=True, help="List sources and sinks, and check their options.")

ClusterName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the cluster.", autocompletion=completion.clusters)
]


@app.command()
@remote(output=Listed)
def add(
    call: Call,
    name: ClusterName,
    master: Annotated[
        str | None, typer.Option(help="Master: spark://HOST:PORT, yarn or k8s://https://HOST:PORT.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="Description (cluster.yaml); the other options take precedence over it.")
    ] = None,
    ui: Annotated[str | None, typer.Option(help="Address of the master's web UI.")] = None,
    conf: Annotated[
        list[str] | None, typer.Option(help="Spark configuration of each application: key=value; may be repeated.")
    ] = None,
    auth_secret: Annotated[
        str | None, typer.Option(help="Name of the secret for spark.authenticate.secret, on the hosts.")
    ] = None,
    trusted_network: Annotated[
        bool | None,
        typer.Option("--trusted-network", help="Passwords may travel to executors unencrypted.", show_default=False),
    ] = None,
    shared: Annotated[
        list[str] | None,
        typer.Option(metavar="LOCATION", help="Location that drivers and executors see alike; may be repeated."),
    ] = None,
    python: Annotated[str | None, typer.Option(help="Python interpreter of the executors.")] = None,
    environment: Annotated[str | None, typer.Option(help="Archive with the Python environment of executors.")] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Host whose agent reaches the cluster; may be repeated (default: all).",
            autocompletion=completion.hosts,
        ),
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the description of an existing cluster.")] = False,
) -> None:
    """Add a Spark cluster. A host that reaches it then checks it."""
    options = {
        "master": master,
        "ui": ui,
        "sparkConf": pairs(conf, "--conf") if conf else None,
        "authSecret": auth_secret,
        "trustedNetwork": trusted_network,
        "sharedLocations": shared,
        "python": python,
        "environment": environment,
        "hosts": host,
    }
    described = _described(name, file, {field: value for field, value in options.items() if value is not None})
    clusters, version = call.client.clusters, None
    if replace:
        try:
            version = clusters.get(name).version
        except NotFound:
            replace = False
    cluster = clusters.create(described) if version is None else clusters.replace(described, version=version)
    done = "changed" if replace else "added"
    call.show(cluster, lambda _: f"{name} is {done}; a host checks it: clonos cluster inspect {name}")


@app.command("ls")
@remote(output=Lists)
def list_clusters(call: Call, limit: Limit = None) -> None:
    """List the Spark clusters."""
    call.show_list(
        call.client.clusters.list(limit=limit),
        {
            "name": lambda row: row.name,
            "state": lambda row: show.state(row.state),
            "master": lambda row: row.spec.master,  # [fd00::1] is not markup
            "hosts": lambda row: ", ".join(row.spec.hosts) or "all",
            "jobs": lambda row: str(len(row.jobs)),
            "spark": lambda row: row.report.spark if row.report else None,
            "checked": lambda row: f"{show.age(row.checked_at)} ago" if row.checked_at else None,
            "problem": lambda row: show.short(_problem(row)),
        },
        none="There are no clusters. Add one with: clonos cluster add NAME --master spark://HOST:PORT",
    )


@app.command()
@remote(output=Listed)
def inspect(call: Call, name: ClusterName) -> None:
    """Show one cluster: its description, its state and what its last check saw."""
    call.show(call.client.clusters.get(name), _picture)


@app.command()
@remote(waits=True, output=Listed)
def check(call: Call, name: ClusterName) -> None:
    """Check from a host that a cluster can run jobs: its versions, Python environment and executors."""
    operation = call.client.clusters.check(name)
    if call.wait:
        completed(call, operation, name)
        call.show(call.client.clusters.get(name), _picture)
    else:
        call.show(operation, lambda begun: f"The check of {name} has begun (operation {begun.id}).")


@app.command("rm")
@remote()
def remove(
    call: Call,
    names: Annotated[
        list[str], typer.Argument(metavar="NAME…", help="Names of clusters.", autocompletion=completion.clusters)
    ],
) -> None:
    """Remove clusters that no running job uses."""
    for name in names:
        call.client.clusters.delete(name)
        echo(f"{name} is removed.")


@app.command()
def environment(
    archive: Annotated[Path, typer.Argument(metavar="OUT.tar.gz", help="The archive; an older one is replaced.")],
    job: Annotated[
        list[Path] | None, typer.Option(help="Job whose imported packages are included; may be repeated.")
    ] = None,
    package: Annotated[
        list[str] | None, typer.Option(help="Installed package to include: NAME or NAME[EXTRA]; may be repeated.")
    ] = None,
    output: Listed = Output.TABLE,
) -> None:
    """Build an archive with this Python, Clonos and the packages of jobs, for `environment` of a cluster file.

    Executors need the same operating system and processor architecture. The build takes half a minute of processor
    time.
    """
    from clonos.jobs.code_files import PACKAGE
    from clonos.jobs.loading import load_job
    from clonos.spark.environment_archive import build_environment

    parts = (part for path in job or () for part in load_job(path).files)
    imported = [part.removeprefix(PACKAGE) for part in parts if part.startswith(PACKAGE)]
    built = build_environment(archive.absolute(), [*(package or ()), *imported])
    show.show(built, lambda built: _usage(archive, built), as_json=output is Output.JSON)


def _usage(archive: Path, built: EnvironmentArchive) -> str:
    size, unpacked = (number >> 20 for number in (built.size_bytes, built.unpacked_bytes))
    return (
        f"{archive}: Python {built.python} and {len(built.packages)} packages in {built.seconds:.0f} s.\n"
        f"{size} MiB, unpacked {unpacked} MiB on each executor.\n"
        f"Copy it to a location that drivers read, and set `environment: {built.path.as_uri()}` (or its hdfs: or "
        "s3a: address) in the cluster file."
    )


def _described(name: str, file: Path | None, options: dict[str, Any]) -> ClusterSpec:
    from clonos.jobs.cluster import ClusterSpec, read_cluster

    base = read_cluster(file).model_dump(by_alias=True, exclude_unset=True) if file is not None else {}
    metadata = {**base.get("metadata", {}), "name": name}
    with valid("This is not a description of a cluster", hint="correct the option, or pass --file."):
        return ClusterSpec.model_validate({"metadata": metadata, "spec": {**base.get("spec", {}), **options}})


def _problem(cluster: Cluster) -> str:
    if cluster.failure is not None:
        return cluster.failure.what
    return " ".join(cluster.report.problems) if cluster.report else ""


def _authentication(spec: ClusterSettings) -> str:
    from clonos.jobs.cluster import Manager

    if spec.manager is not Manager.STANDALONE:
        return "a secret of Spark for each application"
    return f"secret {spec.auth_secret} of the hosts" if spec.auth_secret else "none"


def _picture(cluster: Cluster) -> Table:
    spec, report = cluster.spec, cluster.report
    rows: dict[str, Any] = {
        "name": cluster.name,
        "state": show.state(cluster.state),
        "master": spec.master,
        "web UI": spec.ui,
        "hosts": ", ".join(spec.hosts) or "all",
        "shared locations": ", ".join(spec.shared_locations),
        "pods": f"{spec.kubernetes.image} in the namespace {spec.kubernetes.namespace}" if spec.kubernetes else "",
        "authentication": _authentication(spec),
        "trusted network": "yes" if spec.trusted_network else "no",
        "python": spec.python,
        "environment": spec.environment,
        "Spark configuration": "\n".join(f"{key}={value}" for key, value in sorted(spec.spark_conf.items())),
        "jobs": ", ".join(cluster.jobs) or "none",
        "version": str(cluster.version),
        "checked": show.clock(cluster.checked_at) if cluster.checked_at else "",
    }
    if report is not None:
        seen = (("Spark", report.spark), ("Java", report.java), ("Python", report.python))
        where = f" on {', '.join(report.hosts)}" if report.hosts else ""
        rows["last report"] = ", ".join(
            [*(f"{what} {text}" for what, text in seen if text), f"{report.executors} executors{where}"]
        )
        rows["problems"] = "\n".join(report.problems)
    if cluster.failure is not None:
        rows["failure"] = cluster.failure.what
        rows["what to do"] = cluster.failure.hint
    return show.facts({title: value for title, value in rows.items() if value})


@connectors.command("ls")
@remote(output=Lists)
def list_connectors(call: Call, limit: Limit = None) -> None:
    """List the installed sources and sinks."""
    call.show_list(
        call.client.connectors.list(limit=limit),
        {
            "kind": lambda row: row.kind,
            "name": lambda row: row.name,
            "version": lambda row: row.version,
            "summary": lambda row: row.summary,
            "options": lambda row: ", ".join(sorted(row.options)),
        },
        lambda row: f"{row.kind}/{row.name}",
        none="There are no connectors.",
    )


@connectors.command()
@remote(output=Listed)
def validate(
    call: Call,
    kind: Annotated[str, typer.Argument(help="source or sink")],
    name: Annotated[str, typer.Argument(help="Name of the source or sink, such as kafka.")],
    options: Annotated[
        list[str] | None,
        typer.Argument(metavar="[OPTION=VALUE…]", help="Options to check; values are YAML.", show_default=False),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="YAML file with options.")] = None,
) -> None:
    """Check the options of a source or sink. Exit code 1 if they are invalid."""
    if kind not in ("source", "sink"):
        raise SpecError(f"{kind} is neither source nor sink.")
    validation = call.client.connectors.validate(kind, name, _options(options or [], file))
    call.show(validation, _findings)
    if not validation.valid:
        raise typer.Exit(1)


def _findings(validation: Validation) -> str:
    lines = [
        f"{problem.field}: {problem.what}" + (f" ({problem.hint})" if problem.hint else "")
        for problem in validation.problems
    ]
    return "\n".join([*lines, *(["The options are valid."] if validation.valid else [])])


def _options(texts: list[str], file: Path | None) -> dict[str, Any]:
    import yaml

    try:
        options = yaml.safe_load(file.read_text()) if file is not None else {}
        return {**(options or {}), **{key: yaml.safe_load(value) for key, value in pairs(texts, "option").items()}}
    except (OSError, yaml.YAMLError, TypeError) as error:
        raise SpecError(f"Invalid options: {error}.") from error
