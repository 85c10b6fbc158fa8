"""Each rule reports its calls, and no similar calls."""

from __future__ import annotations

import pytest

from clonos.lint import RULES, Severity
from support.linting import Lint, codes, in_job, in_udf, only

# code: (imports, expression in a UDF)
RAW = {
    "CL001": [
        ("import time", "time.time()"),
        ("import time", "time.time_ns()"),
        ("import time", "time.monotonic()"),
        ("import time", "time.perf_counter_ns()"),
        ("import time", "time.strftime('%Y')"),
        ("import time", "time.localtime()"),
        ("import datetime", "datetime.datetime.now()"),
        ("import datetime as dt", "dt.datetime.now(dt.UTC)"),
        ("from datetime import datetime", "datetime.utcnow()"),
        ("from datetime import date", "date.today()"),
        ("import pandas as pd", "pd.Timestamp.now()"),
        ("import pandas as pd", "pd.Timestamp('now')"),
        ("import numpy as np", "np.datetime64('today')"),
        ("import time", "sorted([1], key=time.time)"),
    ],
    "CL002": [
        ("import random", "random.random()"),
        ("import random", "random.choice(value)"),
        ("import random", "random.shuffle(value)"),
        ("import random", "random.Random()"),
        ("import random", "random.Random(None)"),
        ("import numpy as np", "np.random.rand(3)"),
        ("import numpy as np", "np.random.default_rng()"),
        ("from numpy.random import default_rng", "default_rng().normal()"),
        ("import numpy.random as npr", "npr.RandomState()"),
        ("import torch", "torch.randn(3)"),
        ("from faker import Faker", "Faker()"),
        ("import pandas as pd", "pd.DataFrame(value).sample(3)"),
    ],
    "CL003": [
        ("import uuid", "uuid.uuid4()"),
        ("import uuid", "uuid.uuid1()"),
        ("import uuid", "uuid.uuid7()"),
        ("from dataclasses import field\nimport uuid", "field(default_factory=uuid.uuid4)"),
    ],
    "CL004": [
        ("import secrets", "secrets.token_hex(4)"),
        ("import os", "os.urandom(8)"),
        ("import random", "random.SystemRandom()"),
    ],
    "CL005": [
        ("import os", "os.getpid()"),
        ("import os", "os.getloadavg()"),
        ("import threading", "threading.get_ident()"),
        ("import socket", "socket.gethostname()"),
        ("import platform", "platform.node()"),
        ("import psutil", "psutil.virtual_memory()"),
        ("import time", "time.process_time()"),
        ("import uuid", "uuid.getnode()"),
        ("", "id(value)"),
        ("from pyspark import TaskContext", "TaskContext.get().taskAttemptId()"),
    ],
    "CL006": [
        ("import requests", "requests.get('http://x')"),
        ("import requests", "requests.Session()"),
        ("import httpx", "httpx.post('http://x')"),
        ("import httpx", "httpx.Client()"),
        ("import urllib.request", "urllib.request.urlopen('http://x')"),
        ("from urllib.request import urlopen", "urlopen('http://x')"),
        ("import urllib3", "urllib3.PoolManager()"),
        ("import aiohttp", "aiohttp.ClientSession()"),
        ("import http.client", "http.client.HTTPSConnection('x')"),
        ("from http import client", "client.HTTPConnection('x')"),
        ("import socket", "socket.create_connection(('x', 1))"),
        ("import boto3", "boto3.client('s3')"),
        ("import psycopg", "psycopg.connect('')"),
        ("from sqlalchemy import create_engine", "create_engine('sqlite://')"),
        ("import redis", "redis.Redis()"),
        ("from google.cloud import storage", "storage.Client()"),
        ("from confluent_kafka import Producer", "Producer({})"),
    ],
    "CL007": [
        ("import subprocess", "subprocess.run(['date'])"),
        ("from subprocess import check_output as out", "out(['date'])"),
        ("import os", "os.system('date')"),
        ("import os", "os.popen('date').read()"),
    ],
    "CL008": [
        ("", "open('/etc/x')"),
        ("import os", "os.listdir('.')"),
        ("import os", "os.environ['HOME']"),
        ("import os", "os.environ.get('HOME')"),
        ("import os", "os.getenv('HOME')"),
        ("from pathlib import Path", "Path('x').read_text()"),
        ("import pandas as pd", "pd.read_csv('x')"),
    ],
    "CL009": [
        ("", "hash(word)"),
        ("", "list(set(value))"),
        ("", "tuple({letter for letter in value})"),
        ("", "','.join({word, value})"),
    ],
}

FINE = [
    ("import time", "time.sleep(1)"),
    ("import time", "time.strftime('%Y', time.gmtime(0))"),
    ("import time", "time.localtime(value)"),
    ("import datetime as dt", "dt.datetime.fromtimestamp(0, dt.UTC)"),
    ("import datetime as dt", "dt.datetime(2024, 1, 1).date()"),
    ("import pandas as pd", "pd.Timestamp('2024-01-01')"),
    ("import random", "random.Random(word).random()"),
    ("import random", "random.Random(clonos.uuid4(word).int).choice([1, 2])"),
    ("import random", "isinstance(value, random.Random)"),
    ("import numpy as np", "np.random.default_rng(value).normal()"),
    ("import numpy as np", "np.random.RandomState(seed=7).rand()"),
    ("import pandas as pd", "pd.DataFrame(value).sample(3, random_state=1)"),
    ("import uuid", "uuid.uuid5(uuid.NAMESPACE_URL, word)"),
    ("import uuid", "uuid.UUID(word)"),
    ("import secrets", "secrets.compare_digest(word, value)"),
    ("import os", "os.path.join(word, value)"),
    ("import requests", "requests.exceptions.ConnectTimeout()"),
    ("import requests", "isinstance(value, requests.Response)"),
    ("from urllib.parse import urlsplit, quote", "urlsplit(quote(word))"),
    ("import subprocess", "subprocess.CalledProcessError(1, 'x')"),
    ("from pathlib import Path", "Path(word).name"),
    ("import hashlib, zlib", "hashlib.sha256(word).hexdigest(), zlib.crc32(word)"),
    ("", "hash(7)"),
    ("", "sorted(set(value)), len(set(value)), sorted({1, 2})"),
    ("", "','.join(sorted(set(value)))"),
    ("", "clonos.now(), clonos.clock(), clonos.random(word), clonos.rng(word), clonos.uuid4(word), clonos.epoch()"),
    ("", "clonos.param('server')"),
]

# code: lines in a job function with a frame `rows`
SPARK = {
    "CL101": [
        "rows = rows.withColumn('r', F.rand())",
        "rows = rows.withColumn('r', F.randn())",
        "rows = rows.withColumn('r', F.uuid())",
        "rows = rows.withColumn('r', F.shuffle('items'))",
        "rows = rows.withColumn('r', F.randstr(5))",
        "rows = rows.withColumn('r', F.uniform(1, 6))",
        "rows = rows.withColumn('r', F.reflect(F.lit('java.util.UUID'), F.lit('randomUUID')))",
        "rows = rows.withColumn('r', F.expr('uuid()'))",
        "rows = rows.selectExpr('value', 'rand() AS r')",
        "rows = rows.where('rand() < 0.5')",
        "rows = rows.sample(0.5)",
        "rows = rows.sample(False, 0.5)",
        "rows, rest = rows.randomSplit([0.5, 0.5])",
    ],
    "CL102": [
        "rows = rows.withColumn('r', F.rand(7))",
        "rows = rows.withColumn('r', F.rand(seed=7))",
        "rows = rows.withColumn('r', F.shuffle('items', 3))",
        "rows = rows.withColumn('r', F.monotonically_increasing_id())",
        "rows = rows.withColumn('r', F.spark_partition_id())",
        "rows = rows.withColumn('r', F.input_file_name())",
        "rows = rows.selectExpr('rand(7) AS r')",
        "rows = rows.sample(0.5, seed=7)",
        "rows = rows.sample(0.5, 7)",
        "rows = rows.sample(False, 0.5, 7)",
    ],
    "CL103": [
        "rows = rows.groupBy('word').agg(F.first('value'))",
        "rows = rows.groupBy('word').agg(F.last('value', ignorenulls=True))",
        "rows = rows.groupBy('word').agg(F.collect_list('value').alias('values'))",
        "rows = rows.groupBy('word').agg(F.collect_set('value'))",
        "rows = rows.groupBy('word').agg(F.any_value('value'))",
        "rows = rows.groupBy('word').agg(F.first_value('value'))",
        "rows = rows.groupBy('word').agg(F.listagg('value', F.lit(',')))",
        "rows = rows.groupBy('word').agg(F.concat_ws(',', F.collect_list('value')))",
        "rows = rows.groupBy('word').agg({'value': 'first'})",
        "rows = rows.groupBy('word').agg(F.expr('collect_list(value)'))",
        "ctx.spark.sql('SELECT word, last(value) FROM words GROUP BY word')",
    ],
    "CL104": [
        "rows = rows.groupBy('word').agg(F.mode('value'))",
        "rows = rows.groupBy('word').agg(F.percentile_approx('value', 0.5))",
        "rows = rows.groupBy('word').agg(F.expr('approx_percentile(value, 0.5)'))",
    ],
    "CL105": [
        "rows = rows.groupBy('word').agg(F.sum(F.col('value').cast('double')))",
        "rows = rows.groupBy('word').agg(F.avg(F.col('value').cast('float')).alias('mean'))",
        "rows = rows.withColumn('price', F.col('value').cast('double')).groupBy('word').sum('price')",
        "rows = rows.select(F.col('value').cast('double').alias('cost')).groupBy().agg(F.sum('cost'))",
        "rows = rows.select(F.from_json('value', 'word string, paid double').alias('x')).agg(F.sum('x.paid'))",
        "rows = rows.groupBy('word').agg(F.stddev('value'))",
        "rows = rows.groupBy('word').agg(F.expr('sum(cast(value AS double))'))",
        "rows = rows.groupBy('word').agg(F.expr('avg(value::double)'))",
        "rows = rows.withColumn('toll', F.col('value').cast('double')).groupBy('word').agg({'toll': 'sum'})",
    ],
    "CL106": [
        "rows = rows.dropDuplicates(['word'])",
        "rows = rows.drop_duplicates(['word'])",
        "rows = rows.withWatermark('at', '1 hour').dropDuplicatesWithinWatermark(['word'])",
        "rows = rows.limit(10)",
    ],
}

FINE_SPARK = [
    "rows = rows.dropDuplicates().distinct()",
    "rows = rows.withColumn('t', F.current_timestamp()).withColumn('n', F.now()).withColumn('d', F.current_date())",
    "rows = rows.selectExpr('current_timestamp() AS t', 'now() AS n')",
    "rows = rows.groupBy('word').agg(F.sort_array(F.collect_list('value')))",
    "rows = rows.groupBy('word').agg(F.array_sort(F.collect_set('value')))",
    "rows = rows.groupBy('word').agg(F.expr('array_sort(collect_list(value))'))",
    "rows = rows.groupBy('word').agg(F.expr('listagg(value) WITHIN GROUP (ORDER BY at)'))",
    "rows = rows.withColumn('f', F.first('value').over(window))",
    "rows = rows.selectExpr('first(value) OVER (PARTITION BY word ORDER BY at) AS f')",
    "rows = rows.groupBy('word').agg(F.min_by('value', 'at'), F.max('value'), F.count('*'))",
    "rows = rows.groupBy('word').agg(F.mode('value', True))",
    "rows = rows.groupBy('word').agg(F.sum('value'), F.avg('value'), F.sum(F.col('value').cast('long')))",
    "rows = rows.withColumn('price', F.col('value').cast('double'))"
    ".agg(F.sum(F.col('price').cast('decimal(18,2)')), F.max('price'))",
    "rows = rows.groupBy('word').agg(F.expr('sum(cast(value AS decimal(18,2)))'))",
    "rows = rows.where(\"value = 'rand()'\")",
    "rows = rows.selectExpr('value AS `uuid()`', 'shuffled(value)', 'brand(value)', '-- rand()\\n1')",
    "rows = rows.where('uuid = 1 ORDER BY value NULLS FIRST')",
    "first = [1, 2][0]; rows.rand, rows.uuid",
    "rows = rows.withColumn('h', F.hash('value'))",
]


@pytest.mark.parametrize(
    ("code", "imports", "expression"), [(code, *case) for code, cases in RAW.items() for case in cases]
)
def test_raw_call_in_a_udf_is_reported(linted: Lint, code: str, imports: str, expression: str) -> None:
    finding = only(linted(in_udf(f"value = {expression}", imports)))
    assert finding.code == code
    assert finding.runs == "rows"
    assert finding.severity is RULES[code].severity
    assert finding.instead == RULES[code].instead


@pytest.mark.parametrize(("imports", "expression"), FINE)
def test_repeatable_call_in_a_udf_is_allowed(linted: Lint, imports: str, expression: str) -> None:
    assert not linted(in_udf(f"value = {expression}", imports)).findings


@pytest.mark.parametrize(("code", "line"), [(code, line) for code, lines in SPARK.items() for line in lines])
def test_unrepeatable_spark_function_is_reported(linted: Lint, code: str, line: str) -> None:
    finding = only(linted(in_job(line)))
    assert finding.code == code
    assert finding.severity is RULES[code].severity


@pytest.mark.parametrize("line", FINE_SPARK)
def test_repeatable_spark_function_is_allowed(linted: Lint, line: str) -> None:
    assert not linted(in_job(line)).findings


@pytest.mark.parametrize("service", ["now()", "clock()", "random()", "rng()", "uuid4()", "epoch()"])
def test_clonos_service_in_the_job_function_is_reported(linted: Lint, service: str) -> None:
    finding = only(linted(in_job(f"rows = rows.withColumn('x', F.lit(str(clonos.{service})))")))
    assert (finding.code, finding.runs, finding.severity) == ("CL010", "job", Severity.ERROR)


def test_service_of_the_job_in_the_job_function_is_reported(linted: Lint) -> None:
    before = "@clonos.service\ndef ask(word): ...\n"
    finding = only(linted(before + in_job("topic = ask('topic')")))
    assert (finding.code, finding.call) == ("CL010", "ask('topic')")
    assert not linted(before + "\n@clonos.udf('string')\ndef work(word):\n    return ask(word)\n").findings


def test_every_rule_is_tested() -> None:
    elsewhere = {"CL010", "CL011", "CL900"}  # above, test_lint_dataflow, test_lint_allow
    assert {*RAW, *SPARK, *elsewhere} == set(RULES)


def test_finding_has_position_and_text(linted: Lint) -> None:
    finding = only(linted(in_udf("länge = len(word); value = [ time.time( ) ]", "import time")))
    assert finding.file == "job.py"
    assert (finding.line, finding.column) == (7, 34)
    assert finding.call == "time.time( )"


def test_sql_text_over_several_lines_is_read(linted: Lint) -> None:
    source = in_job(
        '''
        ctx.spark.sql(f"""
            SELECT word, uuid() AS id, {ctx.params['x']}
            FROM words
        """)
        '''
    )
    finding = only(linted(source))
    assert (finding.code, finding.call) == ("CL101", "uuid()")


def test_sql_text_in_a_variable_is_read(linted: Lint) -> None:
    assert codes(linted("QUERY = 'SELECT rand() ' + 'AS r'\n" + in_job("ctx.spark.sql(QUERY)"))) == ["CL101"]
    assert codes(linted(in_job("text = 'rand({})'.format(7)\nrows = rows.selectExpr([text])"))) == ["CL102"]
