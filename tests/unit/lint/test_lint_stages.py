"""The stage in which code runs: on rows, in the job function, at start, or in services only."""

from __future__ import annotations

import textwrap

import pytest

import clonos
from clonos.lint import Severity, spark
from support.linting import Lint, codes, in_job, in_udf, only


def test_services_may_call_everything(linted: Lint) -> None:
    source = """
        import os, random, subprocess, time, uuid
        import requests

        session = requests.Session()

        def fetch(word):
            return sign(session.get(f"http://x/{word}", timeout=1))

        def sign(answer):
            return answer.text, uuid.uuid4(), os.getpid(), hash(answer)

        @clonos.service(timeout=2, retries=3)
        def ask(word):
            time.time(), random.random(), subprocess.run(["date"]), open("x")

            def inner():
                return requests.get("x")

            return fetch(word), inner()

        class Api:
            @clonos.service
            def ask(self, word):
                return requests.get(word)

        later = clonos.service(lambda word: requests.get(word).text)
        wrapped = clonos.service(timeout=2)(fetch)
        api = Api()

        @clonos.udf("string")
        def work(word):
            return ask(word), api.ask(word), later(word), wrapped(word)
    """
    assert not linted(source).findings


def test_helper_of_a_service_and_a_udf_is_reported(linted: Lint) -> None:
    source = """
        import requests

        def fetch(word):
            return requests.get(word)

        @clonos.service
        def ask(word):
            return fetch(word)

        @clonos.udf("string")
        def work(word):
            return ask(word), {call}
    """
    assert not linted(source.replace("{call}", "word")).findings
    assert only(linted(source.replace("{call}", "fetch(word)"))).code == "CL006"


def test_services_of_a_factory_are_recognised(linted: Lint) -> None:
    source = """
        import requests

        def asker(url):
            def ask(word):
                return requests.get(url + word)
            return ask

        ask = clonos.service(timeout=1)(asker("http://x"))

        @clonos.udf("string")
        def work(word):
            return ask(word)
    """
    assert not linted(source).findings


@pytest.mark.parametrize(
    "use",
    [
        "rows = rows.mapInArrow(raw, 'x string')",
        "rows = rows.mapInPandas(raw, schema='x string')",
        "rows = rows.groupBy('word').applyInPandas(raw, 'x string')",
        "rows.writeStream.foreachBatch(raw)",
        "rows = rows.withColumn('x', F.udf(raw, 'string')('word'))",
        "rows = rows.withColumn('x', F.udf('string')(raw)('word'))",
        "rows = rows.withColumn('x', F.pandas_udf(raw, 'string')('word'))",
        "rows = rows.withColumn('x', clonos.udf('string')(raw)('word'))",
        "ctx.spark.udf.register('raw', raw)",
        "rows = rows.mapInArrow(lambda batches: raw(batches), 'x string')",
        "rows = rows.mapInArrow(partial(raw, 1), 'x string')",
        "rows = rows.mapInArrow(factory('x'), 'x string')",
        "handle = factory('x')\nrows = rows.mapInArrow(handle, 'x string')",
        "rows = rows.mapInArrow(MODES['raw'], 'x string')",
        "rows = rows.transformWithState(Processor(), 'x string', 'update', 'none')",
        "rows = rows.transformWithStateInPandas(statefulProcessor=Processor(), outputStructType='x string')",
        "processor = Processor()\nrows = rows.transformWithState(processor, 'x string')",
        "rows = rows.mapInArrow(Processor().handleInputRows, 'x string')",
    ],
)
def test_functions_passed_to_spark_run_on_rows(linted: Lint, use: str) -> None:
    before = """
from functools import partial
import time

def raw(batches, *more):
    return open("x"), batches

def factory(name):
    def run(batches):
        return raw(batches)
    return run

MODES = {"raw": raw}

class Processor:
    def handleInputRows(self, key, rows, timers):
        return self.read()

    def read(self):
        return open("x")

"""
    finding = only(linted(before + in_job(use)))
    # Files are reported on rows only, so this finding shows the stage of the code.
    assert (finding.code, finding.runs) == ("CL008", "rows")


@pytest.mark.parametrize(
    "decorator",
    ["F.udf", "F.udf('string')", "F.pandas_udf('string')", "F.arrow_udf('string')", "F.udtf(returnType='x int')"],
)
def test_functions_with_decorators_of_spark_run_on_rows(linted: Lint, decorator: str) -> None:
    finding = only(linted(f"@{decorator}\ndef work(word):\n    return open(word)\n"))
    assert finding.runs == "rows"


def test_methods_of_decorated_classes_run_on_rows(linted: Lint) -> None:
    source = "@F.udtf(returnType='x int')\nclass Rows:\n    def eval(self, word):\n        yield open(word)\n"
    assert only(linted(source)).runs == "rows"


def test_decorator_of_the_job_around_a_udf(linted: Lint) -> None:
    source = """
        def text(function):
            return clonos.udf("string")(function)

        @text
        def work(word):
            return open(word)
    """
    assert only(linted(source)).runs == "rows"


def test_every_udf_decorator_of_clonos_is_recognised() -> None:
    decorators = {f"clonos.{name}" for name in clonos.__all__ if name.endswith("udf") or name == "operator"}
    assert decorators == {name for name in spark.UDF_MAKERS if name.startswith("clonos.")}


def test_service_behind_a_decorator_of_the_job_is_recognised(linted: Lint) -> None:
    source = """
        def remote(function):
            return clonos.service(timeout=2)(function)

        @remote
        def ask(word): ...
    """
    finding = only(linted(textwrap.dedent(source) + in_job("topic = ask('topic')")))
    assert (finding.code, finding.call) == ("CL010", "ask('topic')")


def test_decorator_runs_with_its_function(linted: Lint) -> None:
    source = """
        import functools, time

        def timed(function):
            @functools.wraps(function)
            def run(*args):
                begin = time.monotonic()
                return function(*args), begin
            return run

        @clonos.udf("string")
        @timed
        def work(word):
            return word
    """
    assert only(linted(source)).runs == "rows"


def test_job_function_has_its_own_rules(linted: Lint) -> None:
    finding = only(linted("import time\n" + in_job("rows = rows.withColumn('at', F.lit(time.time()))")))
    assert (finding.code, finding.runs, finding.severity) == ("CL001", "job", Severity.ERROR)
    assert "job parameter" in finding.instead
    assert not linted(in_job("import os\nschema = open('schema.json').read(), os.environ['HOME']")).findings


@pytest.mark.parametrize(
    "line",
    [
        "START = time.time()",
        "TOPIC = f'topic-{uuid.uuid4()}'",
        "def name(): return uuid.uuid4()\nTOPIC = name()",
        "class Names:\n    topic = uuid.uuid4()",
        "def topic(name=uuid.uuid4()): ...",
        "STAMP = clonos.now()",
        "requests.get('http://x')",
        "if True:\n    START = time.time()",
        "GENERATOR = random.Random(7)",
    ],
)
def test_call_at_start_is_a_warning(linted: Lint, line: str) -> None:
    before = "import random, time, uuid\nimport requests\n"
    finding = only(linted(before + line + "\n" + in_job("pass")))
    assert (finding.runs, finding.severity) == ("start", Severity.WARNING)


def test_client_created_at_start_is_reported_on_use(linted: Lint) -> None:
    """Creating a client sends no request; calling it on rows does."""
    before = "import random\nimport requests\nsession = requests.Session()\ngenerator = random.Random(7)\n"
    assert codes(linted(before + in_udf("value = word"))) == ["CL002"]
    findings = linted(before + in_udf("value = session.get(word), generator.random()")).findings
    assert [(finding.code, finding.severity.value) for finding in findings] == [
        ("CL002", "warning"),
        ("CL006", "error"),
        ("CL002", "error"),
    ]


def test_clients_in_attributes_are_reported_on_use(linted: Lint) -> None:
    source = """
        import requests

        class Api:
            def __init__(self):
                self.session = requests.Session()

            def ask(self, word):
                return self.session.get(word)

            def close(self):
                self.session.close()

        api = Api()

        @clonos.udf("string")
        def work(word):
            return api.ask(word)
    """
    finding = only(linted(source))
    assert finding.call == "self.session.get(word)"


def test_local_client_has_one_finding(linted: Lint) -> None:
    body = "with httpx.Client() as client:\n    value = client.get(word), [client.get(item) for item in value]"
    assert only(linted(in_udf(body, "import httpx"))).call == "httpx.Client()"


def test_seeded_generator_of_a_row_is_allowed(linted: Lint) -> None:
    body = "generator = clonos.rng(word)\nvalue = generator.random(), sorted(value, key=lambda _: generator.random())"
    assert not linted(in_udf(body)).findings
    body = "generator = random.Random(word)\nvalue = sorted(value, key=lambda _: generator.random())"
    assert not linted(in_udf(body, "import random")).findings
    before = "import random\n\ndef pick(generator: random.Random):\n    return generator.choice([1, 2])\n"
    assert not linted(in_udf("value = pick(clonos.rng(word))", before)).findings


def test_generator_around_a_udf_is_reported(linted: Lint) -> None:
    body = "draw = random.Random(7)\nrows = rows.withColumn('x', F.udf(lambda word: draw.random())('word'))"
    assert only(linted("import random\n" + in_job(body))).call == "draw.random()"


def test_unused_functions_are_ignored(linted: Lint) -> None:
    assert not linted("import time\n\ndef unused():\n    return time.time()\n" + in_job("pass")).findings


def test_code_of_a_program_runs_at_start(linted: Lint) -> None:
    main = "\nimport time\n\ndef main():\n    return time.time()\n\nif __name__ == '__main__':\n    main()\n"
    assert not linted(in_job("pass") + main).findings, "`clonos run` imports the file"
    assert only(linted(main)).runs == "start"
    assert not linted(main, head="").findings, "a tool, not a Spark program"


def test_module_of_helpers_runs_on_rows(linted: Lint) -> None:
    source = """
        import requests, time
        import clonos

        def stamp(word):
            return time.time()

        def fetch(word):
            return requests.get(word)

        @clonos.service
        def ask(word):
            return fetch(word)
    """
    assert only(linted(source, head="")).call == "time.time()"


def test_recursion_and_import_cycles_terminate(linted: Lint) -> None:
    source = """
        import time

        def even(number):
            return number == 0 or odd(number - 1)

        def odd(number):
            return number != 0 and even(number - time.time())

        class Node(Base):
            def next(self):
                return self.next().next

        class Base(Node): ...

        @clonos.udf("string")
        def work(word):
            return even(word), Node().next()
    """
    assert codes(linted(source)) == ["CL001"]
