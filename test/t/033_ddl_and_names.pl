# DDL beneath a pipeline, and names: each row is sent in the shape that it had when it was written, to the topic of its
# table's name of then, whether the pipeline keeps up or lags behind; and no two tables come to share a topic.  Cases are
# public bug reports of tools that do this job (the number is theirs), with the right result.
use strict;
use warnings;

use Test::More;
use TransactionalKafka;
use Records;

$ENV{PGCLIENTENCODING} = 'UTF8';
my $node = new_node('main');
my $schema_publications = $node->pg_version >= 15;
create_server($node);
query($node, 'CREATE EXTENSION citext; CREATE SCHEMA before');

# Runs statements with a pipeline that keeps up, and again with one that lags until all is done.  {s} in them, and in what
# is expected of the topics, is the schema, {p} the pipeline.
sub both_ways
{
	my ($what, %o) = @_;

	foreach my $way ('running', 'lagging')
	{
		my $p      = "$o{name}_$way";
		my $filled = sub { return $_[0] =~ s/\{s\}/$p/gr =~ s/\{p\}/$p/gr; };

		query($node, "CREATE SCHEMA $p");
		query($node, $filled->($o{setup}));
		create_pipeline($node, $p,
			$o{publication} ? (publication => $filled->($o{publication})) : (tables => [ map { $filled->($_) } @{ $o{tables} } ]),
			options => { envelope => 'plain', topic_partitions => 1, %{ $o{options} || {} } });
		query($node, "CALL kafka.pause('$p')") if $way eq 'lagging';
		foreach my $sql (@{ $o{story} })
		{
			query($node, $filled->($sql));
			all_sent($node, $p) if $way eq 'running';
		}
		query($node, "CALL kafka.resume('$p')") if $way eq 'lagging';
		foreach my $topic (sort keys %{ $o{topics} })
		{
			local $Test::Builder::Level = $Test::Builder::Level + 1;
			records_are($filled->($topic), $o{show} || \&shown, [ map { $filled->($_) } @{ $o{topics}->{$topic} } ], "$what ($way): $topic");
		}
		all_sent($node, $p);
		is(state($node, $p), 'running', "$p runs");
		query($node, "CALL kafka.drop_pipeline('$p')");
	}
	return;
}

#
# Columns
#
both_ways('DBZ-1698, DBZ-379: each row in its own shape, and a rewrite sends nothing',
	name   => 'columns',
	setup  => 'CREATE TABLE {s}.t (id int PRIMARY KEY, n int, note text)',
	tables => ['{s}.t'],
	story  => [
		<<'SQL', 'VACUUM FULL {s}.t; CLUSTER {s}.t USING t_pkey; REINDEX TABLE {s}.t; ALTER TABLE {s}.t ALTER n TYPE text COLLATE "C"', <<'SQL'
BEGIN;
INSERT INTO {s}.t VALUES (1, 1, 'a');
ALTER TABLE {s}.t ADD d int DEFAULT 7;
INSERT INTO {s}.t VALUES (2, 2, 'b');
ALTER TABLE {s}.t ALTER n TYPE bigint;
INSERT INTO {s}.t VALUES (3, 5000000000, 'c', NULL);
ALTER TABLE {s}.t ALTER n TYPE text USING n || ' pieces', DROP note;
UPDATE {s}.t SET d = d + 1 WHERE id = 1;
ALTER TABLE {s}.t RENAME d TO "D";
ALTER TABLE {s}.t ADD g int GENERATED ALWAYS AS (id * 2) STORED, ADD a int[];
UPDATE {s}.t SET a = '{1,NULL}' WHERE id = 3;
COMMIT;
SQL
BEGIN;
SAVEPOINT s;
ALTER TABLE {s}.t DROP "D";
INSERT INTO {s}.t (id) VALUES (4);
ROLLBACK TO s;
INSERT INTO {s}.t VALUES (5, 'five', 5);
COMMIT;
DELETE FROM {s}.t WHERE id = 1;
SQL
	],
	topics => {
		'{p}.{s}.t' => [
			'{"id":1} {"id":1,"n":1,"note":"a"}',
			'{"id":2} {"id":2,"n":2,"note":"b","d":7}',
			'{"id":3} {"id":3,"n":5000000000,"note":"c","d":null}',
			'{"id":1} {"id":1,"n":"1 pieces","d":8}',
			'{"id":3} {"id":3,"n":"5000000000 pieces","D":null,"a":[1,null]}',
			'{"id":5} {"id":5,"n":"five","D":5,"a":null}',
			'{"id":1} -'
		]
	});

both_ways('dbz#304: a label that an enum got later, and one that got another name',
	name   => 'enums',
	setup  => q(CREATE TYPE {s}.mood AS ENUM ('sad'); CREATE TABLE {s}.t (id int PRIMARY KEY, m {s}.mood, l {s}.mood[])),
	tables => ['{s}.t'],
	story  => [
		q(INSERT INTO {s}.t VALUES (1, 'sad', '{sad}'); ALTER TYPE {s}.mood ADD VALUE 'so-so' BEFORE 'sad'; INSERT INTO {s}.t VALUES (2, 'so-so', '{so-so,sad}')),
		q(ALTER TYPE {s}.mood RENAME VALUE 'sad' TO 'blue'; INSERT INTO {s}.t VALUES (3, 'blue', '{}'))
	],
	topics => {
		'{p}.{s}.t' =>
		  [ '{"id":1} {"id":1,"m":"sad","l":["sad"]}', '{"id":2} {"id":2,"m":"so-so","l":["so-so","sad"]}', '{"id":3} {"id":3,"m":"blue","l":[]}' ]
	});

#
# Identity and key
#
both_ways('the key is that of the time',
	name   => 'keys',
	setup  => 'CREATE TABLE {s}.t (id int PRIMARY KEY, a int NOT NULL, b int NOT NULL); CREATE UNIQUE INDEX t_b_a ON {s}.t (b, a)',
	tables => ['{s}.t'],
	show   => \&brief,
	options => { envelope => 'debezium' },
	story  => [
		'INSERT INTO {s}.t VALUES (1, 2, 3)',
		'ALTER TABLE {s}.t REPLICA IDENTITY USING INDEX t_b_a; UPDATE {s}.t SET a = 4',
		'ALTER TABLE {s}.t REPLICA IDENTITY FULL; UPDATE {s}.t SET b = 5',
		<<'SQL', 'DELETE FROM {s}.t'
BEGIN;
UPDATE {s}.t SET b = 6;
ALTER TABLE {s}.t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (a), REPLICA IDENTITY DEFAULT;
UPDATE {s}.t SET b = 7;
COMMIT;
SQL
	],
	topics => {
		'{p}.{s}.t' => [
			'{"id":1} {"before":null,"after":{"id":1,"a":2,"b":3},"op":"c"}',
			'{"b":3,"a":2} {"before":{"a":2,"b":3},"after":null,"op":"d"}',
			'{"b":3,"a":2} -',
			'{"b":3,"a":4} {"before":null,"after":{"id":1,"a":4,"b":3},"op":"c"}',
			'{"id":1} {"before":{"id":1,"a":4,"b":3},"after":{"id":1,"a":4,"b":5},"op":"u"}',
			'{"id":1} {"before":{"id":1,"a":4,"b":5},"after":{"id":1,"a":4,"b":6},"op":"u"}',
			'{"a":4} {"before":null,"after":{"id":1,"a":4,"b":7},"op":"u"}',
			'{"a":4} {"before":{"a":4},"after":null,"op":"d"}',
			'{"a":4} -'
		]
	});

#
# Partitions
#
both_ways('DBZ-1118, DBZ-5240, spiceai#11290: partitions with other columns, moved rows, ATTACH, DETACH: the topic of the root, columns by name',
	name  => 'partitions',
	setup => <<'SQL',
CREATE TABLE {s}.root (id int, region text, note text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE {s}.eu PARTITION OF {s}.root FOR VALUES IN ('eu');
CREATE TABLE {s}.us (gone int, note text, region text NOT NULL, id int NOT NULL);
ALTER TABLE {s}.us DROP gone;
INSERT INTO {s}.us VALUES ('from before', 'us', 99);
SQL
	tables => ['{s}.root'],
	story  => [
		q(INSERT INTO {s}.root VALUES (1, 'eu', 'a'); INSERT INTO {s}.us VALUES ('not yet', 'us', 98)),
		q(ALTER TABLE {s}.root ATTACH PARTITION {s}.us FOR VALUES IN ('us'); INSERT INTO {s}.us VALUES ('b', 'us', 2)),
		q(UPDATE {s}.root SET region = 'us' WHERE id = 1),
		<<'SQL', q(INSERT INTO {s}.us VALUES ('detached', 'us', 97); INSERT INTO {s}.root VALUES (4, 'eu', 'd')), <<'SQL'
BEGIN;
INSERT INTO {s}.root VALUES (3, 'us', 'c');
ALTER TABLE {s}.root ADD extra int DEFAULT 1;
DELETE FROM {s}.us WHERE id = 2;
ALTER TABLE {s}.root DETACH PARTITION {s}.us;
COMMIT;
SQL
CREATE TABLE {s}.rest PARTITION OF {s}.root DEFAULT PARTITION BY LIST (region);
CREATE TABLE {s}.rest_any (extra int, region text NOT NULL, id int NOT NULL, note text);
ALTER TABLE {s}.rest ATTACH PARTITION {s}.rest_any DEFAULT;
INSERT INTO {s}.root VALUES (5, 'asia', 'e', 2);
DROP TABLE {s}.eu;
SQL
	],
	topics => {
		'{p}.{s}.root' => [
			'{"id":1,"region":"eu"} {"id":1,"region":"eu","note":"a"}',
			'{"id":2,"region":"us"} {"id":2,"region":"us","note":"b"}',
			'{"id":1,"region":"eu"} -',
			'{"id":1,"region":"us"} {"id":1,"region":"us","note":"a"}',
			'{"id":3,"region":"us"} {"id":3,"region":"us","note":"c"}',
			'{"id":2,"region":"us"} -',
			'{"id":4,"region":"eu"} {"id":4,"region":"eu","note":"d","extra":1}',
			'{"id":5,"region":"asia"} {"id":5,"region":"asia","note":"e","extra":2}'
		]
	});

both_ways('partitions of a publication that goes by the root, and that does not',
	name  => 'roots',
	setup => <<'SQL',
CREATE TABLE {s}.root (id int PRIMARY KEY, a int) PARTITION BY RANGE (id);
CREATE TABLE {s}.low (a int, id int NOT NULL PRIMARY KEY);
ALTER TABLE {s}.root ATTACH PARTITION {s}.low FOR VALUES FROM (0) TO (100);
CREATE PUBLICATION {p} FOR TABLE {s}.root WITH (publish_via_partition_root = false);
SQL
	publication => '{p}',
	story       => [
		'INSERT INTO {s}.root VALUES (1, 10); CREATE TABLE {s}.high PARTITION OF {s}.root FOR VALUES FROM (100) TO (200); INSERT INTO {s}.root VALUES (101, 10)',
		'ALTER PUBLICATION {p} SET (publish_via_partition_root = true); INSERT INTO {s}.root VALUES (2, 20), (102, 20)',
		'ALTER TABLE {s}.root DETACH PARTITION {s}.high; INSERT INTO {s}.high VALUES (103, 30); INSERT INTO {s}.root VALUES (3, 30)',
		'ALTER PUBLICATION {p} SET (publish_via_partition_root = false); ALTER PUBLICATION {p} ADD TABLE {s}.high; INSERT INTO {s}.high VALUES (104, 40); INSERT INTO {s}.root VALUES (4, 40)'
	],
	topics => {
		'{p}.{s}.low'  => [ '{"id":1} {"a":10,"id":1}', '{"id":4} {"a":40,"id":4}' ],
		'{p}.{s}.high' => [ '{"id":101} {"id":101,"a":10}', '{"id":104} {"id":104,"a":40}' ],
		'{p}.{s}.root' => [ map { "{\"id\":$_->[0]} {\"id\":$_->[0],\"a\":$_->[1]}" } [ 2, 20 ], [ 102, 20 ], [ 3, 30 ] ]
	});

both_ways('a table that others inherit from: its own rows',
	name   => 'heirs',
	setup  => 'CREATE TABLE {s}.t (id int PRIMARY KEY); CREATE TABLE {s}.heir (more int, PRIMARY KEY (id)) INHERITS ({s}.t)',
	tables => ['{s}.t'],
	story  => ['INSERT INTO {s}.t VALUES (1); INSERT INTO {s}.heir VALUES (2, 2); UPDATE {s}.t SET id = id + 10; DELETE FROM {s}.t'],
	topics => { '{p}.{s}.t' => [ '{"id":1} {"id":1}', '{"id":1} -', '{"id":11} {"id":11}', '{"id":11} -' ] });

#
# Tables come and go
#
both_ways('DBZ-1021, DBZ-9500: dropped tables are sent in the shape they had, a new one of that name in its own',
	name   => 'dropped',
	setup  => 'CREATE TABLE {s}.t (id int PRIMARY KEY, a text); CREATE TABLE {s}.none (); CREATE PUBLICATION {p} FOR ALL TABLES WITH (publish = \'insert, delete\')',
	publication => '{p}',
	story  => [
		q(INSERT INTO {s}.t VALUES (1, 'x'); DROP TABLE {s}.t; CREATE TABLE {s}.t (a int, "B" text PRIMARY KEY); INSERT INTO {s}.t VALUES (1, 'y')),
		q(BEGIN; DELETE FROM {s}.t; DROP TABLE {s}.t; COMMIT; INSERT INTO {s}.none DEFAULT VALUES; DROP TABLE {s}.none)
	],
	topics => {
		'{p}.{s}.t' => [ '{"id":1} {"id":1,"a":"x"}', '{"B":"y"} {"a":1,"B":"y"}', '{"B":"y"} -' ],
		'{p}.{s}.none' => ['- {}']
	});
query($node, 'DROP PUBLICATION dropped_running; DROP PUBLICATION dropped_lagging');

both_ways('DBZ-3921: a table that joins the publication is captured from its first row, one that leaves it to its last',
	name        => 'joins',
	setup       => 'CREATE TABLE {s}.old (id int PRIMARY KEY); CREATE TABLE {s}.new (id int PRIMARY KEY); CREATE PUBLICATION {p} FOR TABLE {s}.old',
	publication => '{p}',
	story       => [
		'INSERT INTO {s}.old VALUES (1); INSERT INTO {s}.new VALUES (1)',
		'ALTER PUBLICATION {p} ADD TABLE {s}.new; INSERT INTO {s}.new VALUES (2)',
		'BEGIN; CREATE TABLE {s}.newest (id int PRIMARY KEY); ALTER PUBLICATION {p} ADD TABLE {s}.newest; INSERT INTO {s}.newest VALUES (1); COMMIT',
		'INSERT INTO {s}.old VALUES (2); ALTER PUBLICATION {p} DROP TABLE {s}.old; INSERT INTO {s}.old VALUES (3)'
	],
	topics => {
		'{p}.{s}.old' => [ map { "{\"id\":$_} {\"id\":$_}" } 1, 2 ],
		'{p}.{s}.new' => ['{"id":2} {"id":2}'],
		'{p}.{s}.newest' => ['{"id":1} {"id":1}']
	});

#
# What the publication selects
#
if ($schema_publications)
{
	both_ways('row filters and column lists as the publication says at the time',
		name  => 'filters',
		setup => <<'SQL',
CREATE TABLE {s}.filtered (id int PRIMARY KEY, n int, secret text, twice int GENERATED ALWAYS AS (id * 2) STORED);
CREATE TABLE {s}.listed (c int, secret text, b int, a int PRIMARY KEY);
CREATE PUBLICATION {p} FOR TABLE {s}.filtered WHERE (id > 10), TABLE {s}.listed (a, c);
SQL
		publication => '{p}',
		story       => [
			q(INSERT INTO {s}.filtered VALUES (1, 1, 'x'), (11, 1, 'x'); UPDATE {s}.filtered SET id = 12 WHERE id = 1; UPDATE {s}.filtered SET id = 2 WHERE id = 11),
			q(INSERT INTO {s}.listed VALUES (1, 'x', 2, 3); UPDATE {s}.listed SET secret = 'y'; DELETE FROM {s}.listed),
			q(ALTER PUBLICATION {p} SET TABLE {s}.filtered, {s}.listed (a, b) WHERE (a < 5)),
			q(INSERT INTO {s}.listed VALUES (1, 'x', 2, 4), (1, 'x', 2, 6); INSERT INTO {s}.filtered VALUES (3, 3, 'z'))
		],
		topics => {
			# a row that comes to fit the filter is an insert, one that ceases to is a delete
			'{p}.{s}.filtered' => [
				'{"id":11} {"id":11,"n":1,"secret":"x"}', '{"id":12} {"id":12,"n":1,"secret":"x"}',
				'{"id":11} -', '{"id":3} {"id":3,"n":3,"secret":"z"}'
			],
			'{p}.{s}.listed' => [ '{"a":3} {"c":1,"a":3}', '{"a":3} {"c":1,"a":3}', '{"a":3} -', '{"a":4} {"b":2,"a":4}' ]
		});

	both_ways('FOR TABLES IN SCHEMA: tables that are created there, or come and go',
		name        => 'schemas',
		setup       => 'CREATE SCHEMA {s}_other; CREATE TABLE {s}_other.guest (id int PRIMARY KEY); CREATE PUBLICATION {p} FOR TABLES IN SCHEMA {s}',
		publication => '{p}',
		story       => [
			'CREATE TABLE {s}.first (id int PRIMARY KEY); INSERT INTO {s}.first VALUES (1); INSERT INTO {s}_other.guest VALUES (1)',
			'ALTER TABLE {s}_other.guest SET SCHEMA {s}; INSERT INTO {s}.guest VALUES (2)',
			'ALTER TABLE {s}.first SET SCHEMA {s}_other; INSERT INTO {s}_other.first VALUES (2)'
		],
		topics => { '{p}.{s}.first' => ['{"id":1} {"id":1}'], '{p}.{s}.guest' => ['{"id":2} {"id":2}'] });
}

#
# Names
#
my $long = 'é' x 31 . 'x';    # 63 bytes
both_ways('dbz#1147, dbz#1682: names are as they are in records, and made legal in topics',
	name  => 'names',
	setup => <<"SQL",
CREATE TABLE {s}."A" ("A" int, a int, "a.b" int, "q""q" text, "\\" text, "ключ" int PRIMARY KEY);
CREATE TABLE {s}.a (a int PRIMARY KEY);
CREATE TABLE {s}."$long" ("$long" int PRIMARY KEY);
CREATE TABLE {s}."so-me.t\$able	'x' 🐘" (" " int PRIMARY KEY);
SQL
	tables => [ '{s}."A"', '{s}.a', "{s}.\"$long\"", "{s}.\"so-me.t\$able	'x' 🐘\"" ],
	story  => [
		qq(INSERT INTO {s}."A" VALUES (1, 2, 3, 'q', 'b', 4); INSERT INTO {s}.a VALUES (1)),
		qq(INSERT INTO {s}."$long" VALUES (1); INSERT INTO {s}."so-me.t\$able	'x' 🐘" VALUES (1))
	],
	topics => {
		'{p}.{s}.A' => ['{"ключ":4} {"A":1,"a":2,"a.b":3,"q\"q":"q","\\\\":"b","ключ":4}'],
		'{p}.{s}.a' => ['{"a":1} {"a":1}'],
		'{p}.{s}.' . '_' x 31 . 'x' => [qq({"$long":1} {"$long":1})],
		'{p}.{s}.so-me.t_able__x___' => ['{" ":1} {" ":1}']
	});

#
# Values at the edges
#
my $digits = '1234567890' x 100;
my $tiny   = '0.' . '0' x 399 . '1';
both_ways('values at the edges',
	name  => 'edges',
	setup => <<'SQL',
CREATE TABLE {s}.numbers (id int PRIMARY KEY, n numeric, nn numeric[], f float8[], o oid, r numrange);
CREATE TABLE {s}.times (id int PRIMARY KEY, d date, ts timestamp, tz timestamptz, dr daterange, tr tsrange, tzr tstzrange);
CREATE TABLE {s}.arrays (id int PRIMARY KEY, a int[], t text[]);
CREATE TABLE {s}.texts (id citext PRIMARY KEY, c citext, v varchar, ch char(3), b bytea, o oid);
SQL
	tables => [ map { "{s}.$_" } 'numbers', 'times', 'arrays', 'texts' ],
	story  => [
		"INSERT INTO {s}.numbers VALUES (1, $digits, '{NaN,Infinity,-Infinity,1e-400}', '{NaN,Infinity,-Infinity,1e-300}', 4000000000, '[1.10,Infinity)')",
		q{INSERT INTO {s}.times VALUES (1, 'infinity', '-infinity', 'infinity', '[2020-01-01,infinity)', '[-infinity,2020-01-01 10:00]', '(,infinity]')},
		q{INSERT INTO {s}.times VALUES (2, '0044-03-15 BC', '294276-12-31 23:59:59.999999', '0044-03-15 10:00+00 BC', '[0044-03-15 BC,5874897-12-31)', 'empty', '[2020-01-01 10:00+02,2020-01-01 10:00:00.5+00]')},
		q(INSERT INTO {s}.arrays VALUES (1, '{{1,2},{3,NULL}}', '{{"","NULL"},{NULL,"{}"}}'), (2, '[0:1]={1,2}', '[-1:0][2:2]={{a},{b}}'), (3, '{}', '{{{x}}}')),
		q(INSERT INTO {s}.texts VALUES ('Ab', 'É', '', '', '', 4294967295))
	],
	topics => {
		'{p}.{s}.numbers' => [
			qq|{"id":1} {"id":1,"n":"$digits","nn":["NaN","Infinity","-Infinity","$tiny"],"f":["NaN","Infinity","-Infinity",1e-300],"o":4000000000,"r":"[1.10,Infinity)"}|
		],
		'{p}.{s}.times' => [
			'{"id":1} {"id":1,"d":"infinity","ts":"-infinity","tz":"infinity","dr":"[2020-01-01,infinity)","tr":"[-infinity,\"2020-01-01 10:00:00\"]","tzr":"(,infinity]"}',
			'{"id":2} {"id":2,"d":"0044-03-15 BC","ts":"294276-12-31T23:59:59.999999","tz":"0044-03-15T10:00:00Z BC",'
			  . '"dr":"[\"0044-03-15 BC\",5874897-12-31)","tr":"empty","tzr":"[\"2020-01-01 08:00:00+00\",\"2020-01-01 10:00:00.5+00\"]"}'
		],
		'{p}.{s}.arrays' => [
			'{"id":1} {"id":1,"a":[[1,2],[3,null]],"t":[["","NULL"],[null,"{}"]]}', '{"id":2} {"id":2,"a":[1,2],"t":[["a"],["b"]]}',
			'{"id":3} {"id":3,"a":[],"t":[[["x"]]]}'
		],
		'{p}.{s}.texts' => ['{"id":"Ab"} {"id":"Ab","c":"É","v":"","ch":"   ","b":"","o":4294967295}']
	});

query($node, q(CREATE DATABASE latin1 TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'));
create_server($node, database => 'latin1');
query($node, q(CREATE TABLE "é" ("ä" text PRIMARY KEY, e text)), database => 'latin1');
create_pipeline($node, 'latin1', tables => ['é'], options => { envelope => 'plain' }, database => 'latin1');
query($node, q(INSERT INTO "é" VALUES ('é', ''), ('', 'ÿ')), database => 'latin1');
is_deeply([ sort map { shown($_) } new_records('latin1.public._', 2) ], [ '{"ä":""} {"ä":"","e":"ÿ"}', '{"ä":"é"} {"ä":"é","e":""}' ],
	'DBZ-937, DBZ-1850: a LATIN1 database comes out as UTF-8');

#
# Two tables do not come to share a topic.
#
query($node, 'CREATE SCHEMA shop; CREATE TABLE shop."a b" (id int PRIMARY KEY); CREATE TABLE shop.other (id int PRIMARY KEY)');
query($node, 'CREATE SCHEMA "x.y"; CREATE TABLE "x.y".z (id int PRIMARY KEY); CREATE SCHEMA x; CREATE TABLE x."y.z" (id int PRIMARY KEY)');
fails_with($node, q(CALL kafka.create_pipeline('dots', 'kafka', tables => '{"\\"x.y\\".z","x.\\"y.z\\""}')),
	qr/tables (x\."y\.z"|"x\.y"\.z) and (x\."y\.z"|"x\.y"\.z) of pipeline "dots" would share the topic "dots\.x\.y\.z"/,
	'dots in names: refused when the pipeline is defined');
query($node, 'CREATE PUBLICATION everything FOR ALL TABLES');
fails_with($node, q(CALL kafka.create_pipeline('everything', 'kafka', publication => 'everything')),
	qr/of pipeline "everything" would share the topic "everything\.x\.y\.z"/, '… FOR ALL TABLES too');
query($node, 'DROP TABLE "x.y".z');
create_pipeline($node, 'everything', publication => 'everything', options => { envelope => 'plain', topic_partitions => 1 });
query($node, 'INSERT INTO shop."a b" VALUES (1)');
all_sent($node, 'everything');
query($node, 'CREATE TABLE shop."a_b" (id int PRIMARY KEY); INSERT INTO shop.other VALUES (1)');
all_sent($node, 'everything');
is(state($node, 'everything'), 'running', 'a table that is created later is no harm as long as it has no rows');
query($node, 'INSERT INTO shop.other VALUES (2); INSERT INTO shop."a b" VALUES (2)');
all_sent($node, 'everything');
query($node, 'INSERT INTO shop.a_b VALUES (1); INSERT INTO shop.other VALUES (3)');
is_stopped($node, 'everything', 'failed', 'tables shop\."a b" and "shop\.a_b" would share the topic "everything\.shop\.a_b"');
like(pipeline_field($node, 'everything', 'hint'), qr/kafka\.set_table\(\)/, '… and says what to do');
resume_stops($node, 'everything', 'failed', 'would share the topic');
records_are('everything.shop.a_b', \&shown, [ map { "{\"id\":$_} {\"id\":$_}" } 1, 2 ], '… nothing of the second table is in the topic');

# others may be renamed meanwhile; only what would collide itself is refused
query($node, 'ALTER TABLE shop.other RENAME TO others; ALTER TABLE shop.others RENAME COLUMN id TO ident');
pass('tables that have nothing to do with it may be renamed meanwhile');
query($node, 'CREATE TABLE shop."c d" (id int PRIMARY KEY); CREATE TABLE shop.c_e (id int PRIMARY KEY)');
fails_with($node, 'ALTER TABLE shop.c_e RENAME TO c_d', qr/would share the topic "everything\.shop\.c_d"/, '… what would collide then is not');
query($node, 'CREATE TABLE shop.c_d (id int PRIMARY KEY)');
query($node, q(SELECT kafka.set_table('everything', 'shop.a_b', '{"topic": "a-b"}')));
fails_with($node, q(SELECT kafka.set_table('everything', 'shop.c_e', '{"topic": "a-b"}'); SELECT kafka.set_table('everything', 'shop.others', '{"topic": "everything.shop.a_b"}')),
	qr/would share the topic "everything\.shop\.a_b"/, 'a topic that set_table gives must not be another table\'s');
fails_with($node, q(CALL kafka.resume('everything')), qr/tables shop\.("c d"|c_d) and "shop\.(c d|c_d)" would share the topic "everything\.shop\.c_d"/,
	'one pair has its topics, the other stops it');
query($node, 'DROP TABLE shop."c d"');
query($node, q(CALL kafka.resume('everything')));
query($node, 'INSERT INTO shop.c_d VALUES (1)');
all_sent($node, 'everything');
records_are('everything.shop.a_b', \&shown, [], 'after resume the first table has its topic');
records_are('a-b', \&shown, ['{"id":1} {"id":1}'], '… the second one the one that it was given');
records_are('everything.shop.other', \&shown, [ map { "{\"id\":$_} {\"id\":$_}" } 1, 2, 3 ], '… and nothing in between was lost');
records_are('everything.shop.c_d', \&shown, ['{"id":1} {"id":1}'], '… a dropped table\'s topic is free');

# a topic goes on to the next table of its name while the pipeline lags
query($node, q(CALL kafka.pause('everything')));
query($node, <<'SQL');
CREATE TABLE shop."p q" (id int PRIMARY KEY);
INSERT INTO shop."p q" VALUES (1);
ALTER TABLE shop."p q" RENAME TO pq;
CREATE TABLE shop.p_q (id int PRIMARY KEY);
INSERT INTO shop.p_q VALUES (2);
INSERT INTO shop.pq VALUES (2);
DROP TABLE shop.p_q;
ALTER TABLE shop.pq RENAME TO "p$q";
INSERT INTO shop."p$q" VALUES (3);
SQL
query($node, q(CALL kafka.resume('everything')));
all_sent($node, 'everything');
records_are('everything.shop.p_q', \&shown, [ map { "{\"id\":$_} {\"id\":$_}" } 1, 2, 3 ], 'a topic goes from one table to another with the names');
records_are('everything.shop.pq', \&shown, ['{"id":2} {"id":2}'], '… and each row to that of its time');
query($node, q(CALL kafka.drop_pipeline('everything')));

# a topic goes from one table to another, though what is unread tells of the first one by its name
query($node, 'CREATE TABLE handed (id int PRIMARY KEY); CREATE PUBLICATION handed FOR TABLE handed');
create_pipeline($node, 'handed', publication => 'handed', options => { envelope => 'plain', topic_partitions => 1 });
query($node, q(CALL kafka.pause('handed')));
query($node, 'INSERT INTO handed VALUES (1); ALTER TABLE handed RENAME TO handed_old; CREATE TABLE handed_v2 (id int PRIMARY KEY)');
query($node, 'ALTER PUBLICATION handed ADD TABLE handed_v2');
query($node, q(SELECT kafka.set_table('handed', 'handed_v2', '{"topic": "handed.public.handed"}'); INSERT INTO handed_v2 VALUES (2); INSERT INTO handed_old VALUES (3)));
query($node, q(CALL kafka.resume('handed')));
all_sent($node, 'handed');
records_are('handed.public.handed', \&shown, [ map { "{\"id\":$_} {\"id\":$_}" } 1, 2 ], 'a topic that set_table has given to another table');
records_are('handed.public.handed_old', \&shown, ['{"id":3} {"id":3}'], '… after a RENAME of the first');
query($node, q(CALL kafka.drop_pipeline('handed')));

# what the pipeline writes itself
query($node, 'CREATE TABLE reserved (id int PRIMARY KEY)');
create_pipeline($node, 'reserved', tables => ['reserved'], options => { transaction_metadata => \1 });
fails_with($node, q(SELECT kafka.set_table('reserved', 'reserved', '{"topic": "reserved.transaction"}')),
	qr/table public\.reserved of pipeline "reserved" can't have the topic "reserved\.transaction".*transaction_metadata/s,
	'the topic of transaction_metadata is no table\'s');
query($node, q(SELECT kafka.alter_pipeline('reserved', '{"transaction_metadata": null}'); SELECT kafka.set_table('reserved', 'reserved', '{"topic": "reserved.transaction"}')));
fails_with($node, q(SELECT kafka.alter_pipeline('reserved', '{"transaction_metadata": true}')), qr/can't have the topic "reserved\.transaction"/,
	'… whichever comes first');
query($node, q(CALL kafka.drop_pipeline('reserved')));

if ($schema_publications)
{
	query($node, 'CREATE SCHEMA one; CREATE TABLE one."r s" (id int PRIMARY KEY); CREATE PUBLICATION one FOR TABLES IN SCHEMA one');
	create_pipeline($node, 'one', publication => 'one', options => { envelope => 'plain', topic_partitions => 1 });
	query($node, 'CREATE TABLE one.r_s (id int PRIMARY KEY); BEGIN; INSERT INTO one."r s" VALUES (1); INSERT INTO one.r_s VALUES (1); COMMIT');
	is_stopped($node, 'one', 'failed', 'tables one\."r s" and "one\.r_s" would share the topic "one\.one\.r_s"');

	# while it lags one of the two goes; what was written before is told apart by what set_table says of the other
	query($node, 'DROP TABLE one.r_s');
	$node->psql('postgres', q(CALL kafka.resume('one')));    # it may see the pipeline run before that comes by
	is_stopped($node, 'one', 'failed', 'would share the topic');
	query($node, q(SELECT kafka.set_table('one', 'one."r s"', '{"topic": "one-r-s"}')));
	query($node, q(CALL kafka.resume('one')));
	all_sent($node, 'one');
	records_are('one.one.r_s', \&shown, ['{"id":1} {"id":1}'], '… set_table of the other table does');
	records_are('one-r-s', \&shown, ['{"id":1} {"id":1}'], '… whose row is in its own topic');
	query($node, q(CALL kafka.drop_pipeline('one')));
}

done_testing();
