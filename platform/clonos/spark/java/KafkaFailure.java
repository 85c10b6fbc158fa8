package clonos;

import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.common.errors.InvalidTxnTimeoutException;
import org.apache.kafka.common.errors.RecordBatchTooLargeException;
import org.apache.kafka.common.errors.RecordTooLargeException;

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
   * @param other name of the error's class for a reason that may pass
   */
  public static CarriedError typed(String where, Throwable failure, String other) {
    if (failure instanceof CarriedError typed) {
      return typed;
    }
    Throwable cause = failure instanceof LaneProducer.RecordFailed ? failure.getCause() : cause(failure);
    String what = where + ": " + cause.getClass().getSimpleName() + ": " + cause.getMessage() + ".";
    if (cause instanceof RecordTooLargeException || cause instanceof RecordBatchTooLargeException) {
      // A replay would meet the same limit: the sink's copy of it is older than the broker's.
      return new CarriedError(
          "RecordRejected", what, "", "raise the topic's max.message.bytes; if it was just changed, run the job again.");
    }
    if (cause instanceof InvalidTxnTimeoutException) {
      return new CarriedError(
          "BrokerLimit",
          what,
          "nothing was published.",
          "lower the sink's transaction timeout or raise the broker's transaction.max.timeout.ms.");
    }
    return new CarriedError(isRefusal(cause) ? "KafkaAccessDenied" : other, what, "", "");
  }

  /** Whether Kafka refused the user, so that another attempt would fail too. */
  static boolean isRefusal(Throwable failure) {
    return REFUSALS.contains(failure.getClass().getSimpleName());
  }

  /** The failure itself, not the future that reports it. */
  static Throwable cause(Throwable failure) {
    return failure instanceof ExecutionException && failure.getCause() != null ? failure.getCause() : failure;
  }
}
