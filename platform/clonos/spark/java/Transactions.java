package clonos;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.DescribeTransactionsResult;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.admin.TransactionListing;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.TransactionalIdNotFoundException;

/**
 * The transactions of a Kafka cluster (KIP-664), as a program: it reads the options of an admin client from standard input, as a
 * properties file, and prints JSON.
 */
public final class Transactions {
  private Transactions() {}

  /** @param arguments {@code ls}, or {@code abort} and transactional ids */
  public static void main(String[] arguments) throws Exception {
    Properties options = new Properties();
    options.load(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    try (Admin admin = Admin.create(options)) {
      if (arguments[0].equals("abort")) {
        admin.fenceProducers(List.of(arguments).subList(1, arguments.length)).all().get();
        System.out.println("[]");
      } else {
        System.out.println(new ObjectMapper().writeValueAsString(list(admin)));
      }
    } catch (ExecutionException | KafkaException failure) {
      System.err.println(KafkaFailure.typed("Kafka did not answer about its transactions", failure, "BrokerUnavailable").getMessage());
      System.exit(1);
    }
  }

  private static List<Map<String, Object>> list(Admin admin) throws ExecutionException, InterruptedException {
    List<String> ids = new ArrayList<>();
    for (TransactionListing transaction : admin.listTransactions().all().get()) {
      ids.add(transaction.transactionalId());
    }
    DescribeTransactionsResult described = admin.describeTransactions(ids);
    List<Map<String, Object>> transactions = new ArrayList<>();
    for (String id : ids) {
      try {
        transactions.add(fields(id, described.description(id).get()));
      } catch (ExecutionException failure) {
        if (!(failure.getCause() instanceof TransactionalIdNotFoundException)) {
          throw failure; // otherwise it has expired since it was listed
        }
      }
    }
    return transactions;
  }

  private static Map<String, Object> fields(String id, TransactionDescription described) {
    List<String> topics = new ArrayList<>();
    for (TopicPartition partition : described.topicPartitions()) {
      topics.add(partition.topic());
    }
    Map<String, Object> fields = new LinkedHashMap<>();
    fields.put("id", id);
    fields.put("state", described.state().toString());
    fields.put("producer", described.producerId());
    fields.put("epoch", described.producerEpoch());
    fields.put("timeout_ms", described.transactionTimeoutMs());
    fields.put("started_ms", described.transactionStartTimeMs().isPresent() ? described.transactionStartTimeMs().getAsLong() : 0L);
    fields.put("topics", topics.stream().distinct().sorted().toList());
    return fields;
  }
}
