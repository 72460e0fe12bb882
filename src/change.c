/*
 * change.c
 *	  pgoutput message → Change.
 *
 * Core's logicalrep_read_* functions copy every column into memory of its own
 * and forget the type modifier.  This reader instead points into the message:
 * no allocation a row.  The layout is PostgreSQL's documented logical
 * replication protocol, version 1 (protocol.sgml, "Logical Replication
 * Message Formats"; proto.c writes it).
 *
 * The messages are read in the process that wrote them, so the catalog can
 * add what the protocol leaves out: the order of the key's columns, domains'
 * base types, arrays' elements.  It is the catalog as of the change (decoding
 * has its historic snapshot installed), so a table that was altered or dropped
 * since is still seen in the shape the row has.
 *
 * pgoutput describes a table anew when the table changes, but not when a
 * composite type or enum of its columns does.  Their changes are seen here,
 * and make pgoutput describe its tables anew.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_enum.h"
#include "catalog/pg_index.h"
#include "catalog/pg_type.h"
#include "libpq/pqformat.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "replication/logicalproto.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/hsearch.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/relcache.h"
#include "utils/syscache.h"

#include "change_reader.h"
#include "pg_compat.h"

/* Bits of a column in a Relation message (proto.c) */
#define COLUMN_IS_IDENTITY 1

/* µs from the Unix epoch to PostgreSQL's */
#define EPOCH_OFFSET_US ((int64) (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY)

typedef struct RelationEntry
{
	Oid			relid;			/* hash key */
	TkRelation *relation;
	MemoryContext context;		/* holds the relation, and the message */
	char	   *message;		/* that described it */
	int			message_len;
	uint64		types;			/* types_generation then */
} RelationEntry;

static MemoryContext reader_context = NULL;
static HTAB *relations = NULL;
static const TkChangeHooks *hooks = NULL;

/* What the relations' types are made of, by the composites' pg_class entries */
static HTAB *composites = NULL;
static bool enums_described = false;

/* Counts changes of these types: pgoutput doesn't describe a table anew for them. */
static uint64 types_generation = 0;

/* Types in types: as deep as they are looked into, and so many attributes of one relation, because they multiply */
#define DEPTH_MAX 32
#define ATTRIBUTES_MAX 10000
static int	attributes_described;

/* One row's values; grown to the widest table. */
static TkValue *old_values = NULL;
static TkValue *new_values = NULL;
static int	value_capacity = 0;
static TkRelation **truncated = NULL;

static void
composite_changes(Datum arg, Oid relid)
{
	if (OidIsValid(relid) ? hash_search(composites, &relid, HASH_FIND, NULL) != NULL : hash_get_num_entries(composites) > 0)
		types_generation++;
}

static void
enum_changes(Datum arg, int cache, uint32 hash)
{
	if (enums_described)
		types_generation++;
}

void
tk_change_reader_init(MemoryContext context, const TkChangeHooks *pipeline_hooks)
{
	HASHCTL		control = {0};

	hooks = pipeline_hooks;
	reader_context = AllocSetContextCreate(context, "transactional_kafka relations", ALLOCSET_DEFAULT_SIZES);
	control.keysize = sizeof(Oid);
	control.entrysize = sizeof(RelationEntry);
	control.hcxt = reader_context;
	relations = hash_create("transactional_kafka relations", 128, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	control.entrysize = sizeof(Oid);
	composites = hash_create("transactional_kafka composites", 16, &control, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	CacheRegisterRelcacheCallback(composite_changes, (Datum) 0);
	CacheRegisterSyscacheCallback(ENUMOID, enum_changes, (Datum) 0);
}

static void
reserve_values(int n)
{
	if (n <= value_capacity)
		return;
	n = Max(n, 2 * value_capacity);
	if (old_values != NULL)
	{
		pfree(old_values);
		pfree(new_values);
	}
	old_values = MemoryContextAlloc(reader_context, n * sizeof(TkValue));
	new_values = MemoryContextAlloc(reader_context, n * sizeof(TkValue));
	value_capacity = n;
}

/* A copy of a name of the catalog, in UTF-8 */
static char *
copy_name(const char *name)
{
	const char *converted = pg_server_to_any(name, strlen(name), PG_UTF8);

	return converted == name ? pstrdup(name) : unconstify(char *, converted);
}

/* Types that have a constant OID and are no other's form */
static bool
builtin_kind(Oid oid, TkKind *kind)
{
	switch (oid)
	{
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
		case CHAROID:
		case INETOID:
		case CIDROID:
		case MACADDROID:
		case MACADDR8OID:
		case INT4RANGEOID:
		case INT8RANGEOID:
		case NUMRANGEOID:
		case DATERANGEOID:
		case TSRANGEOID:
		case TSTZRANGEOID:
			*kind = TK_KIND_TEXT;
			return true;
		case NAMEOID:
			*kind = TK_KIND_NAME;
			return true;
		case UUIDOID:
			*kind = TK_KIND_UUID;
			return true;
		case XMLOID:
			*kind = TK_KIND_XML;
			return true;
		case TSVECTOROID:
			*kind = TK_KIND_TSVECTOR;
			return true;
		case BOOLOID:
			*kind = TK_KIND_BOOL;
			return true;
		case INT2OID:
			*kind = TK_KIND_SMALLINT;
			return true;
		case INT4OID:
			*kind = TK_KIND_INTEGER;
			return true;
		case INT8OID:
			*kind = TK_KIND_BIGINT;
			return true;
		case OIDOID:
			*kind = TK_KIND_OID;
			return true;
		case FLOAT4OID:
			*kind = TK_KIND_REAL;
			return true;
		case FLOAT8OID:
			*kind = TK_KIND_FLOAT;
			return true;
		case NUMERICOID:
			*kind = TK_KIND_NUMERIC;
			return true;
		case MONEYOID:
			*kind = TK_KIND_MONEY;
			return true;
		case BYTEAOID:
			*kind = TK_KIND_BYTEA;
			return true;
		case JSONOID:
		case JSONBOID:
			*kind = TK_KIND_JSON;
			return true;
		case DATEOID:
			*kind = TK_KIND_DATE;
			return true;
		case TIMEOID:
			*kind = TK_KIND_TIME;
			return true;
		case TIMETZOID:
			*kind = TK_KIND_TIMETZ;
			return true;
		case TIMESTAMPOID:
			*kind = TK_KIND_TIMESTAMP;
			return true;
		case TIMESTAMPTZOID:
			*kind = TK_KIND_TIMESTAMPTZ;
			return true;
		case INTERVALOID:
			*kind = TK_KIND_INTERVAL;
			return true;
		case BITOID:
			*kind = TK_KIND_BIT;
			return true;
		case VARBITOID:
			*kind = TK_KIND_VARBIT;
			return true;
		case POINTOID:
			*kind = TK_KIND_POINT;
			return true;
		case BOXOID:
			*kind = TK_KIND_BOX;
			return true;
		case LSEGOID:
			*kind = TK_KIND_LSEG;
			return true;
		case PATHOID:
			*kind = TK_KIND_PATH;
			return true;
		case POLYGONOID:
			*kind = TK_KIND_POLYGON;
			return true;
		case LINEOID:
			*kind = TK_KIND_LINE;
			return true;
		case CIRCLEOID:
			*kind = TK_KIND_CIRCLE;
			return true;
		default:
			return false;
	}
}

/* Types of extensions, whose OIDs differ: by name, as Debezium finds them */
static TkKind
named_kind(const char *name)
{
	if (strcmp(name, "hstore") == 0)
		return TK_KIND_HSTORE;
	if (strcmp(name, "ltree") == 0)
		return TK_KIND_LTREE;
	if (strcmp(name, "geometry") == 0)
		return TK_KIND_GEOMETRY;
	if (strcmp(name, "geography") == 0)
		return TK_KIND_GEOGRAPHY;
	if (strcmp(name, "vector") == 0)
		return TK_KIND_VECTOR;
	if (strcmp(name, "halfvec") == 0)
		return TK_KIND_HALFVEC;
	if (strcmp(name, "citext") == 0 || strcmp(name, "isbn") == 0)
		return TK_KIND_TEXT;
	return TK_KIND_OTHER;
}

/* An enum's labels, in order, with commas between. */
static char *
enum_labels(Oid oid)
{
	StringInfoData labels;
	Relation	catalog = table_open(EnumRelationId, AccessShareLock);
	Relation	index = index_open(EnumTypIdSortOrderIndexId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	initStringInfo(&labels);
	ScanKeyInit(&key, Anum_pg_enum_enumtypid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(oid));
	scan = systable_beginscan_ordered(catalog, index, NULL, 1, &key);
	while ((tuple = systable_getnext_ordered(scan, ForwardScanDirection)) != NULL)
	{
		char	   *label = copy_name(NameStr(((Form_pg_enum) GETSTRUCT(tuple))->enumlabel));

		appendStringInfo(&labels, "%s%s", labels.len > 0 ? "," : "", label);
		pfree(label);
	}
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	table_close(catalog, AccessShareLock);
	enums_described = true;
	return labels.data;
}

static void describe_type(TkType *type, Oid oid, int32 typmod, int depth);

/* A composite's attributes; without a lock, as the tables themselves: decoding sees the past. */
static void
describe_composite(TkType *type, Oid relid, int depth)
{
	Relation	rel = RelationIdGetRelation(relid);
	TupleDesc	descriptor;

	if (!RelationIsValid(rel))
		return;
	(void) hash_search(composites, &relid, HASH_ENTER, NULL);
	descriptor = RelationGetDescr(rel);
	attributes_described += descriptor->natts;
	if (attributes_described > ATTRIBUTES_MAX)
	{
		RelationClose(rel);		/* its text, as of a type that isn't known */
		return;
	}
	type->kind = TK_KIND_COMPOSITE;
	type->attributes = palloc0(Max(descriptor->natts, 1) * sizeof(TkAttribute));
	for (int i = 0; i < descriptor->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(descriptor, i);
		TkAttribute *described = &type->attributes[type->nattributes];

		if (attribute->attisdropped)
			continue;
		described->name = copy_name(NameStr(attribute->attname));
		describe_type(&described->type, attribute->atttypid, attribute->atttypmod, depth + 1);
		type->nattributes++;
	}
	RelationClose(rel);
}

static void
describe_array(TkType *type, Oid element, int32 typmod, int depth)
{
	HeapTuple	tuple;

	type->kind = TK_KIND_ARRAY;
	type->element = palloc0(sizeof(TkType));
	describe_type(type->element, element, typmod, depth + 1);

	/* A delimiter is a property of the element. */
	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(element));
	if (HeapTupleIsValid(tuple))
	{
		type->delimiter = ((Form_pg_type) GETSTRUCT(tuple))->typdelim;
		ReleaseSysCache(tuple);
	}
}

/* How a type's text form becomes JSON; domains count as what they are over. */
static void
describe_type(TkType *type, Oid oid, int32 typmod, int depth)
{
	HeapTuple	tuple;
	Form_pg_type form;
	char		typtype;
	Oid			element;
	Oid			relid;

	check_stack_depth();
	oid = getBaseTypeAndTypmod(oid, &typmod);
	memset(type, 0, sizeof(*type));
	type->kind = TK_KIND_OTHER;
	type->oid = oid;
	type->typmod = typmod;
	type->delimiter = ',';
	if (depth > DEPTH_MAX || builtin_kind(oid, &type->kind))
		return;

	tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(oid));
	if (!HeapTupleIsValid(tuple))
		return;
	form = (Form_pg_type) GETSTRUCT(tuple);
	typtype = form->typtype;
	element = IsTrueArrayType(form) ? form->typelem : InvalidOid;
	relid = form->typrelid;
	if (typtype == TYPTYPE_BASE)
		type->kind = named_kind(NameStr(form->typname));
	ReleaseSysCache(tuple);

	if (OidIsValid(element))
		describe_array(type, element, typmod, depth);
	else if (typtype == TYPTYPE_COMPOSITE)
		describe_composite(type, relid, depth);
	else if (typtype == TYPTYPE_ENUM)
	{
		type->kind = TK_KIND_ENUM;
		type->labels = enum_labels(oid);
	}
}

static int
find_column(const TkRelation *relation, const char *name)
{
	for (int i = 0; i < relation->ncolumns; i++)
		if (strcmp(relation->columns[i].name, name) == 0)
			return i;
	return -1;
}

/*
 * The columns of "index" as indexes into the relation's columns, in the order
 * of the index.  0 if one of them isn't among the columns sent.
 */
static int
index_columns(const TkRelation *relation, Relation rel, Oid index, int *keys)
{
	HeapTuple	tuple = SearchSysCache1(INDEXRELID, ObjectIdGetDatum(index));
	Form_pg_index form;
	int			n = 0;

	if (!HeapTupleIsValid(tuple))
		return 0;
	form = (Form_pg_index) GETSTRUCT(tuple);
	for (int i = 0; i < form->indnkeyatts; i++)
	{
		AttrNumber	attnum = form->indkey.values[i];
		char	   *name;
		int			column;

		if (attnum <= 0)
		{
			n = 0;
			break;
		}
		name = NameStr(TupleDescAttr(RelationGetDescr(rel), attnum - 1)->attname);
		column = find_column(relation, pg_server_to_any(name, strlen(name), PG_UTF8));
		if (column < 0)
		{
			n = 0;
			break;
		}
		keys[n++] = column;
	}
	ReleaseSysCache(tuple);
	return n;
}

/*
 * The record's key: the columns set for the table; else the replica identity's
 * index; with REPLICA IDENTITY FULL or NOTHING the primary key, if there is one.
 */
static void
describe_key(TkRelation *relation, const TkTableSettings *settings)
{
	int			capacity = Max(Max(relation->ncolumns, INDEX_MAX_KEYS), settings ? settings->nkeys : 0);
	int		   *keys = palloc(capacity * sizeof(int));
	Relation	rel;
	Oid			index;

	relation->keys = keys;
	relation->nkeys = 0;
	if (settings != NULL && settings->nkeys > 0)
	{
		for (int i = 0; i < settings->nkeys; i++)
		{
			int			column = find_column(relation, settings->keys[i]);

			if (column < 0)
				ereport(ERROR,
						(errcode(ERRCODE_UNDEFINED_COLUMN),
						 errmsg("key column \"%s\" of table \"%s.%s\" is not among the published columns",
								settings->keys[i], relation->schema, relation->table),
						 errhint("Set another key with kafka.set_table().")));
			keys[relation->nkeys++] = column;
		}
		return;
	}

	rel = RelationIdGetRelation(relation->relid);
	if (!RelationIsValid(rel))
		return;
	index = RelationGetReplicaIndex(rel);
	if (!OidIsValid(index))
		index = rel->rd_pkindex;
	if (OidIsValid(index))
		relation->nkeys = index_columns(relation, rel, index, keys);
	RelationClose(rel);
}

/* Which columns are never null, by themselves or by their domain: the message doesn't say it. */
static void
describe_not_null(TkRelation *relation)
{
	Relation	rel = RelationIdGetRelation(relation->relid);
	TupleDesc	descriptor;

	if (!RelationIsValid(rel))
		return;
	descriptor = RelationGetDescr(rel);
	for (int i = 0; i < descriptor->natts; i++)
	{
		Form_pg_attribute attribute = TupleDescAttr(descriptor, i);
		bool		not_null = tk_never_null(descriptor, i);
		HeapTuple	tuple;
		char	   *name;
		int			column;

		if (attribute->attisdropped)
			continue;
		tuple = SearchSysCache1(TYPEOID, ObjectIdGetDatum(attribute->atttypid));
		if (HeapTupleIsValid(tuple))
		{
			not_null = not_null || ((Form_pg_type) GETSTRUCT(tuple))->typnotnull;
			ReleaseSysCache(tuple);
		}
		if (!not_null)
			continue;
		name = copy_name(NameStr(attribute->attname));
		column = find_column(relation, name);
		if (column >= 0)
			relation->columns[column].not_null = true;
		pfree(name);
	}
	RelationClose(rel);
}

/* Relation message: relid, schema, name, replica identity, columns. */
static void
read_relation(StringInfo in)
{
	MemoryContext context = AllocSetContextCreate(reader_context, "transactional_kafka relation",
												  ALLOCSET_SMALL_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	TkRelation *relation = palloc0(sizeof(TkRelation));
	const char *schema;
	RelationEntry *entry;
	uint64		types = types_generation;	/* of before the catalog is read */
	int			message_len = in->len - in->cursor;
	char	   *message = palloc(message_len);
	bool		found;
	TkRelation *old;
	MemoryContext old_context;

	memcpy(message, in->data + in->cursor, message_len);
	attributes_described = 0;
	relation->relid = pq_getmsgint(in, 4);
	schema = pq_getmsgrawstring(in);
	relation->schema = pstrdup(schema[0] == '\0' ? "pg_catalog" : schema);
	relation->table = pstrdup(pq_getmsgrawstring(in));
	relation->replica_identity = pq_getmsgbyte(in);
	relation->ncolumns = pq_getmsgint(in, 2);
	relation->columns = palloc0(Max(relation->ncolumns, 1) * sizeof(TkColumn));
	for (int i = 0; i < relation->ncolumns; i++)
	{
		TkColumn   *column = &relation->columns[i];
		Oid			type;
		int32		typmod;

		column->identity = (pq_getmsgbyte(in) & COLUMN_IS_IDENTITY) != 0;
		column->name = pstrdup(pq_getmsgrawstring(in));
		type = pq_getmsgint(in, 4);
		typmod = (int32) pq_getmsgint(in, 4);
		describe_type(&column->type, type, typmod, 0);
	}
	describe_not_null(relation);
	describe_key(relation, hooks->settings(relation->relid));
	MemoryContextSwitchTo(caller);
	reserve_values(relation->ncolumns);

	/* pgoutput describes a table anew whenever it may have changed. */
	entry = hash_search(relations, &relation->relid, HASH_ENTER, &found);
	old = found ? entry->relation : NULL;
	old_context = found ? entry->context : NULL;
	entry->relation = relation;
	entry->context = context;
	entry->message = message;
	entry->message_len = message_len;
	entry->types = types;
	if (old != NULL)
	{
		relation->order_in = old->order_in;
		relation->order = old->order;
	}
	hooks->described(relation, old);
	if (old != NULL)
	{
		hooks->dropped(old);
		MemoryContextDelete(old_context);
	}
}

static TkRelation *
find_relation(Oid relid)
{
	RelationEntry *entry = hash_search(relations, &relid, HASH_FIND, NULL);

	if (entry == NULL)
		elog(ERROR, "no Relation message came for relation %u", relid);
	if (entry->types != types_generation)
	{
		StringInfoData message;

		/* The same columns; what their types are made of may have changed. */
		message.data = entry->message;
		message.len = message.maxlen = entry->message_len;
		message.cursor = 0;
		read_relation(&message);
		entry = hash_search(relations, &relid, HASH_FIND, NULL);
	}
	return entry->relation;
}

/* A tuple: number of columns, then for each a kind and, where there is one, its text. */
static void
read_tuple(StringInfo in, const TkRelation *relation, TkValue *values)
{
	int			n = pq_getmsgint(in, 2);

	if (n != relation->ncolumns)
		elog(ERROR, "a row of \"%s.%s\" has %d columns instead of %d",
			 relation->schema, relation->table, n, relation->ncolumns);
	for (int i = 0; i < n; i++)
	{
		TkValue    *value = &values[i];

		value->kind = pq_getmsgbyte(in);
		value->len = 0;
		value->data = NULL;
		switch (value->kind)
		{
			case TK_VALUE_NULL:
			case TK_VALUE_UNCHANGED:
				break;
			case TK_VALUE_TEXT:
				value->len = pq_getmsgint(in, 4);
				value->data = pq_getmsgbytes(in, value->len);
				break;
			default:
				elog(ERROR, "unexpected kind of column '%c'", value->kind);
		}
	}
}

static void
read_change(StringInfo in, char type, XLogRecPtr lsn, TkMessage *out)
{
	TkChange   *change = &out->change;
	char		kind;

	out->kind = TK_MESSAGE_CHANGE;
	change->operation = (TkOperation) type;
	change->relation = find_relation(pq_getmsgint(in, 4));
	change->old_kind = 0;
	change->old = old_values;
	change->new = new_values;
	change->lsn = lsn;

	kind = pq_getmsgbyte(in);
	if (kind == 'K' || kind == 'O')
	{
		change->old_kind = kind;
		read_tuple(in, change->relation, old_values);
		if (type == TK_DELETE)
			return;
		kind = pq_getmsgbyte(in);
	}
	if (kind != 'N' || type == TK_DELETE)
		elog(ERROR, "unexpected kind of tuple '%c' in a message of type '%c'", kind, type);
	read_tuple(in, change->relation, new_values);
}

static void
read_truncate(StringInfo in, XLogRecPtr lsn, TkMessage *out)
{
	int			n = pq_getmsgint(in, 4);

	(void) pq_getmsgbyte(in);	/* CASCADE, RESTART IDENTITY */
	if (truncated != NULL)
		pfree(truncated);
	truncated = MemoryContextAlloc(reader_context, Max(n, 1) * sizeof(TkRelation *));
	for (int i = 0; i < n; i++)
		truncated[i] = find_relation(pq_getmsgint(in, 4));
	out->kind = TK_MESSAGE_TRUNCATE;
	out->nrelations = n;
	out->relations = truncated;
	out->change.operation = TK_TRUNCATE;
	out->change.old_kind = 0;
	out->change.lsn = lsn;
}

void
tk_change_read(StringInfo in, XLogRecPtr lsn, TkMessage *out)
{
	char		type;

	in->cursor = 0;
	type = pq_getmsgbyte(in);
	switch (type)
	{
		case TK_INSERT:
		case TK_UPDATE:
		case TK_DELETE:
			read_change(in, type, lsn, out);
			break;
		case TK_TRUNCATE:
			read_truncate(in, lsn, out);
			break;
		case LOGICAL_REP_MSG_BEGIN:
			out->kind = TK_MESSAGE_BEGIN;
			out->commit_lsn = pq_getmsgint64(in);
			out->commit_us = pq_getmsgint64(in) + EPOCH_OFFSET_US;
			out->xid = pq_getmsgint(in, 4);
			break;
		case LOGICAL_REP_MSG_COMMIT:
			out->kind = TK_MESSAGE_COMMIT;
			(void) pq_getmsgbyte(in);
			out->commit_lsn = pq_getmsgint64(in);
			out->end_lsn = pq_getmsgint64(in);
			out->commit_us = pq_getmsgint64(in) + EPOCH_OFFSET_US;
			break;
		case LOGICAL_REP_MSG_RELATION:
			out->kind = TK_MESSAGE_RELATION;
			read_relation(in);
			break;
		case LOGICAL_REP_MSG_MESSAGE:
			out->kind = TK_MESSAGE_LOGICAL;
			out->transactional = (pq_getmsgbyte(in) & 1) != 0;
			(void) pq_getmsgint64(in);
			out->prefix = pq_getmsgrawstring(in);
			out->content_len = pq_getmsgint(in, 4);
			out->content = pq_getmsgbytes(in, out->content_len);
			break;
		default:
			/* Type and Origin messages tell nothing that is needed here. */
			out->kind = TK_MESSAGE_OTHER;
			break;
	}
}
