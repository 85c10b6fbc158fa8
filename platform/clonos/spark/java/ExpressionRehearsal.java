package clonos;

import java.util.ArrayDeque;
import java.util.Arrays;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.ApplyFunctionExpression;
import org.apache.spark.sql.catalyst.expressions.CallMethodViaReflection;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.JsonToStructs;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable;
import org.apache.spark.sql.catalyst.expressions.Sequence;
import org.apache.spark.sql.catalyst.expressions.StructsToJson;
import org.apache.spark.sql.catalyst.expressions.Unevaluable;
import org.apache.spark.sql.catalyst.expressions.UserDefinedExpression;
import org.apache.spark.sql.catalyst.expressions.objects.Invoke;
import org.apache.spark.sql.catalyst.expressions.objects.StaticInvoke;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.util.ArrayBasedMapData;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.MapType;
import org.apache.spark.sql.types.ObjectType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.TimestampNTZType;
import org.apache.spark.sql.types.TimestampType;
import org.apache.spark.unsafe.types.UTF8String;
import scala.collection.immutable.List$;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Evaluates the built-in expressions of a query on sample values.
 *
 * <p>A rehearsal has no row, so classes that only a row uses are not initialized. That can take long: {@code lower} and
 * {@code upper} compute a table over all of Unicode at their first use, which takes more than a second. Columns, and the
 * results of functions that are not Spark's own, are replaced by sample values. No function of the user is called.
 */
public final class ExpressionRehearsal {
  private static final String SPARK = "org.apache.spark.";
  private static final String SPARK_SQL = "org.apache.spark.sql.";
  private static final String OF_OBJECTS = "org.apache.spark.sql.catalyst.expressions.objects.";
  private static final List<String> TEXTS = List.of("1", "2020-01-01 00:00:00");
  private static final int DAY = 18_262; // 2020-01-01
  private static final long MICROS = DAY * 86_400_000_000L;

  private static final Map<DataType, Object> ONES =
      Map.of(
          DataTypes.BooleanType, true,
          DataTypes.ByteType, (byte) 1,
          DataTypes.ShortType, (short) 1,
          DataTypes.IntegerType, 1,
          DataTypes.LongType, 1L,
          DataTypes.FloatType, 1.0f,
          DataTypes.DoubleType, 1.0);

  private final String text;
  private final Deque<Expression> remaining = new ArrayDeque<>();

  private ExpressionRehearsal(String text) {
    this.text = text;
  }

  /**
   * Evaluates the expressions of a plan.
   *
   * @param plan an analyzed plan
   * @return the number of evaluations without an error
   */
  public static int run(LogicalPlan plan) {
    return TEXTS.stream().mapToInt(text -> new ExpressionRehearsal(text).evaluateAll(plan)).sum();
  }

  private int evaluateAll(LogicalPlan plan) {
    int evaluated = 0;
    remaining.addAll(CollectionConverters.asJava(plan.expressions()));
    while (!remaining.isEmpty()) {
      evaluated += evaluate(remaining.remove()) ? 1 : 0;
    }
    for (LogicalPlan child : CollectionConverters.asJava(plan.children())) {
      evaluated += evaluateAll(child);
    }
    return evaluated;
  }

  private boolean evaluate(Expression expression) {
    try {
      Expression sampled = withSamples(expression);
      if (!(sampled instanceof Literal)) {
        sampled.eval(InternalRow.empty());
        return true;
      }
    } catch (Exception | AssertionError | LinkageError unsuitable) { // a sample value may be one that it refuses
      return false;
    }
    return false;
  }

  /** The expression with sample values for each expression that is not computed by Spark from literals alone. */
  private Expression withSamples(Expression expression) {
    Expression current = expression;
    while (current instanceof RuntimeReplaceable replaceable) {
      current = replaceable.replacement();
    }
    List<Expression> children = childrenOf(current);
    if (!isBuiltIn(current)) {
      remaining.addAll(children);
      return sample(current.dataType());
    }
    if (current instanceof JsonToStructs parser) {
      remaining.addAll(children);
      return withChildren(parser, List.of(json(parser)));
    }
    return children.isEmpty() ? current : withChildren(current, children.stream().map(this::withSamples).toList());
  }

  private static List<Expression> childrenOf(Expression expression) {
    return CollectionConverters.asJava(expression.children());
  }

  private static Expression withChildren(Expression expression, List<Expression> children) {
    return (Expression) expression.withNewChildren(List$.MODULE$.from(CollectionConverters.asScala(children)));
  }

  /** Whether Spark computes the expression, with code of its own and from its children. */
  private static boolean isBuiltIn(Expression expression) {
    if (expression instanceof Unevaluable
        || expression instanceof UserDefinedExpression
        || expression instanceof CallMethodViaReflection
        || expression instanceof ApplyFunctionExpression
        || expression instanceof Sequence // to a sample date it could be very long
        || (childrenOf(expression).isEmpty() && !expression.deterministic())) {
      return false;
    }
    if (expression instanceof StaticInvoke invoke) {
      return invoke.staticObject().getName().startsWith(SPARK);
    }
    if (expression instanceof Invoke invoke) {
      return invoke.targetObject() instanceof Literal target
          && target.dataType() instanceof ObjectType type
          && type.cls().getName().startsWith(SPARK);
    }
    String name = expression.getClass().getName();
    return name.startsWith(SPARK_SQL) && !name.startsWith(OF_OBJECTS);
  }

  private Literal json(JsonToStructs parser) {
    Expression writer = new StructsToJson(parser.options(), sample(parser.schema()), parser.timeZoneId()).replacement();
    return new Literal(writer.eval(InternalRow.empty()), writer.dataType());
  }

  private Literal sample(DataType type) {
    return new Literal(valueOf(type), type);
  }

  private Object valueOf(DataType type) {
    if (type instanceof StringType) {
      return UTF8String.fromString(text);
    } else if (type instanceof BinaryType) {
      return UTF8String.fromString(text).getBytes();
    } else if (type instanceof TimestampType || type instanceof TimestampNTZType) {
      return MICROS;
    } else if (type instanceof DateType) {
      return DAY;
    } else if (type instanceof ArrayType array) {
      return arrayOf(array.elementType());
    } else if (type instanceof MapType map) {
      return new ArrayBasedMapData(arrayOf(map.keyType()), arrayOf(map.valueType()));
    } else if (type instanceof StructType struct) {
      return new GenericInternalRow(Arrays.stream(struct.fields()).map(field -> valueOf(field.dataType())).toArray());
    }
    return ONES.get(type); // null for the others, for example intervals
  }

  private ArrayData arrayOf(DataType type) {
    return new GenericArrayData(new Object[] {valueOf(type)});
  }
}
