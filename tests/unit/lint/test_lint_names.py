"""The meaning of names: aliases, shadows, scopes."""

from __future__ import annotations

import pytest

from support.linting import Lint, codes, in_job, in_udf, only


@pytest.mark.parametrize(
    ("imports", "expression"),
    [
        ("import time as t", "t.time()"),
        ("from time import time", "time()"),
        ("from time import time as now", "now()"),
        ("from time import *", "time()"),
        ("import time\nnow = time.time", "now()"),
        ("import time\nclock = time\nnow = clock.time", "now()"),
        ("import time\nfrom functools import partial\nnow = partial(time.time)", "now()"),
        ("try:\n    import time as t\nexcept ImportError:\n    t = None", "t.time()"),
        ("import time", "(lambda: time.time())()"),
        ("import time", "[time.time() for _ in value]"),
        ("import time", "f'{time.time()}'"),
        ("", "__import__('os'), __import__('time')"),
    ],
)
def test_aliases_are_resolved(linted: Lint, imports: str, expression: str) -> None:
    actual = codes(linted(in_udf(f"value = {expression}", imports)))
    assert actual == ([] if "__import__" in expression else ["CL001"])


@pytest.mark.parametrize(
    "body",
    [
        "import time\nvalue = time.time()",
        "from time import time as t\nvalue = t()",
        "import time\ndef inner():\n    return time.time()\nvalue = inner()",
        "import time\nif value:\n    now = time.time\nelse:\n    now = None\nvalue = now()",
        "import time\nvalue = await_ = (now := time.time)()",
        "import time\nmatch value:\n    case 1:\n        value = time.time()",
    ],
)
def test_names_bound_in_a_function_are_resolved(linted: Lint, body: str) -> None:
    assert "CL001" in codes(linted(in_udf(body)))


@pytest.mark.parametrize(
    "body",
    [
        "time = value\nvalue = time.time()",
        "for time in value:\n    time.time()",
        "value = [time.time() for time in value]",
        "value = [time() for time in value]",
        "with value as time:\n    time.time()",
        "try:\n    pass\nexcept OSError as time:\n    time.time()",
        "def time(): return 1\nvalue = time()",
        "value = (lambda time: time.time())(value)",
        "match value:\n    case [time, *rest]:\n        time.time()",
        "match value:\n    case {'a': 1, **time}:\n        time.time()",
        "(time, other) = value\ntime.time()",
        "if (time := value):\n    time.time()",
    ],
)
def test_local_names_shadow_modules(linted: Lint, body: str) -> None:
    assert not linted(in_udf(body, "import time")).findings


def test_parameters_shadow_modules(linted: Lint) -> None:
    source = """
        import time
        from random import random

        @clonos.udf('string')
        def work(time, random):
            return time.time(), random()
    """
    assert not linted(source).findings


def test_function_of_the_job_shadows_an_import(linted: Lint) -> None:
    assert not linted(in_udf("value = uuid4(word)", "def uuid4(word):\n    return word\n")).findings
    assert codes(linted(in_udf("value = open(word)", "def open(word):\n    return word\n"))) == []


def test_methods_do_not_see_names_of_the_class(linted: Lint) -> None:
    source = """
        import time

        class Clock:
            time = None

            def read(self):
                return time.time()

        @clonos.udf('string')
        def work(word):
            return Clock().read()
    """
    assert codes(linted(source)) == ["CL001"]


def test_global_names_are_resolved(linted: Lint) -> None:
    source = """
        import time
        import httpx

        client = None

        def connect():
            global client
            if client is None:
                client = httpx.Client()
            return client

        @clonos.udf('string')
        def work(word):
            connect()
            return client.get(word)
    """
    assert [finding.call for finding in linted(source).findings] == ["httpx.Client()", "client.get(word)"]


def test_repeated_binding_is_fast(linted: Lint) -> None:
    """The lookup of a name that is bound to itself fifty times terminates."""
    lines = [f"rows = rows.withColumn('c{index}', F.col('c') + other.x)\nother = rows.x" for index in range(50)]
    assert not linted(in_job("other = rows\n" + "\n".join(lines))).findings


def test_number_of_meanings_of_a_name_is_limited(linted: Lint) -> None:
    """Two conditional expressions a line would double the meanings with each line."""
    lines = [f"a{index + 1} = a{index}.x if word else a{index}.y" for index in range(60)]
    assert not linted(in_udf("value = a60()", "import time as a0\n" + "\n".join(lines))).findings


@pytest.mark.parametrize(
    ("imports", "function"),
    [
        ("import pyspark.sql.functions as sf", "sf.rand()"),
        ("import pyspark.sql.functions", "pyspark.sql.functions.rand()"),
        ("from pyspark.sql.functions import rand", "rand()"),
        ("from pyspark.sql.functions import rand as r", "r()"),
        ("from pyspark.sql.functions import *", "rand()"),
        ("from pyspark.sql.functions import *", "col('x') + rand()"),
        ("import pyspark.sql.functions as f", "f.round(f.rand(), 2).alias('x')"),
    ],
)
def test_aliases_of_spark_functions_are_resolved(linted: Lint, imports: str, function: str) -> None:
    assert codes(linted(f"{imports}\n" + in_job(f"rows = rows.withColumn('r', {function})"))) == ["CL101"]


def test_star_import_of_spark_hides_builtins(linted: Lint) -> None:
    star = "from pyspark.sql.functions import *\n"
    assert not linted(star + in_job("rows = rows.withColumn('h', hash('word'))")).findings
    assert not linted(in_udf("value = first", "first = 1\n")).findings


@pytest.mark.parametrize(
    "imports",
    [
        "import clonos as c\nservice = c.service",
        "from clonos import service",
        "from clonos import service as causal\nservice = causal",
        "from clonos.causal.service import service",
        "from functools import partial\nservice = partial(clonos.service, timeout=2)",
        "def service(function=None, **options):\n    return clonos.service(function, **options)",
    ],
)
@pytest.mark.parametrize("alias", ["@service", "@service(timeout=2)"])
def test_aliases_of_service_are_resolved(linted: Lint, imports: str, alias: str) -> None:
    source = f"{imports}\nimport requests\n\n{alias}\ndef ask(word):\n    return requests.get(word).text\n"
    assert not linted(source + in_udf("value = ask(word)")).findings


def test_service_decorator_in_a_variable_is_resolved(linted: Lint) -> None:
    source = (
        "import requests\nservice = clonos.service(timeout=2)\n\n@service\ndef ask(word):\n    requests.get(word)\n"
    )
    assert not linted(source + in_udf("value = ask(word)")).findings


def test_unions_of_client_types_are_resolved(linted: Lint) -> None:
    source = """
        import httpx

        def fetch(client: httpx.Client | None, word):
            return client.get(word)

        @clonos.udf('string')
        def work(word):
            return fetch(None, word)
    """
    assert only(linted(source)).call == "client.get(word)"
