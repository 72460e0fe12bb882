--
-- Every object of the extension, with who may what.  A new one appears here: look whether PUBLIC should have it.
--
SET client_min_messages = warning;
CREATE EXTENSION transactional_kafka;
CREATE FUNCTION pg_temp.who(acl aclitem[]) RETURNS text LANGUAGE sql AS $$
	SELECT string_agg(CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END || '=' || privileges, ' ' ORDER BY grantee <> 0, 1)
	FROM (SELECT grantee, string_agg(privilege_type, ',' ORDER BY privilege_type) AS privileges
		FROM aclexplode(acl) WHERE grantee <> 10 GROUP BY 1) x
$$;

-- What PUBLIC has, or anybody but the owner (a superuser)
SELECT kind, object, who FROM (
SELECT 'schema' AS kind, nspname::text AS object, pg_temp.who(coalesce(nspacl, acldefault('n', nspowner))) AS who
FROM pg_namespace WHERE nspname = 'kafka'
UNION ALL
SELECT CASE relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' ELSE relkind::text END, relname::text,
	pg_temp.who(coalesce(relacl, acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relowner)))
FROM pg_class WHERE relnamespace = 'kafka'::regnamespace AND relkind NOT IN ('i', 'c', 't')
UNION ALL
SELECT CASE prokind WHEN 'p' THEN 'procedure' ELSE 'function' END, regexp_replace(oid::regprocedure::text, '^kafka\.', ''),
	pg_temp.who(coalesce(proacl, acldefault('f', proowner)))
FROM pg_proc WHERE pronamespace = 'kafka'::regnamespace
UNION ALL
SELECT 'type', typname::text, pg_temp.who(coalesce(typacl, acldefault('T', typowner)))
FROM pg_type WHERE typnamespace = 'kafka'::regnamespace AND typtype = 'b' AND typelem = 0
UNION ALL
SELECT 'foreign-data wrapper', fdwname::text, pg_temp.who(coalesce(fdwacl, acldefault('F', fdwowner)))
FROM pg_foreign_data_wrapper WHERE fdwname = 'transactional_kafka'
) objects ORDER BY kind, object COLLATE "C";

-- Objects of other kinds, if any: casts, event triggers, …
SELECT classid::regclass AS catalog, count(*) FROM pg_depend d
WHERE refclassid = 'pg_extension'::regclass AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'transactional_kafka')
	AND deptype = 'e' AND classid NOT IN ('pg_class'::regclass, 'pg_proc'::regclass, 'pg_type'::regclass,
		'pg_foreign_data_wrapper'::regclass, 'pg_namespace'::regclass)
GROUP BY 1 ORDER BY 1::text COLLATE "C";

-- Columns with privileges of their own, default privileges, objects that belong to somebody else
SELECT attrelid::regclass, attname, attacl FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid
WHERE relnamespace = 'kafka'::regnamespace AND attacl IS NOT NULL;
SELECT * FROM pg_default_acl WHERE defaclnamespace = 'kafka'::regnamespace;
SELECT relname FROM pg_class WHERE relnamespace = 'kafka'::regnamespace AND relowner <> 10
UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'kafka'::regnamespace AND proowner <> 10;

-- A function that acts with its owner's rights would need a search_path of its own; and what reads or writes the state
-- of this session must not be called in a parallel worker.
SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'kafka'::regnamespace AND prosecdef;
SELECT oid::regprocedure, proparallel FROM pg_proc
WHERE pronamespace = 'kafka'::regnamespace AND proparallel <> 'u' ORDER BY 1::text COLLATE "C";
-- A view that hides rows must do so before the caller's functions see them.
SELECT oid::regclass FROM pg_class WHERE relnamespace = 'kafka'::regnamespace AND relkind = 'v'
	AND NOT coalesce('security_barrier=true' = ANY (reloptions) OR 'security_barrier' = ANY (reloptions), false) ORDER BY 1::text COLLATE "C";

DROP EXTENSION transactional_kafka;
