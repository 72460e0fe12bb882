/*
 * options.c
 *	  Options: parsing, checking, and the foreign-data wrapper's validator.
 *
 * Pipeline and table options are jsonb objects.  Scalars may be written as
 * JSON or as text, durations and sizes as in postgresql.conf.  One table says
 * what there is; what is stored has passed it, and the worker parses the same
 * way again.
 *
 * Options of servers and user mappings are librdkafka's own properties; its
 * classification (kafka_client.h) says who may set which, librdkafka itself
 * says whether a value is good.
 */
#include "postgres.h"

#include <limits.h>

#include "access/reloptions.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_foreign_data_wrapper.h"
#include "catalog/pg_user_mapping.h"
#include "commands/defrem.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/jsonb.h"
#include "utils/varlena.h"

#include "allowed.h"
#include "options.h"
#include "route.h"

PG_FUNCTION_INFO_V1(tk_fdw_validator);

const char *const tk_operation_names[TK_OPERATIONS] = {"insert", "update", "delete", "truncate"};

typedef enum OptionKind
{
	OPTION_BOOL,
	OPTION_INT,
	OPTION_DURATION,			/* int, ms */
	OPTION_SIZE,				/* int64, bytes */
	OPTION_TOPIC,				/* char *, a legal topic name */
	OPTION_PREFIX,				/* char *, [a-zA-Z0-9._-]+ */
	OPTION_ENVELOPE,
	OPTION_JSON_MODE,
	OPTION_SCALARS,
	OPTION_OVERSIZE,
	OPTION_ROUTE,
	OPTION_OPERATIONS,			/* int, bits */
	OPTION_CONFIGS,				/* object of strings */
	OPTION_KEYS					/* List of char * */
} OptionKind;

typedef struct OptionSpec
{
	const char *name;
	OptionKind	kind;
	size_t		offset;
	int64		min;
	int64		max;
} OptionSpec;

#define PIPELINE(field) offsetof(TkPipelineOptions, field)

static const OptionSpec pipeline_specs[] = {
	{"checkpoint_interval", OPTION_DURATION, PIPELINE(checkpoint_interval), 0, INT_MAX},
	{"checkpoint_timeout", OPTION_DURATION, PIPELINE(checkpoint_timeout), 1000, INT_MAX},
	{"checkpoint_max_records", OPTION_INT, PIPELINE(checkpoint_max_records), 1, INT_MAX},
	{"checkpoint_max_bytes", OPTION_SIZE, PIPELINE(checkpoint_max_bytes), 1024, INT64CONST(1) << 40},
	{"max_concurrent_checkpoints", OPTION_INT, PIPELINE(max_concurrent_checkpoints), 1, TK_MAX_CONCURRENT_CHECKPOINTS},
	{"tolerable_failed_checkpoints", OPTION_INT, PIPELINE(tolerable_failed_checkpoints), -1, INT_MAX},
	{"retained_checkpoints", OPTION_INT, PIPELINE(retained_checkpoints), 2, 10000},
	{"transactional_id_prefix", OPTION_PREFIX, PIPELINE(transactional_id_prefix), 1, TK_PREFIX_MAX},
	{"transaction_timeout", OPTION_DURATION, PIPELINE(transaction_timeout), 1000, INT_MAX},
	{"progress_topic", OPTION_TOPIC, PIPELINE(progress_topic), 0, 0},
	{"envelope", OPTION_ENVELOPE, PIPELINE(envelope), 0, 0},
	{"tombstones", OPTION_BOOL, PIPELINE(tombstones), 0, 0},
	{"operations", OPTION_OPERATIONS, PIPELINE(operations), 0, 0},
	{"json", OPTION_JSON_MODE, PIPELINE(json), 0, 0},
	{"scalars", OPTION_SCALARS, PIPELINE(scalars), 0, 0},
	{"schemas", OPTION_BOOL, PIPELINE(schemas), 0, 0},
	{"metadata_headers", OPTION_BOOL, PIPELINE(metadata_headers), 0, 0},
	{"transaction_metadata", OPTION_BOOL, PIPELINE(transaction_metadata), 0, 0},
	{"oversize", OPTION_OVERSIZE, PIPELINE(oversize), 0, 0},
	{"create_topics", OPTION_BOOL, PIPELINE(create_topics), 0, 0},
	{"topic_partitions", OPTION_INT, PIPELINE(topic_partitions), 1, 100000},
	{"topic_replication_factor", OPTION_INT, PIPELINE(topic_replication_factor), 1, 1000},
	{"topic_config", OPTION_CONFIGS, PIPELINE(topic_configs), 0, 0},
	{NULL, 0, 0, 0, 0}
};

#define TABLE(field) offsetof(TkTableOptions, field)

static const OptionSpec table_specs[] = {
	{"topic", OPTION_TOPIC, TABLE(topic), 0, 0},
	{"key", OPTION_KEYS, TABLE(keys), 0, 0},
	{"operations", OPTION_OPERATIONS, TABLE(operations), 0, 0},
	{"route", OPTION_ROUTE, TABLE(route), 0, 0},
	{"event_type_header", OPTION_BOOL, TABLE(event_type_header), 0, 0},
	{NULL, 0, 0, 0, 0}
};

/* The nearest of the names of "specs", if it is near enough to be meant. */
static const char *
closest_name(const OptionSpec *specs, const char *name)
{
	const char *best = NULL;
	int			best_distance = 4;

	for (; specs->name != NULL; specs++)
	{
		int			distance = varstr_levenshtein_less_equal(name, strlen(name), specs->name, strlen(specs->name),
															 1, 1, 1, best_distance, true);

		if (distance < best_distance && distance < (int) strlen(specs->name) / 2 + 1)
		{
			best = specs->name;
			best_distance = distance;
		}
	}
	return best;
}

static const OptionSpec *
find_spec(const OptionSpec *specs, const char *name, const char *what)
{
	const char *closest;
	StringInfoData names;

	for (const OptionSpec *s = specs; s->name != NULL; s++)
		if (strcmp(s->name, name) == 0)
			return s;

	closest = strlen(name) < NAMEDATALEN ? closest_name(specs, name) : NULL;
	initStringInfo(&names);
	for (const OptionSpec *s = specs; s->name != NULL; s++)
		appendStringInfo(&names, "%s%s", s == specs ? "" : ", ", s->name);
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("unrecognized option \"%s\" of %s", name, what),
			 closest != NULL ? errhint("Perhaps you meant the option \"%s\".", closest) :
			 errhint("Valid options are: %s.", names.data)));
	return NULL;				/* keep compiler quiet */
}

static void
bad_value(const char *what, const OptionSpec *spec, const char *value, const char *expected)
{
	/* Without a value: an array or object where none belongs, or the wrong one. */
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 value != NULL ?
			 errmsg("invalid value for option \"%s\" of %s: \"%s\"", spec->name, what, value) :
			 errmsg("invalid value for option \"%s\" of %s", spec->name, what),
			 errdetail("Expected is %s.", expected)));
}

static char *
scalar_text(const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvString:
			return pnstrdup(value->val.string.val, value->val.string.len);
		case jbvNumeric:
			return DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value->val.numeric)));
		case jbvBool:
			return pstrdup(value->val.boolean ? "true" : "false");
		default:
			return NULL;
	}
}

/* A JSON array of strings, or one string with commas, as a List of char *. */
static List *
string_list(const JsonbValue *value)
{
	List	   *result = NIL;

	if (value->type == jbvString)
	{
		char	   *copy = scalar_text(value);
		char	   *rest = copy;
		char	   *part;

		while ((part = strsep(&rest, ",")) != NULL)
		{
			while (*part == ' ')
				part++;
			for (size_t n = strlen(part); n > 0 && part[n - 1] == ' '; n--)
				part[n - 1] = '\0';
			if (*part != '\0')
				result = lappend(result, part);
		}
		return result;
	}
	if (value->type == jbvBinary)
	{
		JsonbIterator *it = JsonbIteratorInit(value->val.binary.data);
		JsonbValue	v;
		JsonbIteratorToken token = JsonbIteratorNext(&it, &v, false);

		if (token != WJB_BEGIN_ARRAY)
			return NIL;
		while ((token = JsonbIteratorNext(&it, &v, true)) == WJB_ELEM)
		{
			char	   *text = v.type == jbvString ? scalar_text(&v) : NULL;

			if (text == NULL)
				return NIL;
			result = lappend(result, text);
		}
	}
	return result;
}

static int
parse_operations(const JsonbValue *value)
{
	int			bits = 0;
	ListCell   *lc;

	foreach(lc, string_list(value))
	{
		int			i;

		for (i = 0; i < TK_OPERATIONS; i++)
			if (pg_strcasecmp(lfirst(lc), tk_operation_names[i]) == 0)
				break;
		if (i == TK_OPERATIONS)
			return 0;
		bits |= 1 << i;
	}
	return bits;
}

/* An object of scalars; NULL if it isn't one. */
static TkKafkaProperty *
parse_configs(const JsonbValue *value, int *n)
{
	TkKafkaProperty *configs;
	JsonbIterator *it;
	JsonbValue	v;

	*n = 0;
	if (value->type != jbvBinary)
		return NULL;
	it = JsonbIteratorInit(value->val.binary.data);
	if (JsonbIteratorNext(&it, &v, false) != WJB_BEGIN_OBJECT)
		return NULL;
	configs = palloc(sizeof(TkKafkaProperty) * Max(v.val.object.nPairs, 1));
	while (JsonbIteratorNext(&it, &v, true) == WJB_KEY)
	{
		configs[*n].name = scalar_text(&v);
		(void) JsonbIteratorNext(&it, &v, true);
		configs[*n].value = scalar_text(&v);
		if (configs[*n].value == NULL)
			return NULL;
		(*n)++;
	}
	return configs;
}

/* Which of the two words it must be */
static bool
is_first(const char *what, const OptionSpec *spec, const char *text, const char *first, const char *second)
{
	if (text != NULL && strcmp(text, first) == 0)
		return true;
	if (text == NULL || strcmp(text, second) != 0)
		bad_value(what, spec, text, psprintf("\"%s\" or \"%s\"", first, second));
	return false;
}

static void
parse_value(const OptionSpec *spec, const JsonbValue *value, char *target, const char *what)
{
	char	   *text = scalar_text(value);
	const char *hint = NULL;
	void	   *field = target + spec->offset;

	switch (spec->kind)
	{
		case OPTION_BOOL:
			if (text == NULL || !parse_bool(text, (bool *) field))
				bad_value(what, spec, text, "true or false");
			return;
		case OPTION_INT:
		case OPTION_DURATION:
			{
				int			n;

				if (text == NULL || !parse_int(text, &n, spec->kind == OPTION_DURATION ? GUC_UNIT_MS : 0, &hint))
					bad_value(what, spec, text,
							  spec->kind == OPTION_DURATION ? "a duration such as '100ms' or '15min'" : "a whole number");
				if (n < spec->min || n > spec->max)
					bad_value(what, spec, text,
							  psprintf("a value from " INT64_FORMAT " to " INT64_FORMAT "%s", spec->min, spec->max,
									   spec->kind == OPTION_DURATION ? " ms" : ""));
				*(int *) field = n;
				return;
			}
		case OPTION_SIZE:
			{
				double		kilobytes;
				int64		bytes;

				/* parse_real keeps sizes over 2 GB; a bare number means bytes */
				if (text == NULL || !parse_real(text, &kilobytes, GUC_UNIT_KB, &hint))
					bad_value(what, spec, text, "a size such as '64MB'");
				if (strspn(text, "0123456789") == strlen(text))
					bytes = strtoll(text, NULL, 10);
				else
					bytes = (int64) (kilobytes * 1024);
				if (bytes < spec->min || bytes > spec->max)
					bad_value(what, spec, text, "a size from 1kB to 1TB");
				*(int64 *) field = bytes;
				return;
			}
		case OPTION_TOPIC:
			{
				const char *problem = NULL;

				if (text == NULL || value->type != jbvString || (problem = tk_topic_problem(text)) != NULL)
					bad_value(what, spec, text,
							  problem ? psprintf("a legal topic name (%s)", problem) : "a topic name");
				*(char **) field = text;
				return;
			}
		case OPTION_PREFIX:
			if (text == NULL || value->type != jbvString || text[0] == '\0' || strlen(text) > (size_t) spec->max ||
				strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != strlen(text))
				bad_value(what, spec, text,
						  psprintf("1 to %d characters of [a-zA-Z0-9._-]", (int) spec->max));
			*(char **) field = text;
			return;
		case OPTION_ENVELOPE:
			{
				const TkEncoder *encoder = text ? tk_encoder_find(text) : NULL;

				if (encoder == NULL)
					bad_value(what, spec, text, "\"debezium\" or \"plain\"");
				*(const TkEncoder **) field = encoder;
				return;
			}
		case OPTION_JSON_MODE:
			*(TkJsonMode *) field = is_first(what, spec, text, "string", "inline") ? TK_JSON_STRING : TK_JSON_INLINE;
			return;
		case OPTION_SCALARS:
			*(TkScalars *) field = is_first(what, spec, text, "readable", "debezium") ? TK_SCALARS_READABLE :
				TK_SCALARS_DEBEZIUM;
			return;
		case OPTION_OVERSIZE:
			*(TkOversize *) field = is_first(what, spec, text, "fail", "dead_letter") ? TK_OVERSIZE_FAIL :
				TK_OVERSIZE_DEAD_LETTER;
			return;
		case OPTION_ROUTE:
			if (text == NULL || strcmp(text, "outbox") != 0)
				bad_value(what, spec, text, "\"outbox\"");
			*(TkTableRoute *) field = TK_ROUTE_OUTBOX;
			return;
		case OPTION_OPERATIONS:
			*(int *) field = parse_operations(value);
			if (*(int *) field == 0)
				bad_value(what, spec, text,
						  "a list of insert, update, delete and truncate");
			return;
		case OPTION_CONFIGS:
			{
				TkPipelineOptions *options = (TkPipelineOptions *) target;

				options->topic_configs = parse_configs(value, &options->ntopic_configs);
				if (options->topic_configs == NULL)
					bad_value(what, spec, text,
							  "an object such as {\"retention.ms\": \"604800000\"}");
				return;
			}
		case OPTION_KEYS:
			*(List **) field = string_list(value);
			if (*(List **) field == NIL)
				bad_value(what, spec, text, "a list of column names");
			return;
	}
}

static void
parse_options(Jsonb *options, const OptionSpec *specs, char *target, const char *what)
{
	JsonbIterator *it;
	JsonbValue	v;

	if (!JB_ROOT_IS_OBJECT(options))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("options of %s must be a JSON object", what)));
	it = JsonbIteratorInit(&options->root);
	(void) JsonbIteratorNext(&it, &v, false);
	while (JsonbIteratorNext(&it, &v, true) == WJB_KEY)
	{
		const OptionSpec *spec = find_spec(specs, scalar_text(&v), what);

		(void) JsonbIteratorNext(&it, &v, true);
		if (v.type != jbvNull)
			parse_value(spec, &v, target, what);
	}
}

static bool
has_option(Jsonb *options, const char *name)
{
	JsonbValue	key;

	key.type = jbvString;
	key.val.string.val = unconstify(char *, name);
	key.val.string.len = strlen(name);
	return findJsonbValueFromContainer(&options->root, JB_FOBJECT, &key) != NULL;
}

TkPipelineOptions *
tk_parse_pipeline_options(Jsonb *options, const char *what)
{
	TkPipelineOptions *result = palloc0(sizeof(TkPipelineOptions));

	result->checkpoint_interval = 100;
	result->checkpoint_timeout = 10 * 60 * 1000;
	result->checkpoint_max_records = 1000000;
	result->checkpoint_max_bytes = INT64CONST(1024) * 1024 * 1024;
	result->max_concurrent_checkpoints = 1;
	result->tolerable_failed_checkpoints = -1;
	result->retained_checkpoints = 100;
	result->transaction_timeout = 15 * 60 * 1000;
	result->envelope = &tk_encoder_debezium;
	result->tombstones = true;
	result->operations = TK_OP_INSERT | TK_OP_UPDATE | TK_OP_DELETE;
	result->json = TK_JSON_DEFAULT;
	result->scalars = TK_SCALARS_READABLE;
	result->oversize = TK_OVERSIZE_FAIL;
	result->create_topics = true;
	result->topic_partitions = -1;
	result->topic_replication_factor = -1;

	parse_options(options, pipeline_specs, (char *) result, what);

	/* The default of this one depends on another. */
	if (!has_option(options, "metadata_headers"))
		result->metadata_headers = result->envelope->metadata_headers;

	if (result->checkpoint_interval >= result->transaction_timeout)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("checkpoint_interval (%d ms) of %s must be less than transaction_timeout (%d ms)",
						result->checkpoint_interval, what, result->transaction_timeout),
				 errdetail("Kafka would abort each transaction before its checkpoint.")));
	if (result->schemas && result->json == TK_JSON_INLINE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("option \"json\" of %s cannot be \"inline\" together with \"schemas\"", what),
				 errdetail("A schema has no type for any JSON.")));
	return result;
}

/* Each option for itself: a change that is right only together with what is stored. */
void
tk_check_pipeline_options(Jsonb *options, const char *what)
{
	TkPipelineOptions ignored;

	parse_options(options, pipeline_specs, (char *) &ignored, what);
}

TkTableOptions *
tk_parse_table_options(Jsonb *options, const char *what)
{
	TkTableOptions *result = palloc0(sizeof(TkTableOptions));

	parse_options(options, table_specs, (char *) result, what);
	return result;
}

int
tk_table_operations(const TkTableOptions *table, int pipeline_operations)
{
	if (table->route == TK_ROUTE_OUTBOX)
		return TK_OP_INSERT;
	return table->operations ? table->operations : pipeline_operations;
}

void
tk_check_table_options(const TkTableOptions *table, const char *what)
{
	const char *other = NULL;

	if (table->route != TK_ROUTE_OUTBOX)
	{
		if (table->event_type_header)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("option \"event_type_header\" of %s needs the route \"outbox\"", what)));
		return;
	}
	if (table->topic != NULL)
		other = "topic";
	else if (table->keys != NIL)
		other = "key";
	else if (table->operations != 0 && table->operations != TK_OP_INSERT)
		other = "operations";
	if (other != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("option \"%s\" of %s can't be set with the route \"outbox\"", other, what),
				 errdetail("Each row inserted is a record, whose topic and key are in the row."),
				 errhint("Set it to null in the same call.")));
}

Jsonb *
tk_merge_options(Jsonb *stored, Jsonb *change)
{
	JsonbParseState *state = NULL;
	JsonbIterator *it;
	JsonbValue	key;
	JsonbValue	v;
	JsonbValue *result;

	if (!JB_ROOT_IS_OBJECT(change))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("options must be a JSON object")));

	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	it = JsonbIteratorInit(&stored->root);
	(void) JsonbIteratorNext(&it, &key, false);
	while (JsonbIteratorNext(&it, &key, true) == WJB_KEY)
	{
		(void) JsonbIteratorNext(&it, &v, true);
		if (findJsonbValueFromContainer(&change->root, JB_FOBJECT, &key) != NULL)
			continue;
		pushJsonbValue(&state, WJB_KEY, &key);
		pushJsonbValue(&state, WJB_VALUE, &v);
	}
	it = JsonbIteratorInit(&change->root);
	(void) JsonbIteratorNext(&it, &key, false);
	while (JsonbIteratorNext(&it, &key, true) == WJB_KEY)
	{
		(void) JsonbIteratorNext(&it, &v, true);
		if (v.type == jbvNull)
			continue;
		pushJsonbValue(&state, WJB_KEY, &key);
		pushJsonbValue(&state, WJB_VALUE, &v);
	}
	result = pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	return JsonbValueToJsonb(result);
}

static void
check_property(DefElem *def, Oid catalog)
{
	bool		mapping = catalog == UserMappingRelationId;
	const char *value = defGetString(def);
	const char *closest;
	char		why[256];

	if (strcmp(def->defname, TK_ALLOWED_TOPICS) == 0)
	{
		if (!mapping)
			ereport(ERROR,
					(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
					 errmsg("option \"%s\" belongs to a user mapping, not to a server", def->defname),
					 errhint("CREATE USER MAPPING FOR PUBLIC is for roles without one of their own.")));
		tk_check_allowed_topics(value);
		return;
	}
	switch (tk_kafka_property_class(def->defname))
	{
		case TK_PROPERTY_UNKNOWN:
			closest = tk_kafka_property_closest(def->defname);
			ereport(ERROR,
					(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
					 errmsg("unrecognized option \"%s\"", def->defname),
					 closest != NULL ? errhint("Perhaps you meant the option \"%s\".", closest) :
					 errhint("Options are librdkafka's configuration properties.")));
			break;
		case TK_PROPERTY_RESERVED:
			ereport(ERROR,
					(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
					 errmsg("option \"%s\" is set by transactional_kafka itself", def->defname)));
			break;
		case TK_PROPERTY_SECRET:
			if (!mapping)
				ereport(ERROR,
						(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
						 errmsg("option \"%s\" belongs to a user mapping, not to a server", def->defname),
						 errhint("Use CREATE USER MAPPING: what a server says can be read by everybody.")));
			break;
		case TK_PROPERTY_SUPERUSER:
			if (!superuser())
				ereport(ERROR,
						(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
						 errmsg("only a superuser can set the option \"%s\"", def->defname),
						 errdetail("It makes the database server read files, load code, run commands, open connections of its own or fill its log.")));
			/* FALLTHROUGH */
		case TK_PROPERTY_SERVER:
			if (mapping)
				ereport(ERROR,
						(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
						 errmsg("option \"%s\" belongs to a server, not to a user mapping", def->defname)));
			break;
	}

	if (strlen(value) > tk_kafka_property_max(def->defname))
		ereport(ERROR,
				(errcode(ERRCODE_FDW_INVALID_ATTRIBUTE_VALUE),
				 errmsg("value of option \"%s\" is too long", def->defname),
				 errdetail("It has %zu bytes; at most %zu are possible.", strlen(value),
						   tk_kafka_property_max(def->defname))));

	/* librdkafka's text may repeat the value, so a secret's is not shown.  Some of its texts end with a newline. */
	if (!tk_kafka_property_check(def->defname, value, why, sizeof(why)))
	{
		why[strcspn(why, "\n")] = '\0';
		ereport(ERROR,
				(errcode(ERRCODE_FDW_INVALID_ATTRIBUTE_VALUE),
				 errmsg("invalid value for option \"%s\"", def->defname),
				 mapping ? 0 : errdetail("librdkafka says: %s", why)));
	}
}

/* SQL: kafka.fdw_validator(options text[], catalog oid) → void */
Datum
tk_fdw_validator(PG_FUNCTION_ARGS)
{
	List	   *options = untransformRelOptions(PG_GETARG_DATUM(0));
	Oid			catalog = PG_GETARG_OID(1);
	bool		has_servers = false;
	ListCell   *lc;

	if (catalog != ForeignServerRelationId && catalog != UserMappingRelationId && options != NIL)
		ereport(ERROR,
				(errcode(ERRCODE_FDW_INVALID_OPTION_NAME),
				 errmsg("invalid option \"%s\"", ((DefElem *) linitial(options))->defname),
				 errhint("Only servers and user mappings of transactional_kafka have options.")));

	foreach(lc, options)
	{
		DefElem    *def = (DefElem *) lfirst(lc);

		check_property(def, catalog);
		if (strcmp(def->defname, "bootstrap.servers") == 0 && defGetString(def)[0] != '\0')
			has_servers = true;
	}
	if (catalog == ForeignServerRelationId && !has_servers)
		ereport(ERROR,
				(errcode(ERRCODE_FDW_OPTION_NAME_NOT_FOUND),
				 errmsg("option \"bootstrap.servers\" is required"),
				 errhint("For example: OPTIONS (\"bootstrap.servers\" 'broker1:9092,broker2:9092').")));
	PG_RETURN_VOID();
}
