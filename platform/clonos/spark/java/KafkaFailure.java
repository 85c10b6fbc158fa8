package clonos;

import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.RecordBatchTooLargeException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.protocol.Errors;

/** The typed errors ({@code clonos.errors}) of what Kafka's clients throw. */
public final class KafkaFailure {
  private static final Set<String> REFUSALS =
      Set.of(
          "SaslAuthenticationException",
          "SslAuthenticationException",
          "UnsupportedSaslMechanismException",
          "TopicAuthorizationException",
          "ClusterAuthorizationException",
          "TransactionalIdAuthorizationException",
          "GroupAuthorizationException");

  private KafkaFailure() {}

  /**
   * Returns the typed error of a failure.
   *
   * @param where what failed, such as {@code Lane 0 of orders}
   * @param otherwise name of the error's class for a reason that may pass
   */
  public static CarriedError typed(String where, Throwable failure, String otherwise) {
    if (failure instanceof CarriedError typed) {
      return typed;
    }
    Throwable cause = cause(failure);
    String what = where + ": " + cause.getClass().getSimpleName() + ": " + cause.getMessage() + ".";
    if (cause instanceof RecordTooLargeException || cause instanceof RecordBatchTooLargeException) {
      // A replay would meet the same limit: the sink's copy of it is older than the broker's.
      return new CarriedError(
          "RecordRejected", what, "", "raise the topic's max.message.bytes; if it was just changed, run the job again.");
    }
    if (cause instanceof InvalidTimestampException) {
      return new CarriedError(
          "RecordRejected", what, "", "fix the column 'timestamp', or raise the topic's message.timestamp.after.max.ms.");
    }
    if (cause instanceof TransactionTooSlow) {
      return new CarriedError("EpochTooLarge", where + ": " + cause.getMessage() + ".", "", "");
    }
    if (cause instanceof TopicIds.CreatedAgain) {
      return new CarriedError("EpochFailed", where + ": " + cause.getMessage() + ", so the transaction was aborted.", "", "");
    }
    if (String.valueOf(cause.getMessage()).contains(Errors.INVALID_TRANSACTION_TIMEOUT.message())) {
      return new CarriedError(
          "BrokerLimit",
          what,
          "nothing was published.",
          "lower the sink's transaction timeout or raise the broker's transaction.max.timeout.ms.");
    }
    if (cause instanceof UnsupportedVersionException) {
      return new CarriedError("BrokerLimit", what, "nothing was published.", "use brokers of Kafka 3.0 or later.");
    }
    return new CarriedError(isRefusal(cause) ? "KafkaAccessDenied" : otherwise, what, "", "");
  }

  /** Kafka did not accept a record; the cause is Kafka's own exception. */
  static final class RecordFailed extends RuntimeException {
    private static final long serialVersionUID = 1;

    RecordFailed(Exception cause) {
      super(cause.getMessage(), cause);
    }
  }

  /** Kafka did not take the records of a transaction within the transaction's timeout. */
  static final class TransactionTooSlow extends TimeoutException {
    private static final long serialVersionUID = 1;

    TransactionTooSlow(long bytesLeft, long timeoutNanos) {
      super(
          "Kafka has not acknowledged the last "
              + bytesLeft
              + " bytes within the transaction's timeout of "
              + TimeUnit.NANOSECONDS.toSeconds(timeoutNanos)
              + " s");
    }
  }

  /** Whether Kafka refused the user, so that another attempt would fail too. */
  private static boolean isRefusal(Throwable failure) {
    return REFUSALS.contains(failure.getClass().getSimpleName());
  }

  /** The reason for a failure: not the future or the later call that reports it. */
  private static Throwable cause(Throwable failure) {
    Throwable reported = failure;
    while (reported.getCause() != null
        && (reported instanceof ExecutionException || reported instanceof RecordFailed)) {
      reported = reported.getCause();
    }
    for (Throwable cause = reported; cause != null; cause = cause.getCause()) {
      if (isRefusal(cause)) {
        return cause;
      }
    }
    return reported;
  }
}
