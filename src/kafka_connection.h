/*
 * kafka_connection.h
 *	  kafka_rpc's connections: names, TCP, TLS, SASL, one request at a time.
 */
#ifndef TK_KAFKA_CONNECTION_H
#define TK_KAFKA_CONNECTION_H

#include <openssl/ssl.h>

#include "buffer.h"
#include "kafka_internal.h"

#define TK_HOST_MAX 255			/* bytes of a host name */

typedef enum TkSasl
{
	TK_SASL_NONE,
	TK_SASL_PLAIN,
	TK_SASL_SCRAM_SHA_256,
	TK_SASL_SCRAM_SHA_512
} TkSasl;

typedef struct TkServer
{
	char		host[TK_HOST_MAX + 1];
	int			port;
} TkServer;

struct TkLookup;

/* What the connections of a client share. */
typedef struct TkNet
{
	/* configuration */
	TkServer   *servers;		/* bootstrap.servers */
	int			nservers;
	char	   *client_id;
	int			family;			/* AF_UNSPEC, AF_INET, AF_INET6 */
	int			setup_ms;		/* bound of connecting, TLS and SASL together */
	int			request_ms;		/* bound of one request */
	int			receive_max;	/* bytes of an answer */
	int			send_buffer;	/* 0 = the system's */
	int			receive_buffer;
	bool		keepalive;
	bool		nodelay;
	SSL_CTX    *tls;			/* NULL: no TLS */
	bool		verify_chain;
	bool		verify_host;
	TkSasl		sasl;
	char	   *username;
	char	   *password;

	/* What stood in the way last; it has no librdkafka handle. */
	TkClient	trouble;

	struct TkLookup *lookup;	/* a name lookup that has not come back yet */
	TkBuffer	out;
	TkBuffer	in;
} TkNet;

typedef struct TkConnection
{
	TkServer	server;
	int			fd;				/* -1: closed */
	SSL		   *ssl;
	bool		eof;
	bool		proven;			/* answered a request since it was made */
	int32_t		correlation;
	int64_t		expires_ms;		/* the broker closes it then (SASL session), 0 = never */
	uint64_t	used;			/* order of use */
} TkConnection;

typedef struct TkApi
{
	int16_t		key;
	int16_t		version;
	bool		flexible;
	const char *name;
	size_t		answer_max;
} TkApi;

/*
 * An answer being read.  A value that isn't there, or can't be, sets "bad" and
 * reads as 0; the caller looks once, at the end.
 */
typedef struct TkAnswer
{
	const unsigned char *at;
	const unsigned char *end;
	bool		bad;
} TkAnswer;

/* kafka_connection.c */
extern bool tk_connection_open(TkNet *net, TkConnection *c, const TkServer *server, const TkDeadline *deadline,
							   int limit_ms);
extern void tk_connection_close(TkConnection *c);
extern bool tk_connection_usable(TkConnection *c);
extern bool tk_connection_request(TkNet *net, TkConnection *c, const TkApi *api, const TkBuffer *body,
								  const TkDeadline *deadline, int limit_ms, TkAnswer *answer);
extern void tk_net_free(TkNet *net);

/* Notes what is wrong, closes the connection (may be NULL), returns false. */
extern bool tk_trouble(TkNet *net, TkConnection *c, int code, const char *fmt,...)
			__attribute__((format(printf, 4, 5)));
extern bool tk_bad_answer(TkNet *net, TkConnection *c, const TkApi *api, const char *what);

/* Makes foreign text fit for a message: one line of printable ASCII. */
extern void tk_printable(char *to, size_t size, const void *from, size_t len);

/* kafka_connection_conf.c */
/* As tk_alert_means, for the certificate that a context has. */
extern const char *tk_tls_alert_means(SSL_CTX *tls, int alert);

extern bool tk_net_configure(TkNet *net, const TkKafkaConf *conf, TkKafkaError *error);

/* kafka_sasl.c */
extern bool tk_sasl_authenticate(TkNet *net, TkConnection *c, const TkDeadline *deadline, int64_t end_ms);

/* Wire format, kafka_wire.c */
extern void tk_put_i8(TkBuffer *b, int8_t value);
extern void tk_put_i16(TkBuffer *b, int16_t value);
extern void tk_put_i32(TkBuffer *b, int32_t value);
extern void tk_put_i64(TkBuffer *b, int64_t value);
extern void tk_put_uvarint(TkBuffer *b, uint32_t value);
extern void tk_put_string(TkBuffer *b, const char *value);
extern void tk_put_compact_string(TkBuffer *b, const char *value);

extern int8_t tk_get_i8(TkAnswer *a);
extern int16_t tk_get_i16(TkAnswer *a);
extern int32_t tk_get_i32(TkAnswer *a);
extern int64_t tk_get_i64(TkAnswer *a);
extern uint32_t tk_get_uvarint(TkAnswer *a);
extern const char *tk_get_bytes(TkAnswer *a, size_t len);
extern const char *tk_get_string(TkAnswer *a, size_t *len); /* NULL: null */
extern const char *tk_get_compact_string(TkAnswer *a, size_t *len);
extern int	tk_get_count(TkAnswer *a, size_t element_min);
extern int	tk_get_compact_count(TkAnswer *a, size_t element_min);
extern void tk_skip_tags(TkAnswer *a);
extern bool tk_answer_is_whole(const TkAnswer *a);

#endif							/* TK_KAFKA_CONNECTION_H */
