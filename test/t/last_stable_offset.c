/*
 * last_stable_offset.c
 *	  BROKER TOPIC: for each line of the input, the offset up to which a
 *	  read_committed consumer reads partition 0 now.
 */
#include <librdkafka/rdkafka.h>
#include <stdio.h>
#include <stdlib.h>

int
main(int argc, char **argv)
{
	char		text[512];
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	rd_kafka_t *consumer;

	if (argc != 3 ||
		rd_kafka_conf_set(conf, "bootstrap.servers", argv[1], text, sizeof(text)) != RD_KAFKA_CONF_OK ||
		rd_kafka_conf_set(conf, "isolation.level", "read_committed", text, sizeof(text)) != RD_KAFKA_CONF_OK ||
		(consumer = rd_kafka_new(RD_KAFKA_CONSUMER, conf, text, sizeof(text))) == NULL)
	{
		fprintf(stderr, "%s\n", text);
		return 1;
	}
	while (fgets(text, sizeof(text), stdin) != NULL)
	{
		int64_t		low;
		int64_t		high;
		rd_kafka_resp_err_t code = rd_kafka_query_watermark_offsets(consumer, argv[2], 0, &low, &high, 10000);

		if (code)
		{
			fprintf(stderr, "%s\n", rd_kafka_err2str(code));
			return 1;
		}
		printf("%lld\n", (long long) high);
		fflush(stdout);
	}
	rd_kafka_destroy(consumer);
	return 0;
}
