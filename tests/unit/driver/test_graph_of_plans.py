"""What a driver reads in Spark's plans of its queries."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from clonos.causal import naming
from clonos.driver import job_graph as graph_module
from clonos.driver.job_graph import job_graph
from clonos.driver.repeatable import StreamingScan
from clonos.telemetry.driver_events import Graph

LOGICAL = "org.apache.spark.sql.catalyst.plans.logical."
EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
Nodes = list[dict[str, Any]]


def node(kind: str, *children: Nodes, **fields: Any) -> Nodes:
    own = {"class": f"{LOGICAL}{kind}", "num-children": len(children), **fields}
    return [own, *(each for child in children for each in child)]


def expression(kind: str, *children: Nodes, **fields: Any) -> Nodes:
    own = {"class": f"{EXPRESSIONS}{kind}", "num-children": len(children), **fields}
    return [own, *(each for child in children for each in child)]


def text(value: str | None) -> Nodes:
    return expression("Literal", value=value, dataType="string")


def alias(name: str, value: Nodes) -> Nodes:
    return expression("Alias", value, name=name)


def call(name: str, number: int) -> Nodes:
    return expression("PythonUDF", name=name, resultId={"id": number}, evalType=101)


def project(child: Nodes, *columns: Nodes) -> Nodes:
    return node("Project", child, projectList=list(columns))


SOURCE = node("StreamingRelationV2", output=[expression("AttributeReference", name="topic")])


def query(plan: Nodes, *, name: str = "out", columns: tuple[str, ...] = ("value",), topic: str | None = "to") -> Any:
    analyzed = SimpleNamespace(toJSON=lambda: json.dumps(plan))
    execution = SimpleNamespace(analyzed=lambda: analyzed)
    frame = SimpleNamespace(_jdf=SimpleNamespace(queryExecution=lambda: execution), columns=list(columns))
    return SimpleNamespace(
        name=name, frame=frame, interval_ms=0, sink=SimpleNamespace(topic=topic, publishes_dead_letters=True)
    )


@pytest.fixture(autouse=True)
def one_source(monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = r"^(?!clonos\.)(?:orders-(a|b))$"
    scans = [
        StreamingScan("clonos.RepeatableKafka", {"subscribe": "a, b"}),
        StreamingScan("clonos.RepeatableKafka", {"subscribepattern": pattern}),
        StreamingScan("clonos.RepeatableKafka", {"assign": '{"b": [0], "c": [1]}'}),
    ]
    monkeypatch.setattr(graph_module, "streaming_scans", lambda frame: scans)
    naming.forget_uses()


def operators(graph: Graph, of: str = "out") -> list[tuple[str, str, bool]]:
    return [(each.name, each.takes, each.timers) for each in graph[of].operators]


def test_sources_are_topics_and_patterns() -> None:
    reported = job_graph([query(SOURCE)], {})["out"]
    assert (reported.topics, reported.patterns) == (["a", "b", "c"], ["orders-(a|b)"])
    assert (reported.outputs, reported.more_outputs, reported.sink) == (["to"], False, "SimpleNamespace")


def test_operators_have_the_names_of_the_log_in_the_order_of_the_data() -> None:
    for name, shown in (("judge", "judge"), ("judge#2", "judge"), ("enrich", "add")):
        assert naming.operator_name(name.partition("#")[0], shown) == name
    naming.operator_name("totals", "transformWithStateUDF", "transformWithStateWithInitStateUDF")
    processor = {"functionExpr": call("transformWithStateUDF", 9), "timeMode": {"object": f"{LOGICAL}EventTime$"}}
    batches = node("MapInPandas", project(SOURCE, alias("x", call("judge", 8))), func=call("add", 7))
    other = project(node("TransformWithStateInPySpark", batches, **processor), alias("y", call("plain", 1)))
    first = query(project(SOURCE, alias("x", call("judge", 3))), name="first")
    graph = job_graph([query(other), first], {})
    assert operators(graph) == [
        ("judge#2", "columns", False),
        ("enrich", "batches", False),
        ("totals", "state", True),
    ]
    assert operators(graph, "first") == [("judge", "columns", False)]


def test_a_function_with_an_unused_use_keeps_its_name_in_plans() -> None:
    for _ in range(3):
        naming.operator_name("judge", "judge")
    graph = job_graph([query(project(SOURCE, alias("x", call("judge", 3)), alias("y", call("judge", 4))))], {})
    assert operators(graph) == [("judge", "columns", False)]


@pytest.mark.parametrize(
    ("plan", "state"),
    [
        (node("Aggregate", SOURCE), ["aggregate"]),
        (node("Join", SOURCE, SOURCE), ["join"]),
        (node("Join", SOURCE, node("Relation")), []),
        (node("Join", SOURCE, node("Aggregate", node("Relation"))), []),
        (node("Deduplicate", node("Aggregate", SOURCE)), ["aggregate", "deduplicate"]),
        (node("TransformWithState", SOURCE), ["function with state"]),
    ],
)
def test_steps_of_spark_with_state(plan: Nodes, state: list[str]) -> None:
    assert job_graph([query(plan)], {})["out"].state == state


def fanned_out(*topics: str) -> Nodes:
    structs = [
        expression(
            "CaseWhen",
            expression("IsNotNull", expression("AttributeReference", name="n")),
            expression("CreateNamedStruct", text("topic"), alias("topic", text(topic)), text("value"), text("topic")),
        )
        for topic in topics
    ]
    records = alias("_fanned_out", expression("ArrayCompact", expression("CreateArray", *structs)))
    field = expression("GetStructField", expression("AttributeReference", name="_fanned_out"), name="topic")
    return project(node("Filter", node("Generate", project(SOURCE, records))), alias("topic", field))


WHEN = expression("CaseWhen", expression("IsNotNull", text("x")), text("large"), alias("topic", text("small")))
NAMED: list[tuple[Nodes, list[str], bool]] = [
    (fanned_out("large", "small"), ["large", "small", "to"], False),
    (project(SOURCE, alias("topic", text("one"))), ["one", "to"], False),
    (node("Filter", project(SOURCE, alias("topic", WHEN))), ["large", "small", "to"], False),
    (
        node("Union", project(SOURCE, alias("topic", text("one"))), project(SOURCE, alias("topic", text(None)))),
        ["one", "to"],
        False,
    ),
    (project(SOURCE, alias("topic", expression("Concat", text("a")))), ["to"], True),
    (project(SOURCE, expression("AttributeReference", name="topic")), ["to"], True),
    (node("Join", project(SOURCE, alias("topic", text("one"))), node("Relation")), ["one", "to"], False),
]


@pytest.mark.parametrize(("plan", "outputs", "rows_name_more"), NAMED)
def test_topics_that_rows_name(plan: Nodes, outputs: list[str], rows_name_more: bool) -> None:
    reported = job_graph([query(plan, columns=("topic", "value"))], {})["out"]
    assert (reported.outputs, reported.more_outputs) == (outputs, rows_name_more)


def test_dead_letters_are_of_the_queries_that_publish_them() -> None:
    plan = project(SOURCE, alias("x", call("clonos_decode_1", 1)), alias("y", call("clonos_decode_2", 2)))
    publishing, other = query(plan, columns=("value", "poison")), query(plan, name="other")
    graph = job_graph([publishing, other], {"clonos_decode_2": "dead"})
    assert (graph["out"].dead_letters, graph["other"].dead_letters) == (["dead"], [])
    assert operators(graph) == [("clonos.decode", "columns", False), ("clonos.decode#2", "columns", False)]


def test_the_column_topic_means_nothing_to_a_sink_without_topics() -> None:
    files = query(SOURCE, columns=("topic", "value"))
    del files.sink.topic
    reported = job_graph([files], {})["out"]
    assert (reported.outputs, reported.more_outputs) == ([], False)


def test_a_plan_of_an_unknown_form_has_no_graph() -> None:
    assert job_graph([query([{"class": "New"}])], {}) == {}


def test_a_long_expression_has_no_graph() -> None:
    total = text("a")
    for _ in range(3000):
        total = expression("Concat", total, text("a"))
    plan = project(SOURCE, alias("topic", total))
    assert job_graph([query(plan, columns=("topic", "value"))], {}) == {}


def test_a_graph_has_at_most_a_hundred_names_and_fits_into_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = ",".join(f"a-topic-with-a-long-name-{number}" for number in range(1000))
    scans = [StreamingScan("clonos.RepeatableKafka", {"subscribe": topics})]
    monkeypatch.setattr(graph_module, "streaming_scans", lambda frame: scans)
    assert len(job_graph([query(SOURCE)], {})["out"].topics) == 100
    assert job_graph([query(SOURCE, name=f"q{number}") for number in range(100)], {}) == {}
