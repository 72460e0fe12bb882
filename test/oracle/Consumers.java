import java.io.BufferedOutputStream;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZoneOffset;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import com.fasterxml.jackson.databind.ObjectMapper;
import io.debezium.transforms.ExtractNewRecordState;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.formats.common.TimestampFormat;
import org.apache.flink.formats.json.debezium.DebeziumJsonDeserializationSchema;
import org.apache.flink.table.data.ArrayData;
import org.apache.flink.table.data.DecimalData;
import org.apache.flink.table.data.MapData;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.types.logical.ArrayType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.MapType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.utils.LogicalTypeParser;
import org.apache.flink.table.types.utils.TypeConversions;
import org.apache.flink.types.RowKind;
import org.apache.flink.util.Collector;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.connect.data.Field;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.data.Struct;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.sink.SinkRecord;

/**
 * Consumers BROKER FILE ARGUMENT...: rebuilds tables from what is committed in topics, as people's own programs do, and
 * writes them to FILE: consumer and topic, a tab, a row as JSON on each line.  Four arguments a consumer:
 *
 *   flink TOPIC plain|schemas ROW-TYPE      Flink's debezium-json format; the changelog that it makes of the topic
 *   connect TOPIC - -                       Connect's JsonConverter with schemas, Debezium's ExtractNewRecordState
 *   plain TOPIC - -                         Connect's JsonConverter without schemas: the row is the value
 *
 * The last two keep the newest value of each key and forget a key at its tombstone, as a sink does.
 */
public class Consumers {
	private static final ObjectMapper JSON = new ObjectMapper();

	public static void main(String[] arguments) throws Exception {
		Map<String, Object> properties = Map.of("bootstrap.servers", arguments[0], "isolation.level", "read_committed",
			"allow.auto.create.topics", "false", "fetch.max.wait.ms", "10");

		try (KafkaConsumer<byte[], byte[]> consumer =
				new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
			OutputStream out = new BufferedOutputStream(new FileOutputStream(arguments[1]))) {
			for (int i = 2; i < arguments.length; i += 4) {
				String topic = arguments[i + 1];
				List<ConsumerRecord<byte[], byte[]>> records = read(consumer, topic);
				Collection<Object> rows;

				switch (arguments[i]) {
					case "flink":
						rows = flink(records, arguments[i + 2].equals("schemas"), arguments[i + 3]);
						break;
					case "connect":
						rows = connect(records);
						break;
					case "plain":
						rows = plain(records);
						break;
					default:
						throw new IllegalArgumentException(arguments[i]);
				}
				for (Object row : rows) {
					out.write((arguments[i] + " " + topic + "\t").getBytes("UTF-8"));
					out.write(JSON.writeValueAsBytes(row));
					out.write('\n');
				}
			}
		}
	}

	/* All that is committed now, partition by partition */
	private static List<ConsumerRecord<byte[], byte[]>> read(KafkaConsumer<byte[], byte[]> consumer, String topic) {
		List<ConsumerRecord<byte[], byte[]>> records = new ArrayList<>();

		consumer.partitionsFor(topic).stream().map(p -> new TopicPartition(topic, p.partition())).forEach(p -> {
			long end = consumer.endOffsets(List.of(p)).get(p);

			consumer.assign(List.of(p));
			consumer.seekToBeginning(List.of(p));
			while (consumer.position(p) < end)
				consumer.poll(java.time.Duration.ofSeconds(1)).forEach(records::add);
		});
		return records;
	}

	/* The rows that are left of Flink's changelog; a row is retracted by all its columns. */
	private static Collection<Object> flink(List<ConsumerRecord<byte[], byte[]>> records, boolean schemas, String type)
			throws Exception {
		RowType row = (RowType) LogicalTypeParser.parse(type, Consumers.class.getClassLoader());
		DebeziumJsonDeserializationSchema format = new DebeziumJsonDeserializationSchema(
			TypeConversions.fromLogicalToDataType(row), List.of(), TypeInformation.of(RowData.class), schemas, false,
			TimestampFormat.ISO_8601);
		Map<String, Integer> counts = new TreeMap<>();
		List<Object> rows = new ArrayList<>();

		format.open(null);
		for (ConsumerRecord<byte[], byte[]> r : records) {
			format.deserialize(r.value(), new Collector<RowData>() {
				@Override
				public void collect(RowData data) {
					RowKind kind = data.getRowKind();
					boolean more = kind == RowKind.INSERT || kind == RowKind.UPDATE_AFTER;

					try {
						counts.merge(JSON.writeValueAsString(flinkRow(data, row)), more ? 1 : -1, Integer::sum);
					}
					catch (Exception e) {
						throw new RuntimeException(e);
					}
				}

				@Override
				public void close() {
				}
			});
		}
		for (Map.Entry<String, Integer> e : counts.entrySet()) {
			if (e.getValue() < 0)
				throw new IllegalStateException("retracted, but never there: " + e.getKey());
			for (int i = 0; i < e.getValue(); i++)
				rows.add(JSON.readTree(e.getKey()));
		}
		return rows;
	}

	private static Map<String, Object> flinkRow(RowData data, RowType type) {
		Map<String, Object> row = new LinkedHashMap<>();

		for (int i = 0; i < type.getFieldCount(); i++)
			row.put(type.getFieldNames().get(i),
				flinkValue(RowData.createFieldGetter(type.getTypeAt(i), i).getFieldOrNull(data), type.getTypeAt(i)));
		return row;
	}

	private static List<Object> flinkArray(ArrayData data, LogicalType element) {
		List<Object> array = new ArrayList<>();

		for (int i = 0; i < data.size(); i++)
			array.add(flinkValue(ArrayData.createElementGetter(element).getElementOrNull(data, i), element));
		return array;
	}

	private static Object flinkValue(Object value, LogicalType type) {
		if (value == null)
			return null;
		switch (type.getTypeRoot()) {
			case ROW:
				return flinkRow((RowData) value, (RowType) type);
			case ARRAY:
				return flinkArray((ArrayData) value, ((ArrayType) type).getElementType());
			case MAP:
				Map<String, Object> map = new TreeMap<>();
				List<Object> keys = flinkArray(((MapData) value).keyArray(), ((MapType) type).getKeyType());
				List<Object> values = flinkArray(((MapData) value).valueArray(), ((MapType) type).getValueType());

				for (int i = 0; i < keys.size(); i++)
					map.put((String) keys.get(i), values.get(i));
				return map;
			case DATE:
				return LocalDate.ofEpochDay((Integer) value).toString();
			case TIMESTAMP_WITHOUT_TIME_ZONE:
				return ((TimestampData) value).toLocalDateTime().toString();
			case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
				return ((TimestampData) value).toInstant().toString();
			case DECIMAL:
				return ((DecimalData) value).toBigDecimal().toPlainString();
			case BINARY:
			case VARBINARY:
				return "\\x" + HexFormat.of().formatHex((byte[]) value);
			case CHAR:
			case VARCHAR:
				return value.toString();
			default:
				return value;
		}
	}

	private static JsonConverter converter(boolean key, boolean schemas) {
		JsonConverter converter = new JsonConverter();
		converter.configure(Map.of("schemas.enable", schemas), key);
		return converter;
	}

	private static Collection<Object> connect(List<ConsumerRecord<byte[], byte[]>> records) {
		JsonConverter keys = converter(true, true);
		JsonConverter values = converter(false, true);
		ExtractNewRecordState<SinkRecord> extract = new ExtractNewRecordState<>();
		Map<Object, Object> rows = new LinkedHashMap<>();

		extract.configure(new HashMap<>());
		for (ConsumerRecord<byte[], byte[]> r : records) {
			SchemaAndValue key = keys.toConnectData(r.topic(), r.key());
			SchemaAndValue value = values.toConnectData(r.topic(), r.value());
			SinkRecord record = extract.apply(new SinkRecord(r.topic(), r.partition(), key.schema(), key.value(), value.schema(),
				value.value(), r.offset()));

			if (record == null)
				continue;
			if (record.value() == null)
				rows.remove(record.key());
			else
				rows.put(record.key(), connectValue(record.value(), record.valueSchema()));
		}
		return rows.values();
	}

	/* What a sink makes of the types that Connect and Debezium name */
	private static Object connectValue(Object value, Schema schema) {
		if (value == null)
			return null;
		switch (schema.name() == null ? "" : schema.name()) {
			case "io.debezium.time.Date":
				return LocalDate.ofEpochDay((Integer) value).toString();
			case "io.debezium.time.MicroTime":
				return LocalTime.ofNanoOfDay((Long) value * 1000).toString();
			case "io.debezium.time.Timestamp":
				return LocalDateTime.ofInstant(Instant.ofEpochMilli((Long) value), ZoneOffset.UTC).toString();
			case "io.debezium.time.MicroTimestamp":
				return LocalDateTime.ofEpochSecond(Math.floorDiv((Long) value, 1000000L),
					(int) Math.floorMod((Long) value, 1000000L) * 1000, ZoneOffset.UTC).toString();
			case "io.debezium.data.VariableScaleDecimal":
				return new BigDecimal(new BigInteger(((Struct) value).getBytes("value")), ((Struct) value).getInt32("scale"))
					.toPlainString();
			default:
				break;
		}
		if (value instanceof BigDecimal)
			return ((BigDecimal) value).toPlainString();
		if (value instanceof ByteBuffer)
			return "\\x" + HexFormat.of().formatHex(((ByteBuffer) value).array());
		if (value instanceof byte[])
			return "\\x" + HexFormat.of().formatHex((byte[]) value);
		if (value instanceof List) {
			List<Object> array = new ArrayList<>();

			for (Object element : (List<?>) value)
				array.add(connectValue(element, schema.valueSchema()));
			return array;
		}
		if (value instanceof Struct) {
			Map<String, Object> row = new LinkedHashMap<>();

			for (Field f : schema.fields())
				row.put(f.name(), connectValue(((Struct) value).get(f), f.schema()));
			return row;
		}
		return value;
	}

	private static Collection<Object> plain(List<ConsumerRecord<byte[], byte[]>> records) {
		JsonConverter keys = converter(true, false);
		JsonConverter values = converter(false, false);
		Map<Object, Object> rows = new LinkedHashMap<>();

		for (ConsumerRecord<byte[], byte[]> r : records) {
			Object key = keys.toConnectData(r.topic(), r.key()).value();
			Object value = values.toConnectData(r.topic(), r.value()).value();

			if (value == null)
				rows.remove(key);
			else
				rows.put(key, value);
		}
		return rows.values();
	}
}
