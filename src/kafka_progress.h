/*
 * kafka_progress.h
 *	  The progress record: a pipeline's position, kept in Kafka itself and
 *	  written by the same Kafka transaction as the records it covers.
 *
 * Its topic has one partition, is compacted and never expires, so the newest
 * committed record says which checkpoint Kafka holds, whatever this server
 * remembers.
 */
#ifndef TK_KAFKA_PROGRESS_H
#define TK_KAFKA_PROGRESS_H

#include "kafka_client.h"

#define TK_PROGRESS_VERSION		1
#define TK_PROGRESS_KEY			"progress"	/* one key: compaction keeps the newest */
#define TK_PREFIX_MAX			180 /* bytes of transactional_id_prefix */
#define TK_POOL_MAX				1000	/* transactional ids of a pipeline: a start fences them all */

typedef struct TkProgress
{
	char		uuid[37];		/* of the pipeline, lower case with hyphens */
	uint64_t	system_identifier;
	uint32_t	database;		/* oid */
	uint32_t	timeline;
	uint64_t	instance;		/* random, one a start */
	int64_t		checkpoint;		/* id of the newest checkpoint in Kafka; 0 = none yet */
	uint64_t	end_lsn;		/* everything that committed up to here is in Kafka */
	char		prefix[TK_PREFIX_MAX + 1];	/* transactional_id_prefix in use */
	int			pool_size;		/* transactional ids in use: <prefix>.<pipeline>.0 … */
	bool		start;			/* a start record: position unchanged */
} TkProgress;

/* Writes the record's value (JSON, fixed order of fields); returns its length, always < size if size >= 1024. */
extern size_t tk_progress_format(const TkProgress *progress, char *value, size_t size);

/* Strict: anything but what tk_progress_format writes is refused; "why" says what. */
extern bool tk_progress_parse(const char *value, size_t len, TkProgress *progress, char *why, size_t size);

typedef struct TkProgressReader TkProgressReader;

/* A read_committed consumer without a group. NULL on error. */
extern TkProgressReader *tk_progress_reader_create(const TkKafkaConf *conf, const char *topic, TkKafkaError *error);

/*
 * Reads the newest committed progress record (read backwards from the last
 * stable offset, in growing windows).  *found = false: the topic holds none.
 * TK_CAUSE_NO_TOPIC: there is no topic.  A record that can't be parsed is
 * FATAL.
 */
extern TkKafkaStatus tk_progress_read(TkProgressReader *reader, const TkKafkaWait *wait,
									  TkProgress *progress, bool *found, TkKafkaError *error);

/*
 * Waits until the partition's last stable offset is its high watermark: no
 * transaction is open there and all markers are written.
 */
extern TkKafkaStatus tk_progress_wait_stable(TkProgressReader *reader, const TkKafkaWait *wait, TkKafkaError *error);

extern bool tk_progress_reader_destroy(TkProgressReader *reader, int timeout_ms);

#endif							/* TK_KAFKA_PROGRESS_H */
