"""Tables of the calls that violate each rule of the linter, by dotted name (after aliases are resolved).

A name that ends in ``.*`` covers all names below it, except exceptions and types.
"""

from __future__ import annotations


def _named(code: str, **members: str) -> dict[str, str]:
    """``module__sub="a b"`` → ``module.sub.a``, ``module.sub.b``."""
    return {f"{module.replace('__', '.')}.{name}": code for module, names in members.items() for name in names.split()}


_HTTP = "get post put patch delete head options request"

CALLS: dict[str, str] = {
    **_named(
        "CL001",
        time="time time_ns monotonic monotonic_ns perf_counter perf_counter_ns clock_gettime clock_gettime_ns",
        datetime__datetime="now utcnow today",
        datetime__date="today",
        pandas__Timestamp="now utcnow today",
        arrow="now utcnow",
        pendulum="now today yesterday tomorrow",
        django__utils__timezone="now localtime localdate",
    ),
    **_named(
        "CL002",
        random="*",
        numpy__random="*",
        torch="rand randn randint randperm normal bernoulli multinomial rand_like randn_like randint_like",
        tensorflow__random="*",
        faker="Faker",
    ),
    **_named(
        "CL003",
        uuid="uuid1 uuid4 uuid6 uuid7 uuid8",
        shortuuid="uuid random",
        ulid="new ULID ulid",
        nanoid="generate",
        ksuid="Ksuid KsuidMs",
    ),
    **_named("CL004", secrets="*", os="urandom getrandom", random="SystemRandom", ssl="RAND_bytes"),
    **_named(
        "CL005",
        os="getpid getppid getpgrp getsid getlogin times uname getloadavg",
        uuid="getnode",
        time="process_time process_time_ns thread_time thread_time_ns",
        threading="get_ident get_native_id current_thread active_count enumerate",
        multiprocessing="current_process active_children",
        socket="gethostname getfqdn",
        platform="node uname",
        resource="getrusage",
        psutil="*",
        getpass="getuser",
        builtins="id",
        pyspark__TaskContext__get__call="taskAttemptId attemptNumber stageId cpus resources",
    ),
    **_named(
        "CL006",
        requests=_HTTP + " Session session",
        httpx=_HTTP + " stream Client AsyncClient",
        urllib__request="urlopen urlretrieve build_opener OpenerDirector URLopener FancyURLopener",
        urllib3="request PoolManager ProxyManager HTTPConnectionPool HTTPSConnectionPool connection_from_url",
        aiohttp="request ClientSession",
        http__client="HTTPConnection HTTPSConnection",
        socket="socket create_connection create_server fromfd socketpair getaddrinfo getnameinfo gethostbyname "
        "gethostbyname_ex gethostbyaddr",
        asyncio="open_connection open_unix_connection start_server",
        xmlrpc__client="ServerProxy Server",
        smtplib="SMTP SMTP_SSL LMTP",
        ftplib="FTP FTP_TLS",
        imaplib="IMAP4 IMAP4_SSL IMAP4_stream",
        poplib="POP3 POP3_SSL",
        sqlite3="connect",
        sqlalchemy="create_engine engine_from_config",
        sqlalchemy__orm="Session sessionmaker scoped_session",
        sqlalchemy__ext__asyncio="create_async_engine AsyncSession async_sessionmaker",
        psycopg="connect Connection.connect AsyncConnection.connect",
        psycopg_pool="*",
        psycopg2="connect pool.*",
        asyncpg="connect create_pool",
        pymysql="connect Connection",
        MySQLdb="connect Connect",
        mysql__connector="connect",
        pyodbc="connect",
        oracledb="*",
        cx_Oracle="connect SessionPool",
        duckdb="connect",
        pymongo="MongoClient AsyncMongoClient",
        redis="*",
        boto3="*",
        aioboto3="*",
        botocore__session="*",
        google__cloud="*",
        azure="*",
        snowflake__connector="connect",
        databricks__sql="connect",
        clickhouse_connect="*",
        clickhouse_driver="Client connect",
        cassandra__cluster="*",
        neo4j="GraphDatabase.*",
        elasticsearch="Elasticsearch AsyncElasticsearch",
        opensearchpy="OpenSearch AsyncOpenSearch",
        grpc="insecure_channel secure_channel aio.insecure_channel aio.secure_channel",
        confluent_kafka="Producer Consumer SerializingProducer DeserializingConsumer admin.AdminClient",
        kafka="KafkaProducer KafkaConsumer KafkaAdminClient",
        aiokafka="AIOKafkaProducer AIOKafkaConsumer",
        pika="BlockingConnection SelectConnection",
        pulsar="Client",
        nats="connect",
        paramiko="*",
        ldap3="Connection",
        dns__resolver="*",
        hvac="Client",
        minio="Minio",
        fsspec="*",
        s3fs="*",
        gcsfs="*",
        smart_open="open",
        websockets="*",
        websocket="*",
        openai="*",
        anthropic="*",
    ),
    **_named(
        "CL007",
        subprocess="*",
        os="system popen spawnl spawnle spawnlp spawnlpe spawnv spawnve spawnvp spawnvpe posix_spawn posix_spawnp "
        "execl execle execlp execlpe execv execve execvp execvpe fork forkpty",
        asyncio="create_subprocess_exec create_subprocess_shell",
        pty="spawn fork",
    ),
    **_named(
        "CL008",
        builtins="open",
        io="open open_code",
        os="getenv environ.* environb.* getcwd listdir scandir walk stat lstat",
        os__path="exists isfile isdir getmtime getctime getatime getsize",
        glob="glob iglob",
        pathlib__Path="cwd home",
        pathlib__Path__call="open read_text read_bytes exists is_file is_dir iterdir glob rglob stat walk",
        pandas="read_csv read_json read_parquet read_excel read_feather read_orc read_pickle read_table read_sql "
        "read_sql_query read_sql_table read_xml read_html",
        numpy="load loadtxt genfromtxt fromfile memmap",
        pyarrow__parquet="read_table ParquetFile ParquetDataset",
        pyarrow__csv="read_csv",
        linecache="getline getlines",
        sys="stdin.*",
    ),
    **_named("CL009", builtins="hash"),
    **_named("CL010", clonos="now clock random rng uuid4 epoch"),
}
CALLS = {name.replace(".call.", "()."): code for name, code in CALLS.items()}

HARMLESS = frozenset(
    _named(
        "",
        random="Random getstate setstate",
        numpy__random="default_rng RandomState Generator SeedSequence PCG64 PCG64DXSM MT19937 Philox SFC64 "
        "BitGenerator get_state set_state",
        secrets="compare_digest",
        subprocess="list2cmdline CompletedProcess",
        psutil="version_info",
        botocore__session="Config",
        boto3="set_stream_logger",
        redis="connection",
    )
)
"""Names below a ``.*`` of `CALLS` that are repeatable or seeded (`GENERATORS` checks the seed)."""

GENERATORS = frozenset(
    _named(
        "", random="Random", numpy__random="default_rng RandomState SeedSequence PCG64 PCG64DXSM MT19937 Philox SFC64"
    )
)
"""Constructors of generators: repeatable with a seed, if rows do not share the generator."""

WITHOUT_ARGUMENTS: dict[str, int] = {
    "time.localtime": 0,
    "time.gmtime": 0,
    "time.ctime": 0,
    "time.asctime": 0,
    "time.strftime": 1,
    "email.utils.localtime": 0,
    "email.utils.formatdate": 0,
}
"""Functions that read the clock if called with at most this number of arguments (CL001)."""

NOW_TEXT = frozenset({"pandas.Timestamp", "pandas.to_datetime", "numpy.datetime64"})
"""Functions that read the clock if their first argument is the text ``now`` or ``today`` (CL001)."""

FRAMES = frozenset({"pandas.DataFrame", "pandas.Series"})
"""Classes whose method ``sample`` needs ``random_state`` (CL002)."""

VALUES = {"os.environ": "CL008", "os.environb": "CL008", "sys.stdin": "CL008"}
"""Values that violate a rule when they are read, without a call."""

BY_NAME = frozenset({"CL001", "CL002", "CL003", "CL004"})
"""Rules that also apply to a function that is passed on without a call."""

QUIET_METHODS = frozenset({"close", "aclose", "shutdown", "dispose", "mount", "getstate", "bit_generator"})
"""Methods of clients and generators that send no request and draw no number."""

LISTS_OF_A_SET = frozenset({"builtins.list", "builtins.tuple", "builtins.enumerate"})
SETS = frozenset({"builtins.set", "builtins.frozenset"})

KEYED = frozenset({"clonos.random", "clonos.rng", "clonos.uuid4"})
"""Services that count positions if called without a key (CL011)."""


def code_of(name: str) -> str | None:
    """Return the code of the rule that a call of the dotted `name` violates; None if it violates none."""
    if name in HARMLESS:
        return None
    code = CALLS.get(name)
    if code is not None:
        return code
    last = name.rpartition(".")[2]
    if last.endswith(("Error", "Exception", "Timeout", "Warning")):
        return None
    above = name
    while above := above.rpartition(".")[0]:
        code = CALLS.get(f"{above}.*")
        if code is not None:
            return code if "()" not in name[len(above) :] else None
    return None
