/*
 * kafka_sasl.c
 *	  Who we are: SASL PLAIN and SCRAM (RFC 5802, 7677), wrapped in Kafka's
 *	  SaslHandshake and SaslAuthenticate.
 *
 * SCRAM proves both sides: the server's nonce must begin with ours, and its
 * signature must be that of somebody who knows the password's keys, so a false
 * broker learns nothing and is not believed.  Fewer than 4096 iterations are
 * refused (RFC 7677): they would make guessing from the exchange cheap.  The
 * name and the password are taken as the bytes they are, as librdkafka does.
 */
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>

#include "kafka_connection.h"

#define ANSWER_MAX		65536
#define NONCE_BYTES		24
#define NONCE_LEN		32		/* in base64, without padding as 24 is a multiple of 3 */
#define SALT_MAX		1024
#define ITERATIONS_MIN	4096
#define ITERATIONS_MAX	1000000 /* librdkafka's; about a second of computing */

static const TkApi sasl_handshake = {17, 1, false, "SaslHandshake", ANSWER_MAX};
static const TkApi sasl_authenticate = {36, 1, false, "SaslAuthenticate", ANSWER_MAX};

static const char *
mechanism(const TkNet *net)
{
	return net->sasl == TK_SASL_PLAIN ? "PLAIN" :
		net->sasl == TK_SASL_SCRAM_SHA_256 ? "SCRAM-SHA-256" : "SCRAM-SHA-512";
}

static int
left_ms(int64_t end_ms)
{
	int64_t		left = end_ms - tk_now_ms();

	return left > 0 ? (int) left : 0;
}

static bool
refused(TkNet *net, TkConnection *c, const char *why)
{
	return tk_trouble(net, c, RD_KAFKA_RESP_ERR__AUTHENTICATION, "%s with %s:%d: %s", mechanism(net),
					  c->server.host, c->server.port, why);
}

static bool
shake_hands(TkNet *net, TkConnection *c, const TkDeadline *deadline, int64_t end_ms)
{
	TkBuffer	body;
	TkAnswer	answer;
	char		offered[200] = "";
	size_t		used = 0;
	int			code;
	int			n;
	bool		ok;

	memset(&body, 0, sizeof(body));
	tk_put_string(&body, mechanism(net));
	ok = tk_connection_request(net, c, &sasl_handshake, &body, deadline, left_ms(end_ms), &answer);
	tk_buffer_free(&body);
	if (!ok)
		return false;

	code = tk_get_i16(&answer);
	for (n = tk_get_count(&answer, 2); n > 0; n--)
	{
		size_t		len;
		const char *name = tk_get_string(&answer, &len);

		if (name && used + len + 3 < sizeof(offered))
		{
			if (used > 0)
				offered[used++] = ' ';
			tk_printable(offered + used, sizeof(offered) - used, name, len);
			used += strlen(offered + used);
		}
	}
	if (!tk_answer_is_whole(&answer))
		return tk_bad_answer(net, c, &sasl_handshake, "nonsense");
	if (code == RD_KAFKA_RESP_ERR_UNSUPPORTED_SASL_MECHANISM)
		return tk_trouble(net, c, code, "%s:%d does not offer SASL mechanism %s, but \"%s\"", c->server.host,
						  c->server.port, mechanism(net), offered);
	if (code != 0)
		return tk_trouble(net, c, code, "%s:%d: SaslHandshake: %s", c->server.host, c->server.port,
						  rd_kafka_err2str(code));
	return true;
}

/* What the broker says may quote what we said: not if that was the password. */
static void
quote(const TkNet *net, char *to, size_t size, const char *text, size_t len)
{
	size_t		secret = strlen(net->password);
	size_t		i;

	for (i = 0; secret > 0 && i + secret <= len; i++)
		if (memcmp(text + i, net->password, secret) == 0)
		{
			snprintf(to, size, "refused");
			return;
		}
	tk_printable(to, size, text, len);
}

/* One round of the mechanism.  The broker's part stays until the next request. */
static bool
authenticate(TkNet *net, TkConnection *c, const char *ours, size_t ours_len, const char **theirs, size_t *theirs_len,
			 const TkDeadline *deadline, int64_t end_ms)
{
	TkBuffer	body;
	TkAnswer	answer;
	const char *text;
	size_t		text_len;
	int64_t		lifetime_ms;
	int32_t		size;
	int			code;
	bool		ok;

	memset(&body, 0, sizeof(body));
	tk_put_i32(&body, (int32_t) ours_len);
	tk_buffer_append(&body, ours, ours_len);
	ok = tk_connection_request(net, c, &sasl_authenticate, &body, deadline, left_ms(end_ms), &answer);
	if (body.data)
		OPENSSL_cleanse(body.data, body.len);
	tk_buffer_free(&body);
	if (!ok)
		return false;

	code = tk_get_i16(&answer);
	text = tk_get_string(&answer, &text_len);
	size = tk_get_i32(&answer);
	if (size < 0)
		answer.bad = true;
	*theirs = tk_get_bytes(&answer, size < 0 ? 0 : (size_t) size);
	*theirs_len = (size_t) size;
	lifetime_ms = tk_get_i64(&answer);
	if (!tk_answer_is_whole(&answer))
		return tk_bad_answer(net, c, &sasl_authenticate, "nonsense");
	if (code != 0)
	{
		char		why[200];

		if (text)
			quote(net, why, sizeof(why), text, text_len);
		else
			snprintf(why, sizeof(why), "%s", rd_kafka_err2str(code));
		return tk_trouble(net, c, code, "%s with %s:%d: %s", mechanism(net), c->server.host, c->server.port, why);
	}

	/* The broker closes the connection then; we go a little earlier. */
	if (lifetime_ms > 0 && lifetime_ms < INT32_MAX)
		c->expires_ms = tk_now_ms() + lifetime_ms - lifetime_ms / 10;
	return true;
}

static bool
plain(TkNet *net, TkConnection *c, const TkDeadline *deadline, int64_t end_ms)
{
	size_t		name_len = strlen(net->username);
	size_t		password_len = strlen(net->password);
	size_t		len = name_len + password_len + 2;
	char	   *token = calloc(1, len + 1);
	const char *theirs;
	size_t		theirs_len;
	bool		ok;

	if (token == NULL)
		return tk_trouble(net, c, RD_KAFKA_RESP_ERR__CRIT_SYS_RESOURCE, "out of memory");
	memcpy(token + 1, net->username, name_len);
	memcpy(token + 2 + name_len, net->password, password_len);
	ok = authenticate(net, c, token, len, &theirs, &theirs_len, deadline, end_ms);
	OPENSSL_cleanse(token, len);
	free(token);
	return ok;
}


/*
 * SCRAM
 */

typedef struct Scram
{
	const EVP_MD *hash;
	int			size;			/* of the hash */
	char		nonce[NONCE_LEN + 1];
	TkBuffer	first_bare;		/* client-first-message-bare */
	TkBuffer	server_first;
	TkBuffer	final;			/* client-final-message, from without-proof on */
	unsigned char salt[SALT_MAX];
	int			salt_len;
	int			iterations;
	const char *server_nonce;	/* in server_first */
	size_t		server_nonce_len;
	unsigned char server_signature[EVP_MAX_MD_SIZE];
} Scram;

/* Decodes into at most size bytes; -1: not base64, or too long. */
static int
from_base64(unsigned char *to, size_t size, const char *from, size_t len)
{
	unsigned char block[SALT_MAX + 2];
	int			n;
	size_t		i;

	if (len == 0 || len % 4 != 0 || len / 4 * 3 > sizeof(block))
		return -1;
	/* OpenSSL would skip white space at the ends. */
	for (i = 0; i < len; i++)
		if (from[i] <= ' ' || from[i] > '~')
			return -1;
	n = EVP_DecodeBlock(block, (const unsigned char *) from, (int) len);
	if (n < 0)
		return -1;
	/* It counts what the padding stands for. */
	n -= (from[len - 1] == '=') + (from[len - 2] == '=');
	if (n < 0 || (size_t) n > size)
		return -1;
	memcpy(to, block, (size_t) n);
	return n;
}

static bool
write_first(Scram *s, const TkNet *net)
{
	unsigned char random[NONCE_BYTES];
	const char *at;

	if (RAND_bytes(random, sizeof(random)) != 1)
		return false;
	EVP_EncodeBlock((unsigned char *) s->nonce, random, sizeof(random));

	tk_buffer_string(&s->first_bare, "n=");
	for (at = net->username; *at; at++)
	{
		if (*at == ',')
			tk_buffer_string(&s->first_bare, "=2C");
		else if (*at == '=')
			tk_buffer_string(&s->first_bare, "=3D");
		else
			tk_buffer_char(&s->first_bare, *at);
	}
	tk_buffer_string(&s->first_bare, ",r=");
	tk_buffer_string(&s->first_bare, s->nonce);
	return !s->first_bare.failed;
}

/* Takes "x=value" off the front of a message; false if that is not what comes. */
static bool
attribute(const char **at, const char *end, char name, const char **value, size_t *len)
{
	const char *comma;

	if (end - *at < 2 || (*at)[0] != name || (*at)[1] != '=')
		return false;
	*value = *at + 2;
	comma = memchr(*value, ',', (size_t) (end - *value));
	*len = (size_t) ((comma ? comma : end) - *value);
	*at = comma ? comma + 1 : end;
	return true;
}

/* r=nonce,s=salt,i=iterations[,extensions]; NULL if it is right, else what is wrong. */
static const char *
read_server_first(Scram *s, const char *message, size_t message_len)
{
	const char *at;
	const char *end;
	const char *value;
	size_t		len;
	size_t		i;

	if (message_len == 0)
		return "the broker's first message has no nonce";
	tk_buffer_append(&s->server_first, message, message_len);
	if (s->server_first.failed)
		return "out of memory";
	at = s->server_first.data;
	end = at + s->server_first.len;

	if (!attribute(&at, end, 'r', &s->server_nonce, &s->server_nonce_len))
		return "the broker's first message has no nonce";
	if (s->server_nonce_len <= NONCE_LEN || memcmp(s->server_nonce, s->nonce, NONCE_LEN) != 0)
		return "the broker's nonce does not continue ours";
	if (!attribute(&at, end, 's', &value, &len))
		return "the broker's first message has no salt";
	s->salt_len = from_base64(s->salt, sizeof(s->salt), value, len);
	if (s->salt_len <= 0)
		return "the broker's salt is not base64";
	if (!attribute(&at, end, 'i', &value, &len) || len == 0 || len > 7)
		return "the broker's iteration count is missing or too large";
	s->iterations = 0;
	for (i = 0; i < len; i++)
	{
		if (value[i] < '0' || value[i] > '9')
			return "the broker's iteration count is no number";
		s->iterations = s->iterations * 10 + (value[i] - '0');
	}
	if (s->iterations < ITERATIONS_MIN)
		return "the broker wants fewer than 4096 iterations, which is not safe";
	if (s->iterations > ITERATIONS_MAX)
		return "the broker's iteration count is missing or too large";
	return NULL;
}

static bool
hmac(const Scram *s, const unsigned char *key, const void *data, size_t len, unsigned char *to)
{
	return HMAC(s->hash, key, s->size, data, len, to, NULL) != NULL;
}

/*
 * client-final-message, and the signature that the server has to answer with.
 */
static bool
write_final(Scram *s, const TkNet *net)
{
	unsigned char salted[EVP_MAX_MD_SIZE];
	unsigned char client_key[EVP_MAX_MD_SIZE];
	unsigned char stored_key[EVP_MAX_MD_SIZE];
	unsigned char server_key[EVP_MAX_MD_SIZE];
	unsigned char proof[EVP_MAX_MD_SIZE];
	char		text[EVP_MAX_MD_SIZE * 2];
	TkBuffer	message;		/* AuthMessage */
	bool		ok;
	int			i;

	tk_buffer_string(&s->final, "c=biws,r=");	/* "n,,": no channel binding */
	tk_buffer_append(&s->final, s->server_nonce, s->server_nonce_len);

	memset(&message, 0, sizeof(message));
	tk_buffer_append(&message, s->first_bare.data, s->first_bare.len);
	tk_buffer_char(&message, ',');
	tk_buffer_append(&message, s->server_first.data, s->server_first.len);
	tk_buffer_char(&message, ',');
	if (!s->final.failed)
		tk_buffer_append(&message, s->final.data, s->final.len);

	ok = !s->final.failed && !message.failed &&
		PKCS5_PBKDF2_HMAC(net->password, (int) strlen(net->password), s->salt, s->salt_len, s->iterations,
						  s->hash, s->size, salted) == 1 &&
		hmac(s, salted, "Client Key", 10, client_key) &&
		EVP_Digest(client_key, (size_t) s->size, stored_key, NULL, s->hash, NULL) == 1 &&
		hmac(s, stored_key, message.data, message.len, proof) &&
		hmac(s, salted, "Server Key", 10, server_key) &&
		hmac(s, server_key, message.data, message.len, s->server_signature);
	tk_buffer_free(&message);
	if (ok)
	{
		for (i = 0; i < s->size; i++)
			proof[i] ^= client_key[i];
		EVP_EncodeBlock((unsigned char *) text, proof, s->size);
		tk_buffer_string(&s->final, ",p=");
		tk_buffer_string(&s->final, text);
		ok = !s->final.failed;
	}
	OPENSSL_cleanse(salted, sizeof(salted));
	OPENSSL_cleanse(client_key, sizeof(client_key));
	OPENSSL_cleanse(stored_key, sizeof(stored_key));
	OPENSSL_cleanse(server_key, sizeof(server_key));
	return ok;
}

/* v=signature[,extensions]; NULL if it is the right one. */
static const char *
read_server_final(const Scram *s, const char *at, size_t message_len)
{
	unsigned char signature[EVP_MAX_MD_SIZE];
	const char *value;
	size_t		len;

	if (!attribute(&at, at + message_len, 'v', &value, &len))
		return "the broker does not prove that it knows the password";
	if (from_base64(signature, sizeof(signature), value, len) != s->size ||
		CRYPTO_memcmp(signature, s->server_signature, (size_t) s->size) != 0)
		return "the broker's signature is wrong: it does not know the password";
	return NULL;
}

static bool
scram(TkNet *net, TkConnection *c, const TkDeadline *deadline, int64_t end_ms)
{
	Scram	   *s = calloc(1, sizeof(Scram));
	TkBuffer	first;
	const char *theirs;
	size_t		theirs_len;
	const char *problem = NULL;
	bool		ok;

	if (s == NULL)
		return tk_trouble(net, c, RD_KAFKA_RESP_ERR__CRIT_SYS_RESOURCE, "out of memory");
	s->hash = net->sasl == TK_SASL_SCRAM_SHA_256 ? EVP_sha256() : EVP_sha512();
	s->size = EVP_MD_get_size(s->hash);
	memset(&first, 0, sizeof(first));

	ok = write_first(s, net);
	if (ok)
	{
		tk_buffer_string(&first, "n,,");
		tk_buffer_append(&first, s->first_bare.data, s->first_bare.len);
		ok = !first.failed;
	}
	if (!ok)
		problem = "out of memory or of randomness";
	if (ok)
		ok = authenticate(net, c, first.data, first.len, &theirs, &theirs_len, deadline, end_ms);
	if (ok)
	{
		problem = read_server_first(s, theirs, theirs_len);
		if (problem == NULL && !write_final(s, net))
			problem = "the proof can't be computed";
		ok = problem == NULL &&
			authenticate(net, c, s->final.data, s->final.len, &theirs, &theirs_len, deadline, end_ms);
	}
	if (ok)
	{
		problem = read_server_final(s, theirs, theirs_len);
		ok = problem == NULL;
	}
	if (problem)
		refused(net, c, problem);
	tk_buffer_free(&first);
	tk_buffer_free(&s->first_bare);
	tk_buffer_free(&s->server_first);
	tk_buffer_free(&s->final);
	OPENSSL_cleanse(s, sizeof(Scram));
	free(s);
	return ok;
}

bool
tk_sasl_authenticate(TkNet *net, TkConnection *c, const TkDeadline *deadline, int64_t end_ms)
{
	return shake_hands(net, c, deadline, end_ms) &&
		(net->sasl == TK_SASL_PLAIN ? plain(net, c, deadline, end_ms) : scram(net, c, deadline, end_ms));
}
