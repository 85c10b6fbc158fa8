"""The section "Examples" of each ``--help``. A test parses every example with the command line itself."""

from __future__ import annotations

from typing import Final

from typer import Typer

_IN_GROUPS: Final = 3

# By command; the empty name is `clonos` itself. A line fits into 80 columns, so that it can be copied.
EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "": ("clonos up --detach", "clonos submit examples/wordcount --standbys 1 --watch", "clonos status"),
    "up": ("clonos up --detach", "clonos up --agents 3 --slots 1", "clonos up --detach --spark-workers 2"),
    "down": ("clonos down",),
    "doctor": ("clonos doctor", "clonos doctor -o json | jq .status"),
    "demo": ("clonos demo", "clonos demo --example orders --kills 4 --seed 7"),
    "run": ("clonos run job.py", "clonos run examples/wordcount -p window=10s", "clonos run job.py -o json"),
    "lint": ("clonos lint job.py", "clonos lint examples/wordcount --strict"),
    "verify": ("clonos verify wordcount", "clonos verify wordcount --topic words --topic totals"),
    "login": (
        "clonos login https://clonos.example:8484",
        "clonos login https://clonos.example:8484 --token - --context prod < token",
        "clonos login https://clonos.example:8484 --ca ca.pem",
    ),
    "logout": ("clonos logout", "clonos logout --context prod"),
    "context ls": ("clonos context ls",),
    "context use": ("clonos context use prod", "clonos context use local"),
    "context rm": ("clonos context rm prod",),
    "context show": ("clonos context show", "clonos context show prod -o json"),
    "open": ("clonos open", "clonos open wordcount", "clonos open --print"),
    "apply": ("clonos apply examples/wordcount", "clonos apply examples/wordcount --standbys 1 --no-wait"),
    "submit": (
        "clonos submit job.py",
        "clonos submit examples/wordcount --standbys 1 --watch",
        "clonos submit examples/wordcount --name east --param window=10s",
    ),
    "status": ("clonos status", "clonos status --check || notify-me"),
    "ps": ("clonos ps", "clonos ps --state failed -o name"),
    "logs": (
        "clonos logs wordcount -f",
        'clonos logs wordcount --level warning --since 10m --search "timed out"',
        "clonos logs wordcount --json | jq -r .message",
    ),
    "events": ("clonos events --job wordcount --since 2h", "clonos events -f --type job.state -o json"),
    "agent": (
        "clonos agent --api https://clonos.example:8484 --token-file agent.token",
        "clonos agent --api http://127.0.0.1:8484 --name host-3 --slots 4",
    ),
    "backup create": ("clonos backup create /backups/monday",),
    "backup restore": ("clonos backup restore /backups/monday", "clonos backup restore /backups/monday --keep-tokens"),
    "audit": ("clonos audit --since 1d", "clonos audit --denied --subject ada"),
    "kafka create": ("clonos kafka create lines words", "clonos kafka create lines --partitions 12"),
    "kafka produce": ("python generate.py | clonos kafka produce lines",),
    "kafka consume": ("clonos kafka consume totals", "clonos kafka consume totals --new -o json"),
    "kafka start": ("clonos kafka start --port 9092", "clonos kafka start --brokers 3"),
    "kafka stop": ("clonos kafka stop",),
    "kafka status": ("clonos kafka status",),
    "causal-log ls": ("clonos causal-log ls",),
    "causal-log cat": (
        "clonos causal-log cat wordcount --tail 20",
        "clonos causal-log cat wordcount --epoch 10..12 --kind plan,marker",
    ),
    "transactions ls": ("clonos transactions ls", "clonos transactions ls --job wordcount --all"),
    "transactions abort": ("clonos transactions abort --job wordcount",),
    "job ls": ("clonos job ls", "clonos job ls --state failed -o name", "clonos job ls --label team=search"),
    "job inspect": ("clonos job inspect wordcount", "clonos job inspect wordcount -o json | jq .run.pid"),
    "job watch": ("clonos job watch wordcount",),
    "job start": ("clonos job start wordcount", "clonos job start wordcount --from before --publish-again"),
    "job resume": ("clonos job resume wordcount",),
    "job stop": ("clonos job stop wordcount", "clonos job stop wordcount --mode checkpoint"),
    "job pause": ("clonos job pause wordcount",),
    "job restart": ("clonos job restart wordcount",),
    "job move": ("clonos job move wordcount", "clonos job move wordcount --to host-2"),
    "job upgrade": ("clonos job upgrade wordcount examples/wordcount",),
    "job rollback": ("clonos job rollback wordcount", "clonos job rollback wordcount 3"),
    "job schema": ("clonos job schema > job.schema.json", "clonos job schema --cluster"),
    "job versions": ("clonos job versions wordcount", "clonos job versions wordcount --diff 1 2"),
    "job rescale": ("clonos job rescale wordcount --partitions 8",),
    "job resolve": (
        "clonos job resolve wordcount --epoch 12 --keep",
        "clonos job resolve wordcount --epoch 12 --dead-letter suspect",
        "clonos job resolve wordcount --new-code",
    ),
    "job verify": ("clonos job verify wordcount", "clonos job verify wordcount --topic words --topic totals"),
    "job cancel": ("clonos job cancel wordcount",),
    "job rm": ("clonos job rm wordcount", "clonos job ls --state canceled -o name | xargs clonos job rm"),
    "job exceptions": ("clonos job exceptions wordcount --limit 5",),
    "job generations": ("clonos job generations wordcount",),
    "checkpoint ls": ("clonos checkpoint ls wordcount",),
    "checkpoint inspect": ("clonos checkpoint inspect wordcount 41",),
    "savepoint create": ("clonos savepoint create wordcount --name before",),
    "savepoint ls": ("clonos savepoint ls", "clonos savepoint ls wordcount -o name"),
    "savepoint rm": ("clonos savepoint rm before --job wordcount",),
    "recovery ls": ("clonos recovery ls", "clonos recovery ls wordcount"),
    "recovery explain": (
        "clonos recovery explain wordcount",
        "clonos recovery explain wordcount --markdown > post-mortem.md",
    ),
    "connector ls": ("clonos connector ls",),
    "connector validate": ("clonos connector validate sink kafka topic=totals",),
    "cluster add": (
        "clonos cluster add east --master spark://spark.example:7077",
        "clonos cluster add east --file cluster.yaml --replace",
    ),
    "cluster ls": ("clonos cluster ls",),
    "cluster inspect": ("clonos cluster inspect east",),
    "cluster check": ("clonos cluster check east",),
    "cluster rm": ("clonos cluster rm east",),
    "cluster environment": ("clonos cluster environment env.tar.gz --job examples/wordcount",),
    "host ls": ("clonos host ls",),
    "host drain": ("clonos host drain host-2",),
    "host undrain": ("clonos host undrain host-2",),
    "host rm": ("clonos host rm host-2",),
    "standby ls": ("clonos standby ls", "clonos standby ls --job wordcount --all"),
    "standby wait": ("clonos standby wait wordcount", "clonos standby wait wordcount --timeout 120"),
    "standby promote": ("clonos standby promote wordcount", "clonos standby promote wordcount --host host-2"),
    "token create": (
        "clonos token create ci --role operator --expires 90d",
        "clonos token create host-3 --role agent --host host-3",
    ),
    "token ls": ("clonos token ls",),
    "token revoke": ("clonos token revoke 01a206fb6eee77ad",),
    "token rotate": ("clonos token rotate", "clonos token rotate --overlap 1h"),
    "token show": ("clonos token show",),
    "session ls": ("clonos session ls", "clonos session ls --subject ada@example.org"),
    "session revoke": ("clonos session revoke 01a206fb6eee77ad", "clonos session revoke --subject ada@example.org"),
    "db upgrade": ("clonos db upgrade",),
    "db current": ("clonos db current",),
}


def add_examples(app: Typer) -> None:
    """Add the section "Examples" to the help of all commands; groups show those of their first commands."""
    app.info.epilog = _section(EXAMPLES[""])
    _add_below(app, "")


def _add_below(app: Typer, group: str) -> list[str]:
    """Add the sections below a group; returns the first example of each of its commands."""
    first: list[str] = []
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__.replace("_", "-")
        examples = EXAMPLES.get(f"{group} {name}".strip(), ())
        command.epilog = _section(examples)
        first += examples[:1]
    for below in app.registered_groups:
        assert below.typer_instance is not None
        below.epilog = _section(_add_below(below.typer_instance, f"{group} {below.name}".strip())[:_IN_GROUPS])
    return first


def _section(examples: tuple[str, ...] | list[str]) -> str | None:
    # The empty first line keeps the indentation of the others.
    return "\n".join(["", "Examples:", *(f"  {example}" for example in examples)]) if examples else None
