/*
 * allowed.c
 *	  Which topics a role may produce() to: see allowed.h.
 *
 * The option stands in the role's user mapping for the pipeline's server, or in
 * that for PUBLIC; without either USAGE on the server is enough.  The server's
 * owner and superusers are not bound: they write the option.
 *
 * PostgreSQL lets a role with USAGE on a server make, alter and drop its own
 * user mapping, which is meant for its password there.  So the option is
 * guarded in the utility hook: only the server's owner may touch it, and a
 * mapping that has it goes by no other hand either, DROP OWNED included.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/reloptions.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/pg_collation.h"
#include "catalog/pg_foreign_server.h"
#include "catalog/pg_user_mapping.h"
#include "commands/defrem.h"
#include "commands/user.h"
#include "foreign/foreign.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "regex/regex.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "allowed.h"
#include "pg_compat.h"
#include "route.h"

/* ----------------------------------------------------------------
 * The option's value
 * ----------------------------------------------------------------
 */

/* As in librdkafka's subscriptions, what begins with ^ is a regular expression; it must match the whole name. */
static bool
is_pattern(const char *value)
{
	return value[0] == '^';
}

static bool
matches(const char *pattern, const char *topic)
{
	char	   *whole = psprintf("^(?:%s)$", pattern + 1);

	return RE_compile_and_execute(cstring_to_text(whole), unconstify(char *, topic), strlen(topic),
								  REG_ADVANCED | REG_NOSUB, C_COLLATION_OID, 0, NULL);
}

/* The next name of a list with commas, and moves *list behind it; NULL: no more. */
static char *
next_name(const char **list)
{
	const char *start;
	size_t		len;

	*list += strspn(*list, ", ");
	start = *list;
	len = strcspn(start, ",");
	*list += len;
	while (len > 0 && start[len - 1] == ' ')
		len--;
	return len == 0 ? NULL : pnstrdup(start, len);
}

static bool
is_allowed(const char *value, const char *topic)
{
	char	   *name;

	if (is_pattern(value))
		return matches(value, topic);
	while ((name = next_name(&value)) != NULL)
		if (strcmp(name, topic) == 0)
			return true;
	return false;
}

void
tk_check_allowed_topics(const char *value)
{
	char	   *name;

	if (is_pattern(value))
	{
		(void) matches(value, "");	/* an ERROR if it is none */
		return;
	}
	while ((name = next_name(&value)) != NULL)
	{
		const char *problem = tk_topic_problem(name);

		if (problem != NULL)
			ereport(ERROR,
					(errcode(ERRCODE_FDW_INVALID_ATTRIBUTE_VALUE),
					 errmsg("invalid value for option \"%s\"", TK_ALLOWED_TOPICS),
					 errdetail("\"%s\" is no name of a topic: %s.", name, problem),
					 errhint("It is a list of topics with commas, or a regular expression that begins with ^.")));
	}
}

/* ----------------------------------------------------------------
 * What a role may do
 * ----------------------------------------------------------------
 */

/* What the last call has found; options NULL: no restriction.  Producing must not read catalogs each time. */
static struct
{
	bool		valid;
	Oid			role;
	Oid			server;
	char	   *value;			/* in TopMemoryContext */
}			last;

static uint64 changes = 0;		/* of mappings, as far as we have heard */

static void
forget_mappings(Datum arg, int cacheid, uint32 hashvalue)
{
	last.valid = false;
	changes++;
}

/* The option of a mapping's tuple, palloc'd; NULL: it has none. */
static char *
option_of(HeapTuple tuple)
{
	bool		isnull;
	Datum		options = SysCacheGetAttr(USERMAPPINGUSERSERVER, tuple, Anum_pg_user_mapping_umoptions, &isnull);
	ListCell   *lc;

	if (isnull)
		return NULL;
	foreach(lc, untransformRelOptions(options))
	{
		DefElem    *def = (DefElem *) lfirst(lc);

		if (strcmp(def->defname, TK_ALLOWED_TOPICS) == 0)
			return defGetString(def);
	}
	return NULL;
}

static char *
option_of_mapping(Oid role, Oid server)
{
	HeapTuple	tuple = SearchSysCache2(USERMAPPINGUSERSERVER, ObjectIdGetDatum(role), ObjectIdGetDatum(server));
	char	   *value;

	if (!HeapTupleIsValid(tuple))
		return NULL;
	value = option_of(tuple);
	ReleaseSysCache(tuple);
	return value;
}

static void
look_up(Oid role, Oid server)
{
	static bool registered = false;
	uint64		seen;
	char	   *value;

	if (!registered)
	{
		CacheRegisterSyscacheCallback(USERMAPPINGUSERSERVER, forget_mappings, (Datum) 0);
		registered = true;
	}
	if (last.valid && last.role == role && last.server == server)
		return;
	last.valid = false;
	if (last.value != NULL)
		pfree(last.value);
	last.value = NULL;
	last.role = role;
	last.server = server;

	/* What is reported while it is read counts; an error leaves it invalid. */
	seen = changes;
	value = option_of_mapping(role, server);
	if (value == NULL)
		value = option_of_mapping(InvalidOid, server);	/* PUBLIC's */
	if (value != NULL)
		last.value = MemoryContextStrdup(TopMemoryContext, value);
	last.valid = seen == changes;
}

void
tk_check_topic_allowed(const char *topic, Oid server)
{
	Oid			role = GetUserId();

	look_up(role, server);
	if (last.value == NULL || is_allowed(last.value, topic) || tk_owns_server(server, role))
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("permission denied to produce to topic \"%s\"", topic),
			 errdetail("The user mapping of role \"%s\", or that for PUBLIC, has the option allowed_topics, and this topic is not in it.",
					   GetUserNameFromId(role, false)),
			 errhint("The owner of foreign server \"%s\" can change it by ALTER USER MAPPING.",
					 GetForeignServer(server)->servername)));
}

/* ----------------------------------------------------------------
 * Who may say so
 * ----------------------------------------------------------------
 */

/* Is it a server of ours, and not the current user's? */
static bool
is_of_another_owner(Oid server)
{
	ForeignServer *s = GetForeignServerExtended(server, FSV_MISSING_OK);
	Oid			validator;

	if (s == NULL || tk_owns_server(server, GetUserId()))
		return false;
	validator = GetForeignDataWrapper(s->fdwid)->fdwvalidator;
	return OidIsValid(validator) && get_func_namespace(validator) == get_namespace_oid("kafka", true);
}

static void
refuse(Oid server)
{
	ereport(ERROR,
			(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
			 errmsg("must be owner of foreign server %s to set or remove the option \"%s\"",
					GetForeignServer(server)->servername, TK_ALLOWED_TOPICS),
			 errdetail("It says which topics a role may produce to.")));
}

static void
guard_options(const char *server_name, List *options)
{
	Oid			server = get_foreign_server_oid(server_name, true);
	ListCell   *lc;

	foreach(lc, options)
	{
		DefElem    *def = (DefElem *) lfirst(lc);

		if (strcmp(def->defname, TK_ALLOWED_TOPICS) == 0 && OidIsValid(server) && is_of_another_owner(server))
			refuse(server);
	}
}

static void
guard_mapping(const DropUserMappingStmt * stmt)
{
	Oid			server = get_foreign_server_oid(stmt->servername, true);
	Oid			role = InvalidOid;

	if (((RoleSpec *) stmt->user)->roletype != ROLESPEC_PUBLIC)
	{
		role = get_rolespec_oid(stmt->user, true);
		if (!OidIsValid(role))
			return;				/* PostgreSQL says so */
	}
	if (OidIsValid(server) && option_of_mapping(role, server) != NULL && is_of_another_owner(server))
		refuse(server);
}

/* DROP OWNED takes the roles' user mappings along. */
static void
guard_mappings_of(List *roles)
{
	Relation	rel = table_open(UserMappingRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;

	while (HeapTupleIsValid(tuple = systable_getnext(scan)))
	{
		Form_pg_user_mapping mapping = (Form_pg_user_mapping) GETSTRUCT(tuple);

		if (list_member_oid(roles, mapping->umuser) && option_of(tuple) != NULL && is_of_another_owner(mapping->umserver))
			refuse(mapping->umserver);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

void
tk_guard_allowed_topics(Node *stmt)
{
	switch (nodeTag(stmt))
	{
		case T_CreateUserMappingStmt:
			guard_options(((CreateUserMappingStmt *) stmt)->servername, ((CreateUserMappingStmt *) stmt)->options);
			break;
		case T_AlterUserMappingStmt:
			guard_options(((AlterUserMappingStmt *) stmt)->servername, ((AlterUserMappingStmt *) stmt)->options);
			break;
		case T_DropUserMappingStmt:
			guard_mapping((DropUserMappingStmt *) stmt);
			break;
		case T_DropOwnedStmt:
			guard_mappings_of(roleSpecsToIds(((DropOwnedStmt *) stmt)->roles));
			break;
		default:
			break;
	}
}
