/*
 * kafka_connection_conf.c
 *	  What librdkafka's properties mean for connections of our own.
 *
 * The properties are set on a configuration of librdkafka's and read from
 * there: so aliases, defaults, spellings and refusals are librdkafka's.  What
 * they then do is done as librdkafka does it (certificates, host names), so
 * that this client trusts whom the producers trust, and nobody else.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/stat.h>

#include "kafka_connection.h"

#define KAFKA_PORT			9092
#define REQUEST_MS			10000	/* the coordinator's answers take milliseconds */
#define RECEIVE_MAX			(32 * 1024 * 1024)

static bool
refuse(TkKafkaError *error, const char *fmt, const char *name, const char *value)
{
	tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_CONFIGURATION, RD_KAFKA_RESP_ERR__INVALID_ARG, fmt, name, value);
	return false;
}

static bool
no_memory(TkKafkaError *error)
{
	tk_fail(error, TK_KAFKA_FATAL, TK_CAUSE_OUT_OF_MEMORY, RD_KAFKA_RESP_ERR__CRIT_SYS_RESOURCE, "out of memory");
	return false;
}

/* The value of a property, malloc'd; NULL when it is not set, empty, or unknown to this librdkafka. */
static char *
value_of(const rd_kafka_conf_t *conf, const char *name)
{
	size_t		size = 0;
	char	   *value;

	if (rd_kafka_conf_get(conf, name, NULL, &size) != RD_KAFKA_CONF_OK || size <= 1)
		return NULL;
	value = malloc(size);
	if (value && rd_kafka_conf_get(conf, name, value, &size) != RD_KAFKA_CONF_OK)
	{
		free(value);
		value = NULL;
	}
	return value;
}

static void
forget(char *value)
{
	if (value)
		OPENSSL_cleanse(value, strlen(value));
	free(value);
}

static bool
value_is(rd_kafka_conf_t *conf, const char *name, const char *expected)
{
	char	   *value = value_of(conf, name);
	bool		is = value && strcasecmp(value, expected) == 0;

	forget(value);
	return is;
}

static bool
is_set(rd_kafka_conf_t *conf, const char *name)
{
	char	   *value = value_of(conf, name);
	bool		is = value != NULL;

	forget(value);
	return is;
}

static int
number_of(rd_kafka_conf_t *conf, const char *name, int otherwise)
{
	char	   *value = value_of(conf, name);
	int			number = value ? atoi(value) : otherwise;

	forget(value);
	return number;
}

/*
 * One entry of bootstrap.servers: [protocol://]host[:port][/...], an IPv6
 * address in brackets or without port.  The protocol must be the one in force.
 */
static bool
parse_server(char *entry, const char *protocol, TkServer *server)
{
	char	   *scheme = strstr(entry, "://");
	char	   *host;
	char	   *colon;

	if (scheme)
	{
		*scheme = '\0';
		if (strcasecmp(entry, protocol) != 0)
			return false;
		entry = scheme + 3;
		entry[strcspn(entry, "/")] = '\0';
	}
	host = entry;
	server->port = KAFKA_PORT;
	colon = strrchr(host, ':');
	if (colon && (strchr(host, ':') == colon || (colon > host && colon[-1] == ']')))
	{
		char	   *end;
		long		port = strtol(colon + 1, &end, 10);

		if (end == colon + 1 || *end != '\0' || port < 1 || port > 65535)
			return false;
		server->port = (int) port;
		*colon = '\0';
	}
	if (host[0] == '[' && host[strlen(host) - 1] == ']')
	{
		host[strlen(host) - 1] = '\0';
		host++;
	}
	if (host[0] == '\0')
		host = "localhost";
	if (strlen(host) > TK_HOST_MAX)
		return false;
	strcpy(server->host, host);
	return true;
}

/* An entry that can't be read is left out, as librdkafka does, unless none remains. */
static bool
read_servers(TkNet *net, rd_kafka_conf_t *conf, TkKafkaError *error)
{
	char	   *list = value_of(conf, "bootstrap.servers");
	char	   *protocol = value_of(conf, "security.protocol");
	char	   *next = list;
	char	   *entry;
	int			most = 1;

	if (list == NULL || protocol == NULL)
	{
		free(list);
		free(protocol);
		return refuse(error, "property \"%s\" is not set%s", "bootstrap.servers", "");
	}
	for (entry = list; *entry; entry++)
		most += *entry == ',';
	net->servers = calloc((size_t) most, sizeof(TkServer));
	while (net->servers && (entry = strsep(&next, ",")) != NULL)
	{
		while (*entry == ' ')
			entry++;
		while (*entry && entry[strlen(entry) - 1] == ' ')
			entry[strlen(entry) - 1] = '\0';
		if (*entry && parse_server(entry, protocol, &net->servers[net->nservers]))
			net->nservers++;
	}
	free(list);
	free(protocol);
	if (net->servers == NULL)
		return no_memory(error);
	if (net->nservers == 0)
		return refuse(error, "property \"%s\" names no server%s", "bootstrap.servers", "");
	return true;
}

static bool
read_sasl(TkNet *net, rd_kafka_conf_t *conf, TkKafkaError *error)
{
	char	   *mechanism = value_of(conf, "sasl.mechanisms");
	bool		ok = true;

	if (mechanism == NULL)
		ok = no_memory(error);
	else if (strcmp(mechanism, "PLAIN") == 0)
		net->sasl = TK_SASL_PLAIN;
	else if (strcmp(mechanism, "SCRAM-SHA-256") == 0)
		net->sasl = TK_SASL_SCRAM_SHA_256;
	else if (strcmp(mechanism, "SCRAM-SHA-512") == 0)
		net->sasl = TK_SASL_SCRAM_SHA_512;
	else
		ok = refuse(error, "this client can't authenticate by %s \"%s\"", "sasl.mechanism", mechanism);
	free(mechanism);
	if (!ok)
		return false;

	net->username = value_of(conf, "sasl.username");
	net->password = value_of(conf, "sasl.password");
	if (net->username == NULL || net->password == NULL)
		return refuse(error, "properties \"%s\" and \"%s\" are not both set", "sasl.username", "sasl.password");
	return true;
}

/*
 * TLS
 */

/* OpenSSL's reason, without its data: that can hold what was read. */
static const char *
tls_reason(void)
{
	unsigned long code = ERR_peek_last_error();
	const char *reason = code ? ERR_reason_error_string(code) : NULL;

	if (reason == NULL && ERR_SYSTEM_ERROR(code))
		reason = strerror(ERR_GET_REASON(code));
	return reason ? reason : "not usable";
}

/* Never OpenSSL's own callback: that asks on the terminal. */
static int
give_password(char *buf, int size, int rwflag, void *password)
{
	int			len;

	if (password == NULL)
		return -1;
	len = (int) strlen(password);
	if (len > size)
		return -1;
	memcpy(buf, password, (size_t) len);
	return len;
}

const char *
tk_certificate_problem(int x509_error)
{
	return X509_verify_cert_error_string(x509_error);
}

/*
 * The alert alone says little: Java's brokers send "bad certificate" for none
 * at all, and "certificate unknown" for one that has expired.
 */
static const char *
alert_means(const X509 *ours, int alert)
{
	if (((alert < SSL_AD_BAD_CERTIFICATE || alert > SSL_AD_ACCESS_DENIED) && alert != SSL_AD_CERTIFICATE_REQUIRED) ||
		alert == SSL_AD_ILLEGAL_PARAMETER)
		return NULL;
	if (ours == NULL)
		return "the broker wants a client certificate, and none is set (ssl.certificate.pem)";
	if (X509_cmp_current_time(X509_get0_notAfter(ours)) < 0)
		return "the client certificate (ssl.certificate.pem) has expired";
	return "the broker does not accept the client certificate (ssl.certificate.pem)";
}

const char *
tk_tls_alert_means(SSL_CTX *tls, int alert)
{
	return alert_means(SSL_CTX_get0_certificate(tls), alert);
}

const char *
tk_alert_means(const rd_kafka_conf_t *conf, int alert)
{
	char	   *pem = value_of(conf, "ssl.certificate.pem");
	char	   *location = value_of(conf, "ssl.certificate.location");
	BIO		   *bio = pem ? BIO_new_mem_buf(pem, -1) : location ? BIO_new_file(location, "r") : NULL;
	X509	   *cert = bio ? PEM_read_bio_X509(bio, NULL, give_password, NULL) : NULL;
	char	   *keystore = value_of(conf, "ssl.keystore.location");
	const char *meaning = cert == NULL && keystore != NULL && keystore[0] != '\0' ? NULL : alert_means(cert, alert);

	free(keystore);
	X509_free(cert);
	BIO_free(bio);
	free(location);
	free(pem);
	ERR_clear_error();
	return meaning;
}

static bool
tls_refuse(TkKafkaError *error, const char *name)
{
	refuse(error, "property \"%s\": %s", name, tls_reason());
	ERR_clear_error();
	return false;
}

static bool
use_ca_pem(SSL_CTX *tls, const char *pem)
{
	X509_STORE *store = SSL_CTX_get_cert_store(tls);
	BIO		   *bio = BIO_new_mem_buf(pem, -1);
	X509	   *cert;
	bool		ok = bio != NULL;
	int			n = 0;

	while (ok && (cert = PEM_read_bio_X509(bio, NULL, give_password, NULL)) != NULL)
	{
		ok = X509_STORE_add_cert(store, cert) == 1;
		X509_free(cert);
		n++;
	}
	ok = ok && n > 0 && BIO_eof(bio);
	BIO_free(bio);
	return ok;
}

/* The first certificate is the client's, the others are its chain. */
static bool
use_certificate_pem(SSL_CTX *tls, const char *pem)
{
	BIO		   *bio = BIO_new_mem_buf(pem, -1);
	X509	   *cert = bio ? PEM_read_bio_X509(bio, NULL, give_password, NULL) : NULL;
	bool		ok = cert != NULL && SSL_CTX_use_certificate(tls, cert) == 1;

	X509_free(cert);
	while (ok && (cert = PEM_read_bio_X509(bio, NULL, give_password, NULL)) != NULL)
	{
		ok = SSL_CTX_add0_chain_cert(tls, cert) == 1;
		if (!ok)
			X509_free(cert);
	}
	BIO_free(bio);
	return ok;
}

static bool
use_key_pem(SSL_CTX *tls, const char *pem, const char *password)
{
	BIO		   *bio = BIO_new_mem_buf(pem, -1);
	EVP_PKEY   *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, give_password, (void *) password) : NULL;
	bool		ok = key != NULL && SSL_CTX_use_PrivateKey(tls, key) == 1;

	EVP_PKEY_free(key);
	BIO_free(bio);
	return ok;
}

static bool
use_ca_location(SSL_CTX *tls, const char *location)
{
	struct stat st;
	bool		is_dir = stat(location, &st) == 0 && S_ISDIR(st.st_mode);

	return SSL_CTX_load_verify_locations(tls, is_dir ? NULL : location, is_dir ? location : NULL) == 1;
}

static bool
use_crl(SSL_CTX *tls, const char *location)
{
	return SSL_CTX_load_verify_locations(tls, location, NULL) == 1 &&
		X509_STORE_set_flags(SSL_CTX_get_cert_store(tls), X509_V_FLAG_CRL_CHECK) == 1;
}

static bool
use_certificate(SSL_CTX *tls, const char *location)
{
	return SSL_CTX_use_certificate_chain_file(tls, location) == 1;
}

static bool
use_key(SSL_CTX *tls, const char *location)
{
	return SSL_CTX_use_PrivateKey_file(tls, location, SSL_FILETYPE_PEM) == 1;
}

static bool
use_ciphers(SSL_CTX *tls, const char *list)
{
	return SSL_CTX_set_cipher_list(tls, list) == 1;
}

static bool
use_curves(SSL_CTX *tls, const char *list)
{
	return SSL_CTX_set1_curves_list(tls, list) == 1;
}

static bool
use_sigalgs(SSL_CTX *tls, const char *list)
{
	return SSL_CTX_set1_sigalgs_list(tls, list) == 1;
}

static const struct
{
	const char *name;
	bool		(*use) (SSL_CTX *tls, const char *value);
}			tls_properties[] =

{
	{"ssl.cipher.suites", use_ciphers},
	{"ssl.curves.list", use_curves},
	{"ssl.sigalgs.list", use_sigalgs},
	{"ssl.ca.location", use_ca_location},
	{"ssl.ca.pem", use_ca_pem},
	{"ssl.crl.location", use_crl},
	{"ssl.certificate.location", use_certificate},
	{"ssl.certificate.pem", use_certificate_pem},
	{"ssl.key.location", use_key},
	{"ssl.key.pem", NULL},		/* needs the password */
};

/* The rule is librdkafka's: "probe", or nothing, means the certificates that the system trusts. */
static bool
trusts_the_system(rd_kafka_conf_t *conf)
{
	return !is_set(conf, "ssl.ca.pem") &&
		(!is_set(conf, "ssl.ca.location") || value_is(conf, "ssl.ca.location", "probe"));
}

static bool
fill_tls(SSL_CTX *tls, rd_kafka_conf_t *conf, char *password, TkKafkaError *error)
{
	bool		has_key = false;
	size_t		i;

	ERR_clear_error();
	SSL_CTX_set_options(tls, SSL_OP_NO_SSLv3);
	SSL_CTX_set_mode(tls, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
	SSL_CTX_set_default_passwd_cb(tls, give_password);
	SSL_CTX_set_default_passwd_cb_userdata(tls, password);

	for (i = 0; i < sizeof(tls_properties) / sizeof(tls_properties[0]); i++)
	{
		const char *name = tls_properties[i].name;
		char	   *value = value_of(conf, name);
		bool		ok = true;

		if (value == NULL || (strcmp(name, "ssl.ca.location") == 0 && strcmp(value, "probe") == 0))
		{
			forget(value);
			continue;
		}
		if (tls_properties[i].use)
			ok = tls_properties[i].use(tls, value);
		else
			ok = use_key_pem(tls, value, password);
		has_key = has_key || strncmp(name, "ssl.key.", 8) == 0;
		forget(value);
		if (!ok)
			return tls_refuse(error, name);
		ERR_clear_error();		/* the end of a PEM text is one */
	}
	if (trusts_the_system(conf))
	{
		SSL_CTX_set_default_verify_paths(tls);
		ERR_clear_error();
	}
	if (has_key && SSL_CTX_check_private_key(tls) != 1)
		return tls_refuse(error, "ssl.key.location");

	/* It has been used; the context must not point to what is freed now. */
	SSL_CTX_set_default_passwd_cb_userdata(tls, NULL);
	return true;
}

static bool
read_tls(TkNet *net, rd_kafka_conf_t *conf, TkKafkaError *error)
{
	static const char *const unable[] = {"ssl.keystore.location", "ssl.engine.location", "ssl.providers"};
	char	   *password;
	size_t		i;
	bool		ok;

	for (i = 0; i < sizeof(unable) / sizeof(unable[0]); i++)
		if (is_set(conf, unable[i]))
			return refuse(error, "this client can't use property \"%s\"%s", unable[i], "");

	net->verify_chain = value_is(conf, "enable.ssl.certificate.verification", "true");
	net->verify_host = value_is(conf, "ssl.endpoint.identification.algorithm", "https");
	net->tls = SSL_CTX_new(TLS_client_method());
	if (net->tls == NULL)
		return no_memory(error);
	SSL_CTX_set_verify(net->tls, net->verify_chain ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
	password = value_of(conf, "ssl.key.password");
	ok = fill_tls(net->tls, conf, password, error);
	forget(password);
	return ok;
}

static bool
read_all(TkNet *net, rd_kafka_conf_t *conf, TkKafkaError *error)
{
	bool		tls = value_is(conf, "security.protocol", "ssl") || value_is(conf, "security.protocol", "sasl_ssl");
	bool		sasl = value_is(conf, "security.protocol", "sasl_plaintext") ||
	value_is(conf, "security.protocol", "sasl_ssl");

	if (value_is(conf, "client.dns.lookup", "resolve_canonical_bootstrap_servers_only"))
		return refuse(error, "this client can't do \"%s\" \"%s\"", "client.dns.lookup",
					  "resolve_canonical_bootstrap_servers_only");

	net->client_id = value_of(conf, "client.id");
	if (net->client_id == NULL)
		net->client_id = strdup("");
	if (net->client_id == NULL)
		return no_memory(error);
	if (strlen(net->client_id) > INT16_MAX)
		return refuse(error, "the value of property \"%s\" is too long%s", "client.id", "");

	net->family = value_is(conf, "broker.address.family", "v4") ? AF_INET :
		value_is(conf, "broker.address.family", "v6") ? AF_INET6 : AF_UNSPEC;
	net->setup_ms = number_of(conf, "socket.connection.setup.timeout.ms", 10000);
	net->request_ms = number_of(conf, "socket.timeout.ms", REQUEST_MS);
	if (net->request_ms > REQUEST_MS)
		net->request_ms = REQUEST_MS;
	net->receive_max = number_of(conf, "receive.message.max.bytes", RECEIVE_MAX);
	if (net->receive_max > RECEIVE_MAX)
		net->receive_max = RECEIVE_MAX;
	net->send_buffer = number_of(conf, "socket.send.buffer.bytes", 0);
	net->receive_buffer = number_of(conf, "socket.receive.buffer.bytes", 0);
	net->keepalive = value_is(conf, "socket.keepalive.enable", "true");
	net->nodelay = value_is(conf, "socket.nagle.disable", "true");

	return read_servers(net, conf, error) &&
		(!sasl || read_sasl(net, conf, error)) &&
		(!tls || read_tls(net, conf, error));
}

/* On failure tk_net_free is due all the same. */
bool
tk_net_configure(TkNet *net, const TkKafkaConf *user, TkKafkaError *error)
{
	static const TkDefault defaults[] = {
		{"client.id", "transactional_kafka", NULL},
		{"socket.nagle.disable", "true", NULL},
		{"socket.keepalive.enable", "true", NULL},
		{"socket.connection.setup.timeout.ms", "10000", NULL},
	};
	rd_kafka_conf_t *conf = rd_kafka_conf_new();
	bool		ok;

	ok = tk_conf_defaults(conf, defaults, sizeof(defaults) / sizeof(defaults[0]), user, error) &&
		tk_conf_user(conf, user, RD_KAFKA_PRODUCER, error) &&
		read_all(net, conf, error);
	rd_kafka_conf_destroy(conf);
	return ok;
}
