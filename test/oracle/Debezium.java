import java.io.BufferedOutputStream;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import io.debezium.connector.postgresql.PostgresConnectorTask;
import org.apache.kafka.common.metrics.PluginMetrics;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTaskContext;
import org.apache.kafka.connect.storage.OffsetStorageReader;

/**
 * Debezium FILE LAST-TOPIC NAME=VALUE...: the records that Debezium's PostgreSQL connector makes, until one of LAST-TOPIC.
 *
 * NAME=VALUE are the connector's properties.  It runs as Kafka Connect would run it, without Kafka: the records go through
 * Connect's JsonConverter into FILE, one a line: topic, key, value, the two again with schemas, and for each header name,
 * value, value with schema, with tabs between them.  A null is \N; JSON has neither tabs nor line feeds.
 */
public class Debezium {
	private static final byte[] NULL = "\\N".getBytes(StandardCharsets.UTF_8);

	private static JsonConverter converter(boolean key, boolean schemas) {
		JsonConverter converter = new JsonConverter();
		/* A null is a null, although the column has a default */
		converter.configure(Map.of("schemas.enable", schemas, "replace.null.with.default", false), key);
		return converter;
	}

	private static void field(OutputStream out, byte[] value, int separator) throws Exception {
		out.write(value == null ? NULL : value);
		out.write(separator);
	}

	public static void main(String[] arguments) throws Exception {
		Map<String, String> properties = new HashMap<>();

		for (int i = 2; i < arguments.length; i++) {
			int equals = arguments[i].indexOf('=');
			properties.put(arguments[i].substring(0, equals), arguments[i].substring(equals + 1));
		}

		/* It begins without stored offsets: where its slot stands */
		OffsetStorageReader offsets = new OffsetStorageReader() {
			@Override
			public <T> Map<String, Object> offset(Map<String, T> partition) {
				return null;
			}

			@Override
			public <T> Map<Map<String, T>, Map<String, Object>> offsets(Collection<Map<String, T>> partitions) {
				return new HashMap<>();
			}
		};
		PostgresConnectorTask task = new PostgresConnectorTask();
		task.initialize(new SourceTaskContext() {
			@Override
			public Map<String, String> configs() {
				return properties;
			}

			@Override
			public OffsetStorageReader offsetStorageReader() {
				return offsets;
			}

			@Override
			public PluginMetrics pluginMetrics() {
				return null;
			}
		});

		JsonConverter key = converter(true, false);
		JsonConverter value = converter(false, false);
		JsonConverter keyWithSchema = converter(true, true);
		JsonConverter valueWithSchema = converter(false, true);

		try (OutputStream out = new BufferedOutputStream(new FileOutputStream(arguments[0]))) {
			task.start(properties);
			for (boolean last = false; !last;) {
				List<SourceRecord> records = task.poll();

				if (records == null)
					continue;
				for (SourceRecord r : records) {
					int headers = r.headers().size();

					field(out, r.topic().getBytes(StandardCharsets.UTF_8), '\t');
					field(out, key.fromConnectData(r.topic(), r.keySchema(), r.key()), '\t');
					field(out, value.fromConnectData(r.topic(), r.valueSchema(), r.value()), '\t');
					field(out, keyWithSchema.fromConnectData(r.topic(), r.keySchema(), r.key()), '\t');
					field(out, valueWithSchema.fromConnectData(r.topic(), r.valueSchema(), r.value()), headers > 0 ? '\t' : '\n');
					for (Header h : r.headers()) {
						field(out, h.key().getBytes(StandardCharsets.UTF_8), '\t');
						field(out, value.fromConnectHeader(r.topic(), h.key(), h.schema(), h.value()), '\t');
						field(out, valueWithSchema.fromConnectHeader(r.topic(), h.key(), h.schema(), h.value()),
							--headers > 0 ? '\t' : '\n');
					}
					last = last || r.topic().equals(arguments[1]);
				}
				out.flush();
			}
		}
		catch (Throwable e) {
			e.printStackTrace();
			Runtime.getRuntime().halt(1);
		}
		/* What it would clean up ends with the process */
		Runtime.getRuntime().halt(0);
	}
}
