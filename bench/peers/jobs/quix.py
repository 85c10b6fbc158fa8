"""The benchmarks' job on Quix Streams, exactly-once with a commit every 200 ms; with ``--tuned`` every 50 ms."""

from __future__ import annotations

import argparse

from quixstreams import Application

COMMIT_S = 0.2
TUNED_COMMIT_S = 0.05


def shout(value: bytes) -> bytes:
    """A small computation on each record."""
    return value.upper()


def main() -> None:
    """Run until the process is killed."""
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "kind", "input", "output", "folder"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--tuned", action="store_true")
    arguments = parser.parse_args()
    # By default each process has a random transactional id, and a restarted one waits until the transaction of the
    # killed one times out (60 s). With a fixed id it aborts that transaction at once. One process: no two share the id.
    fixed = {"transactional.id": f"quix-{arguments.output}", "transaction.timeout.ms": 10_000}
    app = Application(
        broker_address=arguments.bootstrap,
        consumer_group=f"quix-{arguments.output}",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=TUNED_COMMIT_S if arguments.tuned else COMMIT_S,
        state_dir=arguments.folder,
        auto_create_topics=False,
        # With a static member, a restarted process need not wait until the killed one's session times out (KIP-345).
        consumer_extra_config={"group.instance.id": "1", "fetch.wait.max.ms": 5}
        | ({"session.timeout.ms": 6_000} if arguments.tuned else {}),
        producer_extra_config={"linger.ms": 5} | (fixed if arguments.tuned else {}),
        consumer_poll_timeout=0.05,  # the commit of an idle topic waits for it
        loglevel="WARNING",
    )
    raw = {"key_deserializer": "bytes", "value_deserializer": "bytes"}
    rows = app.dataframe(app.topic(arguments.input, **raw))
    if arguments.kind == "python":
        rows = rows.apply(shout)
    rows.to_topic(app.topic(arguments.output, key_serializer="bytes", value_serializer="bytes"))
    app.run()


if __name__ == "__main__":
    main()
