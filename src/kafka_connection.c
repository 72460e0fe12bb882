/*
 * kafka_connection.c
 *	  Connections to brokers: names, TCP, TLS, and one request at a time.
 *
 * Sockets never block: every wait is a poll() of at most 100 ms, with a look at
 * the caller's flag after it.  A request that was not answered in time leaves
 * the connection in the middle of something, so it is closed; the same after
 * whatever else goes wrong.  A broker that sends nonsense costs at most the
 * memory of what it really sent, and that is bounded per kind of request.
 *
 * getaddrinfo() knows no bound.  A thread calls it, with a copy of all it needs;
 * when the caller can't wait any longer the thread stays behind, to be asked
 * again by the next call for the same name, or to clean up after itself.
 *
 * No signal ever comes of a broken connection: OpenSSL writes through a BIO of
 * ours, which uses MSG_NOSIGNAL as our own writes do.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "kafka_connection.h"
#include "kafka_rpc.h"

#define LOOKUPS_MAX		8		/* threads in getaddrinfo; more would be no better */
#define READ_CHUNK		16384


/*
 * What went wrong
 */

void
tk_printable(char *to, size_t size, const void *from, size_t len)
{
	const unsigned char *bytes = from;
	size_t		i;

	for (i = 0; i < len && i + 1 < size; i++)
		to[i] = bytes[i] >= ' ' && bytes[i] <= '~' ? (char) bytes[i] : '?';
	to[i] = '\0';
}

/* A timeout says the least: it never replaces what is known better. */
bool
tk_trouble(TkNet *net, TkConnection *c, int code, const char *fmt,...)
{
	va_list		args;

	if (c)
		tk_connection_close(c);
	if (code == RD_KAFKA_RESP_ERR__TIMED_OUT && net->trouble.trouble_code != 0)
		return false;
	net->trouble.trouble_code = code;
	va_start(args, fmt);
	vsnprintf(net->trouble.trouble, sizeof(net->trouble.trouble), fmt, args);
	va_end(args);
	return false;
}

bool
tk_bad_answer(TkNet *net, TkConnection *c, const TkApi *api, const char *what)
{
	return tk_trouble(net, c, RD_KAFKA_RESP_ERR__BAD_MSG, "%s:%d answered %s with %s",
					  c->server.host, c->server.port, api->name, what);
}

static bool
no_memory(TkNet *net, TkConnection *c)
{
	return tk_trouble(net, c, RD_KAFKA_RESP_ERR__CRIT_SYS_RESOURCE, "out of memory");
}


/*
 * Names
 */

typedef struct TkLookup
{
	pthread_t	thread;
	pthread_mutex_t mutex;
	pthread_cond_t finished;
	TkServer	server;
	int			family;
	bool		done;
	bool		abandoned;
	int			failure;		/* getaddrinfo's */
	struct addrinfo *addresses;
} TkLookup;

static long lookups;			/* atomic: threads that may still run */

bool
tk_rpc_threads_left(void)
{
	return __atomic_load_n(&lookups, __ATOMIC_SEQ_CST) > 0;
}

static int
look_up(const TkServer *server, int family, int flags, struct addrinfo **addresses)
{
	struct addrinfo hints;
	char		port[8];

	memset(&hints, 0, sizeof(hints));
	hints.ai_family = family;
	hints.ai_socktype = SOCK_STREAM;
	hints.ai_protocol = IPPROTO_TCP;
	hints.ai_flags = AI_NUMERICSERV | flags;
	snprintf(port, sizeof(port), "%d", server->port);
	*addresses = NULL;
	return getaddrinfo(server->host, port, &hints, addresses);
}

static void
free_lookup(TkLookup *lookup)
{
	if (lookup->addresses)
		freeaddrinfo(lookup->addresses);
	pthread_cond_destroy(&lookup->finished);
	pthread_mutex_destroy(&lookup->mutex);
	free(lookup);
}

static void *
run_lookup(void *arg)
{
	TkLookup   *lookup = arg;
	struct addrinfo *addresses;
	int			failure = look_up(&lookup->server, lookup->family, AI_ADDRCONFIG, &addresses);
	bool		abandoned;

	pthread_mutex_lock(&lookup->mutex);
	lookup->failure = failure;
	lookup->addresses = failure == 0 ? addresses : NULL;
	lookup->done = true;
	abandoned = lookup->abandoned;
	pthread_cond_signal(&lookup->finished);
	pthread_mutex_unlock(&lookup->mutex);

	if (abandoned)
		free_lookup(lookup);
	__atomic_fetch_sub(&lookups, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static TkLookup *
start_lookup(const TkServer *server, int family)
{
	TkLookup   *lookup;

	if (__atomic_load_n(&lookups, __ATOMIC_SEQ_CST) >= LOOKUPS_MAX)
		return NULL;
	lookup = calloc(1, sizeof(TkLookup));
	if (lookup == NULL)
		return NULL;
	lookup->server = *server;
	lookup->family = family;
	pthread_mutex_init(&lookup->mutex, NULL);
	tk_cond_init(&lookup->finished);
	__atomic_fetch_add(&lookups, 1, __ATOMIC_SEQ_CST);
	if (tk_start_thread(&lookup->thread, 0, run_lookup, lookup) != 0)
	{
		__atomic_fetch_sub(&lookups, 1, __ATOMIC_SEQ_CST);
		free_lookup(lookup);
		return NULL;
	}
	return lookup;
}

/* Waits for it; false when it is not done by then. */
static bool
await_lookup(TkLookup *lookup, const TkDeadline *deadline, int64_t end_ms)
{
	bool		done;

	do
	{
		int64_t		until_ms = tk_now_ms() + TK_SLICE_MS;
		struct timespec until;

		if (until_ms > end_ms)
			until_ms = end_ms;
		until.tv_sec = until_ms / 1000;
		until.tv_nsec = (long) (until_ms % 1000) * 1000000;
		pthread_mutex_lock(&lookup->mutex);
		while (!lookup->done)
			if (pthread_cond_timedwait(&lookup->finished, &lookup->mutex, &until) != 0)
				break;
		done = lookup->done;
		pthread_mutex_unlock(&lookup->mutex);
	} while (!done && !tk_is_over(deadline) && tk_now_ms() < end_ms);
	return done;
}

static void
drop_lookup(TkNet *net)
{
	TkLookup   *lookup = net->lookup;
	bool		done;

	if (lookup == NULL)
		return;
	net->lookup = NULL;
	pthread_mutex_lock(&lookup->mutex);
	done = lookup->done;
	lookup->abandoned = !done;
	/* Before the thread can see "abandoned" and free it. */
	if (!done)
		pthread_detach(lookup->thread);
	pthread_mutex_unlock(&lookup->mutex);
	if (done)
	{
		pthread_join(lookup->thread, NULL);
		free_lookup(lookup);
	}
}

static bool
resolve(TkNet *net, const TkServer *server, const TkDeadline *deadline, int64_t end_ms,
		struct addrinfo **addresses)
{
	TkLookup   *lookup;
	int			failure;

	/* An address needs no lookup, so no thread. */
	if (look_up(server, net->family, AI_NUMERICHOST, addresses) == 0)
		return true;

	if (net->lookup && (strcmp(net->lookup->server.host, server->host) != 0 ||
						net->lookup->server.port != server->port))
		drop_lookup(net);
	if (net->lookup == NULL)
		net->lookup = start_lookup(server, net->family);
	lookup = net->lookup;
	if (lookup == NULL)
		return tk_trouble(net, NULL, RD_KAFKA_RESP_ERR__RESOLVE, "no thread to look up host name \"%s\"",
						  server->host);
	if (!await_lookup(lookup, deadline, end_ms))
		return tk_trouble(net, NULL, RD_KAFKA_RESP_ERR__RESOLVE, "the lookup of host name \"%s\" does not return",
						  server->host);
	failure = lookup->failure;
	*addresses = lookup->addresses;
	lookup->addresses = NULL;
	drop_lookup(net);
	if (failure != 0)
		return tk_trouble(net, NULL, RD_KAFKA_RESP_ERR__RESOLVE, "host name \"%s\": %s", server->host,
						  gai_strerror(failure));
	return true;
}


/*
 * Bytes
 */

/* False when the wait is over, one way or another. */
static bool
wait_for(TkConnection *c, short events, const TkDeadline *deadline, int64_t end_ms)
{
	for (;;)
	{
		struct pollfd p = {c->fd, events, 0};
		int64_t		left = end_ms - tk_now_ms();

		if (left <= 0 || tk_is_over(deadline))
			return false;
		if (poll(&p, 1, left < TK_SLICE_MS ? (int) left : TK_SLICE_MS) > 0)
			return true;
	}
}

static int
bio_write(BIO *bio, const char *data, int len)
{
	TkConnection *c = BIO_get_data(bio);
	ssize_t		n;

	BIO_clear_retry_flags(bio);
	do
		n = send(c->fd, data, (size_t) len, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		BIO_set_retry_write(bio);
	return (int) n;
}

static int
bio_read(BIO *bio, char *data, int len)
{
	TkConnection *c = BIO_get_data(bio);
	ssize_t		n;

	BIO_clear_retry_flags(bio);
	do
		n = recv(c->fd, data, (size_t) len, 0);
	while (n < 0 && errno == EINTR);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		BIO_set_retry_read(bio);
	else if (n == 0)
		c->eof = true;
	return (int) n;
}

static long
bio_ctrl(BIO *bio, int cmd, long num, void *ptr)
{
	TkConnection *c = BIO_get_data(bio);

	switch (cmd)
	{
		case BIO_CTRL_FLUSH:
			return 1;
		case BIO_CTRL_EOF:
			return c->eof;
		default:
			return 0;
	}
}

/* A process has few numbers for kinds of BIO, so it gets one, for good. */
static pthread_once_t bio_once = PTHREAD_ONCE_INIT;
static BIO_METHOD *bio_method;

static void
make_bio_method(void)
{
	int			type = BIO_get_new_index();

	bio_method = type == -1 ? NULL : BIO_meth_new(type | BIO_TYPE_SOURCE_SINK, "transactional_kafka");
	if (bio_method)
	{
		BIO_meth_set_write(bio_method, bio_write);
		BIO_meth_set_read(bio_method, bio_read);
		BIO_meth_set_ctrl(bio_method, bio_ctrl);
	}
}

static BIO *
make_bio(TkConnection *c)
{
	BIO		   *bio;

	pthread_once(&bio_once, make_bio_method);
	bio = bio_method ? BIO_new(bio_method) : NULL;
	if (bio)
	{
		BIO_set_data(bio, c);
		BIO_set_init(bio, 1);
	}
	return bio;
}

static bool
lost(TkNet *net, TkConnection *c, int why)
{
	return tk_trouble(net, c, RD_KAFKA_RESP_ERR__TRANSPORT, "connection to %s:%d lost: %s", c->server.host,
					  c->server.port, why ? strerror(why) : "closed by the broker");
}

/*
 * What an OpenSSL call that did not succeed asks for.  True: wait for *events
 * and call again.
 */
static bool
tls_wants(TkNet *net, TkConnection *c, int result, short *events)
{
	int			why = errno;
	long		verdict;
	unsigned long code;
	const char *reason;

	switch (SSL_get_error(c->ssl, result))
	{
		case SSL_ERROR_WANT_READ:
			*events = POLLIN;
			return true;
		case SSL_ERROR_WANT_WRITE:
			*events = POLLOUT;
			return true;
		case SSL_ERROR_ZERO_RETURN:
			return lost(net, c, 0);
		case SSL_ERROR_SYSCALL:
			return lost(net, c, c->eof ? 0 : why);
		default:
			break;
	}
	if (c->eof)
		return lost(net, c, 0);
	verdict = SSL_get_verify_result(c->ssl);
	if (net->verify_chain && verdict != X509_V_OK)
		return tk_trouble(net, c, RD_KAFKA_RESP_ERR__SSL, "certificate of %s:%d: %s", c->server.host,
						  c->server.port, X509_verify_cert_error_string(verdict));
	code = ERR_peek_last_error();
	reason = tk_tls_alert_means(net->tls, ERR_GET_REASON(code) - SSL_AD_REASON_OFFSET);
	if (reason == NULL)
		reason = ERR_reason_error_string(code);
	return tk_trouble(net, c, RD_KAFKA_RESP_ERR__SSL, "TLS with %s:%d: %s", c->server.host, c->server.port,
					  reason ? reason : "unknown error");
}

static bool
too_slow(TkNet *net, TkConnection *c, const char *what)
{
	return tk_trouble(net, c, RD_KAFKA_RESP_ERR__TIMED_OUT, "%s:%d: no answer to %s", c->server.host,
					  c->server.port, what);
}

static bool
write_bytes(TkNet *net, TkConnection *c, const char *data, size_t len, const char *what,
			const TkDeadline *deadline, int64_t end_ms)
{
	while (len > 0)
	{
		short		events = POLLOUT;
		ssize_t		n;

		if (c->ssl)
		{
			ERR_clear_error();
			n = SSL_write(c->ssl, data, len > INT32_MAX ? INT32_MAX : (int) len);
			if (n <= 0 && !tls_wants(net, c, (int) n, &events))
				return false;
		}
		else
		{
			n = send(c->fd, data, len, MSG_NOSIGNAL);
			if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
				return lost(net, c, errno);
		}
		if (n > 0)
		{
			data += n;
			len -= (size_t) n;
		}
		else if (!wait_for(c, events, deadline, end_ms))
			return too_slow(net, c, what);
	}
	return true;
}

static bool
read_bytes(TkNet *net, TkConnection *c, char *data, size_t len, const char *what,
		   const TkDeadline *deadline, int64_t end_ms)
{
	while (len > 0)
	{
		short		events = POLLIN;
		ssize_t		n;

		if (c->ssl)
		{
			ERR_clear_error();
			n = SSL_read(c->ssl, data, len > INT32_MAX ? INT32_MAX : (int) len);
			if (n <= 0 && !tls_wants(net, c, (int) n, &events))
				return false;
		}
		else
		{
			n = recv(c->fd, data, len, 0);
			if (n == 0)
				return lost(net, c, 0);
			if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
				return lost(net, c, errno);
		}
		if (n > 0)
		{
			data += n;
			len -= (size_t) n;
			/* A broker that drips must not keep us here. */
			if (len > 0 && (tk_now_ms() >= end_ms || tk_is_over(deadline)))
				return too_slow(net, c, what);
		}
		else if (!wait_for(c, events, deadline, end_ms))
			return too_slow(net, c, what);
	}
	return true;
}


/*
 * Connections
 */

void
tk_connection_close(TkConnection *c)
{
	if (c->ssl)
		SSL_free(c->ssl);
	c->ssl = NULL;
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
}

/* A kept connection that the broker closed meanwhile is not worth a request. */
bool
tk_connection_usable(TkConnection *c)
{
	char		byte;
	ssize_t		n;

	if (c->fd < 0)
		return false;
	if (c->expires_ms == 0 || tk_now_ms() < c->expires_ms)
	{
		n = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
			return true;
		/* TLS has messages of its own between the answers (session tickets). */
		if (n > 0 && c->ssl)
			return true;
	}
	tk_connection_close(c);
	return false;
}

static bool
connect_to(TkNet *net, TkConnection *c, const struct addrinfo *address, const TkDeadline *deadline, int64_t end_ms)
{
	int			on = 1;
	int			failure = 0;
	socklen_t	size = sizeof(failure);

	c->fd = socket(address->ai_family, address->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, address->ai_protocol);
	if (c->fd < 0)
		return lost(net, c, errno);
	if (net->nodelay)
		setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	if (net->keepalive)
		setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	if (net->send_buffer > 0)
		setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &net->send_buffer, sizeof(int));
	if (net->receive_buffer > 0)
		setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &net->receive_buffer, sizeof(int));

	if (connect(c->fd, address->ai_addr, address->ai_addrlen) != 0)
	{
		if (errno != EINPROGRESS && errno != EINTR)
			failure = errno;
		else if (!wait_for(c, POLLOUT, deadline, end_ms))
			return tk_trouble(net, c, RD_KAFKA_RESP_ERR__TIMED_OUT, "%s:%d: no connection in time",
							  c->server.host, c->server.port);
		else if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &failure, &size) != 0)
			failure = errno;
	}
	if (failure != 0)
		return tk_trouble(net, c, RD_KAFKA_RESP_ERR__TRANSPORT, "%s:%d: %s", c->server.host, c->server.port,
						  strerror(failure));
	return true;
}

/* Whom the certificate has to name; SNI, too, as names only. */
static bool
expect_host(TkNet *net, TkConnection *c)
{
	struct in6_addr address;
	const char *host = c->server.host;
	bool		numeric = inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;

	if (!numeric && SSL_set_tlsext_host_name(c->ssl, host) != 1)
		return false;
	if (!net->verify_host)
		return true;
	if (numeric)
		return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(c->ssl), host) == 1;
	return SSL_set1_host(c->ssl, host) == 1;
}

static bool
start_tls(TkNet *net, TkConnection *c, const TkDeadline *deadline, int64_t end_ms)
{
	BIO		   *bio;
	int			result;

	c->ssl = SSL_new(net->tls);
	bio = c->ssl ? make_bio(c) : NULL;
	if (bio == NULL)
		return no_memory(net, c);
	SSL_set_bio(c->ssl, bio, bio);
	if (!expect_host(net, c))
		return tk_trouble(net, c, RD_KAFKA_RESP_ERR__SSL, "host name \"%s\" can't be checked", c->server.host);

	for (;;)
	{
		short		events;

		ERR_clear_error();
		result = SSL_connect(c->ssl);
		if (result == 1)
			break;
		if (!tls_wants(net, c, result, &events))
			return false;
		if (!wait_for(c, events, deadline, end_ms))
			return too_slow(net, c, "the TLS handshake");
	}
	if (net->verify_chain)
	{
		X509	   *cert = SSL_get1_peer_certificate(c->ssl);
		long		verdict = SSL_get_verify_result(c->ssl);

		X509_free(cert);
		if (cert == NULL || verdict != X509_V_OK)
			return tk_trouble(net, c, RD_KAFKA_RESP_ERR__SSL, "certificate of %s:%d: %s", c->server.host,
							  c->server.port, cert ? X509_verify_cert_error_string(verdict) : "there is none");
	}
	return true;
}

/*
 * Connects within limit_ms.  Several addresses: each but the last gets half of
 * the time that is left, so that a dead one doesn't hide the next.
 */
bool
tk_connection_open(TkNet *net, TkConnection *c, const TkServer *server, const TkDeadline *deadline, int limit_ms)
{
	int64_t		end_ms = tk_now_ms() + (limit_ms < net->setup_ms ? limit_ms : net->setup_ms);
	struct addrinfo *addresses;
	struct addrinfo *address;
	bool		connected = false;

	tk_connection_close(c);
	c->server = *server;
	c->eof = false;
	c->proven = false;
	c->correlation = 0;
	c->expires_ms = 0;
	if (!resolve(net, server, deadline, end_ms, &addresses))
		return false;
	for (address = addresses; address && !connected; address = address->ai_next)
	{
		int64_t		now_ms = tk_now_ms();

		connected = connect_to(net, c, address, deadline,
							   address->ai_next ? now_ms + (end_ms - now_ms) / 2 : end_ms);
	}
	if (addresses)
		freeaddrinfo(addresses);
	return connected &&
		(net->tls == NULL || start_tls(net, c, deadline, end_ms)) &&
		(net->sasl == TK_SASL_NONE || tk_sasl_authenticate(net, c, deadline, end_ms));
}


/*
 * Requests
 */

static bool
send_request(TkNet *net, TkConnection *c, const TkApi *api, const TkBuffer *body, const TkDeadline *deadline,
			 int64_t end_ms)
{
	TkBuffer   *out = &net->out;
	uint32_t	size;
	bool		ok;

	tk_buffer_reset(out, READ_CHUNK);
	tk_put_i32(out, 0);
	tk_put_i16(out, api->key);
	tk_put_i16(out, api->version);
	tk_put_i32(out, ++c->correlation);
	tk_put_string(out, net->client_id);
	if (api->flexible)
		tk_put_uvarint(out, 0);
	tk_buffer_append(out, body->data, body->len);
	if (out->failed || body->failed)
	{
		tk_buffer_free(out);
		return no_memory(net, c);
	}
	size = htonl((uint32_t) (out->len - 4));
	memcpy(out->data, &size, 4);
	ok = write_bytes(net, c, out->data, out->len, api->name, deadline, end_ms);
	OPENSSL_cleanse(out->data, out->len);	/* it may be a password */
	return ok;
}

/* Memory grows with what arrives, not with what is announced. */
static bool
read_answer(TkNet *net, TkConnection *c, const TkApi *api, const TkDeadline *deadline, int64_t end_ms)
{
	TkBuffer   *in = &net->in;
	uint32_t	size;
	char		word[4];

	if (!read_bytes(net, c, word, 4, api->name, deadline, end_ms))
		return false;
	memcpy(&size, word, 4);
	size = ntohl(size);
	if (size < 4 || size > api->answer_max || size > (uint32_t) net->receive_max)
		return tk_trouble(net, c, RD_KAFKA_RESP_ERR__BAD_MSG, "%s:%d answered %s with %u bytes", c->server.host,
						  c->server.port, api->name, size);

	tk_buffer_reset(in, READ_CHUNK);
	while (in->len < size)
	{
		size_t		chunk = size - in->len < READ_CHUNK ? size - in->len : READ_CHUNK;

		if (!tk_buffer_reserve(in, chunk))
		{
			tk_buffer_free(in);
			return no_memory(net, c);
		}
		if (!read_bytes(net, c, in->data + in->len, chunk, api->name, deadline, end_ms))
			return false;
		in->len += chunk;
	}
	return true;
}

/*
 * Sends the request and waits for its answer, which stays until the next
 * request.
 */
bool
tk_connection_request(TkNet *net, TkConnection *c, const TkApi *api, const TkBuffer *body,
					  const TkDeadline *deadline, int limit_ms, TkAnswer *answer)
{
	int64_t		end_ms = tk_now_ms() + limit_ms;

	if (!send_request(net, c, api, body, deadline, end_ms) || !read_answer(net, c, api, deadline, end_ms))
		return false;
	answer->at = (const unsigned char *) net->in.data;
	answer->end = answer->at + net->in.len;
	answer->bad = false;
	if (tk_get_i32(answer) != c->correlation)
		return tk_bad_answer(net, c, api, "the answer to another request");
	if (api->flexible)
		tk_skip_tags(answer);
	return true;
}

void
tk_net_free(TkNet *net)
{
	drop_lookup(net);
	if (net->password)
		OPENSSL_cleanse(net->password, strlen(net->password));
	free(net->password);
	free(net->username);
	free(net->client_id);
	free(net->servers);
	if (net->in.data)
		OPENSSL_cleanse(net->in.data, net->in.len);
	tk_buffer_free(&net->in);
	tk_buffer_free(&net->out);
	SSL_CTX_free(net->tls);
}
