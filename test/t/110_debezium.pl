# Our records beside those that Debezium itself makes of the same changes: topic, key, value and headers, byte by byte.
#
# Debezium's connector reads a slot of its own through the same publication.  What we do otherwise on purpose is listed in
# %differences and %incomparable, each with its reason, and nowhere else.
use strict;
use warnings;

use Oracle;
use Test::More;
use TransactionalKafka;

$ENV{PGCLIENTENCODING} = 'UTF8';
my $node = new_node('main', "listen_addresses = '127.0.0.1'\n");
create_server($node);

#
# Types: name, then literals, a row each
#
my $digits = '1234567890' x 100;
my @scalars = (
	[ 'bool', 't', 'f' ],
	[ 'int2', -32768, 32767, 0 ],
	[ 'int4', -2147483648, 2147483647, 0 ],
	[ 'int8', '-9223372036854775808', '9223372036854775807', 0 ],
	[ 'oid', 0, '2147483648', '4294967295' ],
	[ 'float4', '1.1', '-0', '3.4028235e+38', '1e-45', 'NaN', 'Infinity', '-Infinity', '100', '16777216', '0.001', '1e7' ],
	[ 'float8', '0.1', '-0', '1.7976931348623157e+308', '5e-324', 'NaN', 'Infinity', '-Infinity', '100', '1e21', '123456789012345680', '2e-3' ],
	[ 'numeric', '0', '-0.10', '1', '-128', '128', '255', '1e20', "-$digits.5", '1e-400', '12345678901234567890.123' ],
	[ 'numeric(6,2)', '0', '-0.01', '1234.5', '-9999.99', '1.28', '2.55', '2.56' ],
	[ 'numeric(5,0)', '0', '-1', '99999', '-128', '127', '128' ],
	[ 'numeric(38,19)', '0', '-1234567890123456789.9876543210987654321', '0.1' ],
	[ 'money', '0', '-1234567.89', '92233720368547758.07', '-92233720368547758.08' ],
	[ 'text', '', 'žluťoučký 🐘', 'null', 'a"b\\c/d', "\x01\b\f\n\r\t\x1f\x7f", "\xe2\x80\xa8\xe2\x80\xa9\xef\xbf\xbf\xc2\x80", '<a href=\'x\'>&amp;', '__debezium_unavailable_value' ],
	[ 'varchar', '', 'x' ],
	[ 'varchar(5)', 'ab', '' ],
	[ 'char(5)', 'ab', '' ],
	[ 'name', 'a"b' ],
	[ '"char"', 'a' ],
	[ 'citext', 'Aé' ],
	[ 'bytea', '\\x', '\\x00ff10', '\\x00', '\\xfbff' ],
	[ 'uuid', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11' ],
	[ 'json', '{"b" : 1, "a":[1,2], "a":"\\u00e9\\n"}', 'null', '"x"' ],
	[ 'jsonb', '{"b" : 1, "a":[1,2]}', 'null', '1e2' ],
	[ 'xml', '<a b="c">é</a>' ],
	[ 'ltree', 'a.b.c' ],
	[ 'hstore', '', 'a=>1, "b c"=>NULL, "q\\"q"=>"x\\\\y"', 'é=>🐘' ],
	[ 'dbz_mood', 'sad', 'it\'s "ok"' ],
	[ 'inet', '10.1.2.3', '192.168.0.1/24', '::1' ],
	[ 'cidr', '10.0.0.0/8' ],
	[ 'macaddr', '08:00:2b:01:02:03' ],
	[ 'macaddr8', '08:00:2b:01:02:03:04:05' ],
	[ 'bit(1)', 0, 1 ],
	[ 'bit(3)', '101', '000' ],
	[ 'bit(11)', '10000000001' ],
	[ 'varbit(9)', '1', '101010101', '' ],
	[ 'varbit', '101010101', '' ],
	[ 'int4range', '[1,5)', 'empty', '(,)' ],
	[ 'int8range', '[1,5)' ],
	[ 'numrange', '[1.50,2.0]' ],
	[ 'daterange', '[2020-01-01,infinity)' ],
	[ 'tsrange', '[2020-01-01 10:00,2020-01-01 12:00:00.5)' ],
	[ 'tstzrange', '[2020-01-01 10:00+02,2020-01-01 12:00:00.5+00)' ],
	[ 'tsvector', "'a b':1A 'c':2" ],
	[ 'date', '2016-11-04', '1969-12-31', '0001-01-01', '9999-12-31' ],
	[ 'time', '13:51:30.123456', '00:00', '23:59:59.999999', '24:00:00' ],
	[ 'time(0)', '13:51:30' ],
	[ 'time(3)', '13:51:30.123', '24:00:00' ],
	[ 'time(4)', '13:51:30.1234' ],
	[ 'timetz', '13:51:30.123456+02:30', '00:00:00+00', '13:00:00-05' ],
	[ 'timestamp', '2016-11-04 13:51:30.123456', '1969-12-31 23:59:59.999999', '0001-01-01 00:00:00' ],
	[ 'timestamp(0)', '2016-11-04 13:51:30' ],
	[ 'timestamp(3)', '2016-11-04 13:51:30.123', '1969-12-31 23:59:59.999' ],
	[ 'timestamp(4)', '2016-11-04 13:51:30.1234' ],
	[ 'timestamptz', '2016-11-04 13:51:30.123456+02', '2016-11-04 13:51:30+00', '1969-12-31 23:59:59.9+00' ],
	[ 'timestamptz(3)', '2016-11-04 13:51:30.120+02' ],
	[ 'interval', '1 year 2 mons -3 days 04:05:06.789', '0', '-1 year', '1 mon', '0.000001 s' ],
	[ 'point', '(1.5,-2)' ],
	[ 'dbz_positive', 7 ],
	[ 'dbz_code', 'ab' ],
	[ 'dbz_price', '12.30' ],
	[ 'dbz_pair', '(1,x)' ],
);
my @arrays = (
	[ 'int2[]', '{1,-2,NULL}', '{}' ],
	[ 'int4[]', '{1,-2,NULL}', '{}' ],
	[ 'int8[]', '{9223372036854775807}' ],
	[ 'float4[]', '{1.5}' ],
	[ 'float8[]', '{1.5,0.1}' ],
	[ 'bool[]', '{t,f}' ],
	[ 'numeric(6,2)[]', '{1.10,NULL}' ],
	[ 'numeric[]', '{1.10,2}' ],
	[ 'text[]', '{a,"b c","NULL",NULL,"","{x,\\"y\\"}","\\\\"}' ],
	[ 'varchar(5)[]', '{ab}' ],
	[ 'char(3)[]', '{ab}' ],
	[ 'citext[]', '{Ab}' ],
	[ 'uuid[]', '{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}' ],
	[ 'date[]', '{2016-11-04}' ],
	[ 'time[]', '{13:51:30.123456}' ],
	[ 'timestamp[]', '{2016-11-04 13:51:30.123456}' ],
	[ 'timestamptz[]', '{2016-11-04 13:51:30+02}' ],
	[ 'json[]', '{"{\\"a\\": 1}"}' ],
	[ 'jsonb[]', '{"{\\"a\\": 1}"}' ],
	[ 'dbz_mood[]', '{sad}' ],
	[ 'inet[]', '{10.1.2.3}' ],
	[ 'dbz_numbers', '{1,2}' ],
);
# Where Debezium's Java types end
my @extremes = (
	[ 'numeric', 'NaN', 'Infinity', '-Infinity' ],
	[ 'numeric(6,2)', 'NaN' ],
	[ 'numeric(3,-2)', '12300' ],
	[ 'date', 'infinity', '-infinity', '0044-03-15 BC', '5874897-12-31', '4713-01-01 BC', '1582-10-10' ],
	[ 'timestamp', 'infinity', '-infinity', '0044-03-15 10:00 BC', '294276-12-31 23:59:59.999999', '1582-10-10 00:00' ],
	[ 'timestamp(3)', 'infinity', '-infinity', '0044-03-15 10:00 BC', '294276-12-31 23:59:59.999' ],
	[ 'timestamptz', 'infinity', '-infinity', '0044-03-15 10:00+00 BC', '294276-12-31 23:59:59.999999+00', '10000-01-01 00:00+00', '1582-10-10 00:00+00' ],
	[ 'timetz', '24:00:00+00', '24:00:00-15:59', '00:00:00+15:59:59', '23:00:00.5-05' ],
	[ 'timetz(3)', '13:51:30.120+02:30' ],
	[ 'interval', '178000000 years', '-178000000 years', '1 mon 1 day 00:00:00.000001', '-1 mon 25:00:00' ],
	[ 'bit(64)', '1' x 64 ],
	[ 'bytea[]', '{"\\\\x00ff"}' ],
	[ 'oid[]', '{4294967295}' ],
	[ 'money[]', '{1.50}' ],
	[ 'xml[]', '{<a/>}' ],
	[ 'interval[]', '{1 day}' ],
	[ 'bit(3)[]', '{101}' ],
	[ 'time(3)[]', '{13:51:30.123}' ],
	[ 'timestamp(3)[]', '{2016-11-04 13:51:30.123}' ],
	[ 'timetz[]', '{13:51:30+02}' ],
	[ 'cidr[]', '{10.0.0.0/8}' ],
	[ 'macaddr[]', '{08:00:2b:01:02:03}' ],
	[ 'int4range[]', '{"[1,5)"}' ],
	[ 'hstore[]', '{a=>1}' ],
	[ 'ltree[]', '{a.b}' ],
	[ 'point[]', '{"(1,2)"}' ],
	[ 'dbz_pair[]', '{"(1,x)"}' ],
	[ 'int8multirange', '{[1,3)}' ],
	[ 'box', '(1,2),(0,0)' ],
	[ 'line', '{1,2,3}' ],
	[ 'lseg', '[(1,2),(0,0)]' ],
	[ 'path', '[(1,2),(0,0)]' ],
	[ 'polygon', '((1,2),(0,0))' ],
	[ 'circle', '<(1,2),3>' ],
	[ 'pg_lsn', '1/2' ],
	[ 'xid', '5' ],
	[ 'xid8', '5' ],
	[ 'tsquery', 'a & b' ],
	[ 'jsonpath', '$.a' ],
	[ 'regtype', 'int4' ],
	[ 'regclass', 'pg_class' ],
	[ 'tid', '(1,2)' ],
	[ 'refcursor', 'x' ],
);
my @nested = (
	[ 'int4[]', '{{1,2},{3,NULL}}', '[0:1]={1,2}' ],
	[ 'text[]', '{{a,b},{c,"d,e"}}' ],
	[ 'date[]', '{infinity}' ],
	[ 'numeric[]', '{NaN}' ],
	[ 'numeric(6,2)[]', '{NaN}', '{1.1,NaN}' ],
	[ 'timestamp[]', '{infinity,-infinity}' ],
	[ 'timestamptz[]', '{infinity}' ],
	[ 'float8[]', '{NaN,Infinity}' ],
	[ 'float4[]', '{100,1e-7}' ],
);
query($node, <<'SQL');
CREATE EXTENSION citext;
CREATE EXTENSION hstore;
CREATE EXTENSION ltree;
CREATE TYPE dbz_mood AS ENUM ('sad', 'it''s "ok"');
CREATE DOMAIN dbz_positive AS int CHECK (VALUE > 0);
CREATE DOMAIN dbz_code AS varchar(5);
CREATE DOMAIN dbz_price AS numeric(6,2);
CREATE DOMAIN dbz_numbers AS int[];
CREATE TYPE dbz_pair AS (a int, b text);
SQL

sub literal
{
	my ($text) = @_;
	return 'NULL' if !defined $text;
	return "E'" . ($text =~ s/([\\'])/$1$1/gr) . "'";
}

# A table of these types; the statements that fill it, the last row with nulls
sub typed_table
{
	my ($name, @types) = @_;
	my $rows = 1;
	my @columns = map { "\"$_->[0]\" $_->[0]" =~ s/^"("char")"/$1/r } @types;

	query($node, "CREATE TABLE $name (id int PRIMARY KEY, " . join(', ', @columns) . ')');
	foreach my $type (@types) { $rows = @$type if @$type > $rows; }
	return map { my $row = $_; "INSERT INTO $name VALUES ($row, " . join(', ', map { literal($_->[$row]) } @types) . ')' } 1 .. $rows;
}

# … and of random ones
my $seed = defined $ENV{TK_SEED} ? $ENV{TK_SEED} : int(rand(1e9));
diag("TK_SEED=$seed");
query($node, <<'SQL');
CREATE TABLE random (id int PRIMARY KEY, f4 float4, f8 float8, n numeric, n2 numeric(20,6), m money, t text, v varchar(9), b bytea,
	d date, t0 time(3), ti time, tz timetz, ts timestamp, ts3 timestamp(3), stz timestamptz, i interval, b11 bit(11), vb varbit(99), u uuid, h hstore, j jsonb,
	ns numeric(9,3)[], na numeric[], ds date[], tss timestamp[], tx text[], f8s float8[], p point, pg polygon);
CREATE FUNCTION random_text(n int) RETURNS text LANGUAGE sql VOLATILE AS $$
SELECT coalesce(string_agg(chr((CASE WHEN random() < 0.5 THEN 1 + random() * 126 WHEN random() < 0.5 THEN 128 + random() * 55000 ELSE 57344 + random() * 1056000 END)::int), ''), '')
	FROM generate_series(1, (random() * n)::int)
$$;
CREATE FUNCTION random_number(digits int) RETURNS numeric LANGUAGE sql VOLATILE AS $$
SELECT (CASE WHEN random() < 0.5 THEN '-' ELSE '' END || string_agg((random() * 9)::int::text, ''))::numeric / 10 ^ (random() * digits)::int::numeric
	FROM generate_series(1, 1 + (random() * digits)::int)
$$;
SQL
my $random = 'SELECT setseed(' . $seed / 1e9 . <<'SQL';
);
INSERT INTO random SELECT i, random_number(9), (random() - 0.5) * 10 ^ (random() * 600 - 300), random_number(40), random_number(12), random_number(12)::money,
	random_text(30), left(random_text(12), 9), decode(left(md5(random()::text), 2 * (random() * 16)::int), 'hex'), '0001-01-01'::date + (random() * 3000000)::int,
	(random() * interval '86399 s')::time, (random() * interval '86399 s')::time, (random() * interval '86399 s')::time AT TIME ZONE ((random() * 1700 - 850)::int || ' min')::interval,
	'0001-01-01'::timestamp + random() * interval '8000 years', '0001-01-01'::timestamp + random() * interval '8000 years', '0001-01-01 00:00+00'::timestamptz + random() * interval '8000 years',
	make_interval((random() * 200 - 100)::int, (random() * 40 - 20)::int, 0, (random() * 100 - 50)::int, (random() * 100 - 50)::int, 0, random() * 1000 - 500),
	(random() * 2047)::int::bit(11), repeat('10', (random() * 20)::int)::varbit || (random() * 65535)::int::bit(16)::varbit, gen_random_uuid(),
	(SELECT hstore(array_agg(random_text(4) || k), array_agg(CASE WHEN random() < 0.8 THEN random_text(9) END)) FROM generate_series(1, (random() * 20)::int) k),
	jsonb_build_object(random_text(5), random_number(20), 'x', ARRAY[random_text(9)]), ARRAY[random_number(5), NULL, random_number(3)], ARRAY[random_number(30)],
	ARRAY['0001-01-01'::date + (random() * 3000000)::int], ARRAY['0001-01-01'::timestamp + random() * interval '8000 years'], ARRAY[random_text(9), NULL, ''],
	ARRAY[random(), random() * 1e10], point(random() * 1000, -random()), polygon(2 + (random() * 3)::int, circle(point(random(), random() * 100), random()))
	FROM generate_series(1, 1000) i
SQL
my @filled = ($random, typed_table('scalars', @scalars), typed_table('arrays', @arrays),
	typed_table('extremes', @extremes), typed_table('nested', @nested));

#
# Tables for what happens to rows
#
query($node, <<'SQL');
CREATE TABLE orders (id int PRIMARY KEY, note text NOT NULL, amount int, code varchar(5) NOT NULL DEFAULT 'x');
CREATE TABLE lines (no int, "Item" text, order_id int, PRIMARY KEY (order_id, no));
CREATE TABLE by_index (a int NOT NULL, b int NOT NULL, c text, id int PRIMARY KEY);
CREATE UNIQUE INDEX by_index_key ON by_index (b, a);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_key;
CREATE TABLE by_full (id int PRIMARY KEY, sku int, t text);
ALTER TABLE by_full REPLICA IDENTITY FULL;
CREATE TABLE full_keyless (a int, b text);
ALTER TABLE full_keyless REPLICA IDENTITY FULL;
CREATE TABLE by_nothing (id int PRIMARY KEY, note text);
ALTER TABLE by_nothing REPLICA IDENTITY NOTHING;
CREATE TABLE toast (id int PRIMARY KEY, n int, t text, v varchar, b bytea, a int[], ta text[], j jsonb);
ALTER TABLE toast ALTER t SET STORAGE EXTERNAL, ALTER v SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL,
	ALTER a SET STORAGE EXTERNAL, ALTER ta SET STORAGE EXTERNAL, ALTER j SET STORAGE EXTERNAL;
CREATE TABLE toast_full (LIKE toast INCLUDING ALL);
ALTER TABLE toast_full REPLICA IDENTITY FULL;
CREATE TABLE parts (id int, region text, note text, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE parts_eu PARTITION OF parts FOR VALUES IN ('eu');
CREATE TABLE parts_us (note text, gone int, region text NOT NULL, id int NOT NULL);
ALTER TABLE parts_us DROP gone;
ALTER TABLE parts ATTACH PARTITION parts_us FOR VALUES IN ('us');
CREATE TABLE shapes (id int PRIMARY KEY, a int);
CREATE TABLE keys (t text, n numeric(6,2), at timestamp, u uuid, note text, PRIMARY KEY (u, t, n, at));
CREATE SCHEMA "Äpfel & Birnen";
CREATE TABLE "Äpfel & Birnen"."x z" ("A" int, b int, "col ""q""" text, "ключ" int PRIMARY KEY);
CREATE TABLE oracle_sync (id int PRIMARY KEY);
SQL
my @tables = ('random', 'scalars', 'arrays', 'extremes', 'nested', 'orders', 'lines', 'by_index', 'by_full', 'full_keyless', 'by_nothing', 'toast', 'toast_full',
	'parts', 'shapes', 'keys', '"Äpfel & Birnen"."x z"', 'oracle_sync');
query($node, 'CREATE PUBLICATION dbz FOR TABLE ' . join(', ', @tables) . ' WITH (publish_via_partition_root = true)');

#
# Both sides
#
my %options = (operations => [ 'insert', 'update', 'delete', 'truncate' ], transaction_metadata => \1, topic_partitions => 1);
create_pipeline($node, 'dbz_readable', publication => 'dbz', options => { %options });
create_pipeline($node, 'dbz_debezium', publication => 'dbz', options => { %options, scalars => 'debezium' });
create_pipeline($node, 'dbz_schemas', publication => 'dbz', options => { %options, scalars => 'debezium', schemas => \1 });
query($node, q(SELECT pg_create_logical_replication_slot('dbz', 'pgoutput')));

my $file = PostgreSQL::Test::Utils::tempdir() . '/records';
my $debezium = start_java(
	'Debezium', $file, 'dbz_them.public.oracle_end',
	'connector.class=io.debezium.connector.postgresql.PostgresConnector',
	'database.hostname=127.0.0.1', 'database.port=' . $node->port, 'database.user=' . getpwuid($<), 'database.password=none',
	'database.dbname=postgres', 'plugin.name=pgoutput', 'slot.name=dbz', 'publication.name=dbz',
	'publication.autocreate.mode=disabled', 'schema.exclude.list=kafka', 'topic.prefix=dbz_them', 'snapshot.mode=no_data',
	'skipped.operations=none', 'provide.transaction.metadata=true', 'poll.interval.ms=5');

my $synced = 0;

# Returns when Debezium has written what was committed before: it looks at the catalog of now, not of then
sub sync
{
	my $line = qr/^dbz_them\.public\.oracle_sync\t\{"id":${\ ++$synced}\}\t/m;

	query($node, "INSERT INTO oracle_sync VALUES ($synced)");
	wait_until
	{
		die "Debezium has ended: $debezium->{output}$debezium->{errors}" if !$debezium->{run}->pumpable;
		$debezium->{run}->pump_nb;
		-e $file && PostgreSQL::Test::Utils::slurp_file($file) =~ $line;
	}
	'Debezium';
	return;
}

sync();
query($node, "$_;") foreach @filled;
query($node, <<'SQL');
INSERT INTO orders VALUES (1, 'one', NULL);
UPDATE orders SET note = 'uno';
UPDATE orders SET id = 2;
DELETE FROM orders;
BEGIN;
INSERT INTO orders VALUES (3, 'three', 3), (4, 'four', 4);
INSERT INTO lines VALUES (1, 'x', 3), (2, 'y', 3);
SAVEPOINT s;
INSERT INTO lines VALUES (3, 'rolled back', 3);
ROLLBACK TO s;
UPDATE lines SET order_id = 4 WHERE no = 1;
UPDATE orders SET note = note || '!';
COMMIT;
TRUNCATE orders, lines;
INSERT INTO by_index VALUES (1, 2, 'x', 3);
UPDATE by_index SET c = 'y', id = 4;
UPDATE by_index SET a = 5;
DELETE FROM by_index;
INSERT INTO by_full VALUES (1, NULL, 'x');
UPDATE by_full SET sku = 42;
UPDATE by_full SET id = 2;
DELETE FROM by_full;
INSERT INTO full_keyless VALUES (1, 'x');
UPDATE full_keyless SET a = 2;
DELETE FROM full_keyless;
INSERT INTO by_nothing VALUES (1, 'x');
INSERT INTO parts VALUES (1, 'eu', 'a'), (2, 'us', 'b');
UPDATE parts SET region = 'us' WHERE id = 1;
UPDATE parts SET note = 'c' WHERE id = 1;
DELETE FROM parts WHERE id = 2;
INSERT INTO keys VALUES ('é "', 1.5, '2016-11-04 13:51:30.123456', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'n');
UPDATE keys SET n = 2.5;
DELETE FROM keys;
INSERT INTO keys VALUES (U&'\+01F418\001F\2028', 0, '1969-12-31 23:59:59', 'b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', NULL);
INSERT INTO "Äpfel & Birnen"."x z" VALUES (1, 2, 'q', 3);
INSERT INTO oracle_sync VALUES (-1);
SQL
query($node, <<"SQL") foreach 'toast', 'toast_full';
INSERT INTO $_ SELECT 1, 1, repeat('x', 5000), repeat('y', 5000), decode(repeat('00', 5000), 'hex'), array_agg(i), array_agg(i::text),
	jsonb_agg(i) FROM generate_series(1, 1000) i;
UPDATE $_ SET n = 2;
UPDATE $_ SET t = repeat('é', 450000);
DELETE FROM $_;
SQL

# DDL between rows: each row in the shape it had
foreach my $sql (
	'INSERT INTO shapes VALUES (1, 10)',
	'ALTER TABLE shapes ADD d int',
	'INSERT INTO shapes VALUES (2, 20, 7)',
	'ALTER TABLE shapes ALTER a TYPE text USING a || \' pieces\'',
	'INSERT INTO shapes VALUES (3, \'none\', NULL)',
	'ALTER TABLE shapes RENAME a TO amount; ALTER TABLE shapes DROP d',
	'INSERT INTO shapes VALUES (4, \'five\')')
{
	sync();
	query($node, $sql);
}
sync();
is(query($node, q(SELECT kafka.wait_for(timeout => '60s'))), 't', 'ours are in Kafka') or die 'not in Kafka';
$debezium->{run}->kill_kill;

#
# What differs on purpose, and why: how a record of Debezium's becomes ours
#
my %identity = (by_index => [ 'a', 'b' ], by_nothing => [], keys => [ 'u', 't', 'n', 'at' ], lines => [ 'no', 'order_id' ], parts => [ 'id', 'region' ],
	'x z' => ['ключ'], map { ($_ => ['id']) } 'random', 'scalars', 'arrays', 'extremes', 'nested', 'orders', 'shapes', 'toast', 'oracle_sync');
my %differences = (
	'"before" has only what PostgreSQL logged: Debezium invents nulls, zeros and empty strings for the other columns' => sub {
		my ($record) = @_;
		my $before = $record->{value} && $record->{value}->{before} or return;

		@$before = grep { identity($record->{table}, $_->[0]) } @$before;
	},
	'so a column that may be missing there is optional there; and a NULL is null: Connect\'s converter would make the default '
	  . 'of it that the schema of the column has, so that has none' => sub {
		my ($record) = @_;
		$record->{schema} = our_schema($record->{table}, $record->{schema}) if defined $record->{schema};
		set($record, 'source', '"snapshot"', sub { s/^null$/"false"/ });
	},
	'a record without key and value says nothing' => sub {
		my ($record) = @_;
		$record->{dropped} = 1 if !defined $record->{key} && !defined $record->{value};
	},
	'Connect\'s task is named in headers' => sub {
		my ($record) = @_;
		delete $record->{headers}->{$_} foreach grep { /^__debezium\.context\./ } keys %{ $record->{headers} };
	},
	'hashes of Java objects instead of the elements, as which nobody can use them' => sub {
		my ($record) = @_;
		set($record, 'after', '"text[]"', sub { s/"\[Ljava\.lang\.String;@[0-9a-f]+"/null/g });
	},
);

# The same where one can't be made of the other: for both of us
my %incomparable = (
	'the id of a transaction is one for all its records: Debezium writes the position of each record' => sub {
		my ($record) = @_;
		my $position = sub { s/"id":"\d+\K:\d+(?="\}$)|^"\d+\K:\d+(?="$)// };

		set($record, 'transaction', '"id"', $position);
		return if $record->{table} ne 'transaction';
		set($record, '', '"id"', $position);
		$position->() foreach $record->{key};
	},
	'the key is the replica identity, of which the old values are known: Debezium takes the primary key, zeros if it was not logged' => sub {
		my ($record) = @_;
		return if $record->{table} ne 'by_index';
		$record->{key} = 'of another index';
		delete $record->{key_schema};
		$record->{headers} = {};
	},
	'values that Debezium loses: a name, a time whose offset has seconds' => sub {
		my ($record) = @_;
		set($record, 'after', '"name"', sub { s/^(null|"a\\"b")$/a name/ });
		set($record, 'after', '"timetz"', sub { s/^(null|"08:00:01Z")$/a time/ });
	},
	'floats have the shortest digits, as in Java since 19: Debezium may run on an older one' => sub {
		my ($record) = @_;
		return if $record->{table} ne 'random';
		set($record, 'after', '"f4"', sub { s/([-\d.]+(?:E-?\d+)?)/unpack 'f', pack 'f', $1/e });
		set($record, 'after', '"f8"', sub { s/([-\d.]+(?:E-?\d+)?)/sprintf '%.17g', $1/e });
	},
	'arrays are of the calendar that PostgreSQL has: in Debezium\'s, timestamps are Julian before 1582-10-15, and the ten days '
	  . 'that this change left out, of dates too, are the ten after it' => sub {
		my ($record) = @_;
		set($record, 'after', '"tss"', sub { s/^\[-(\d+)\]$/$1 > 12218428800000000 ? 'Julian' : $&/e });
		set($record, 'after', '"ds"', sub { s/^\[(-\d+)\]$/$1 >= -141437 && $1 < -141417 ? 'left out' : $&/e });
	},
);

sub identity
{
	my ($table, $column) = @_;
	return 1 if !$identity{$table};
	return scalar grep { qq("$_") eq $column } @{ $identity{$table} };
}

# An envelope's schema as it is with us; a table has few of them
my %schemas;

sub our_schema
{
	my ($table, $schema) = @_;
	return $schemas{$table}->{$schema} ||= change_columns($table, $schema);
}

# Columns without a default, and in "before" required only if they are of the identity
sub change_columns
{
	my ($table, $schema) = @_;
	my @envelope = json_fields($schema);

	foreach my $fields (grep { $_->[0] eq '"fields"' } @envelope)
	{
		my @parts = json_elements($fields->[1]);

		foreach my $part (grep { /"field":"(?:before|after)"\}$/ } @parts)
		{
			my $before = $part =~ /"before"\}$/;
			my @row = json_fields($part);

			foreach my $columns (grep { $_->[0] eq '"fields"' } @row)
			{
				my @columns;

				foreach my $column (json_elements($columns->[1]))
				{
					my @schema = grep { $_->[0] ne '"default"' } json_fields($column);
					my %schema = map { @$_ } @schema;

					$_->[1] = 'true'
					  foreach grep { $_->[0] eq '"optional"' && $before && !identity($table, $schema{'"field"'}) } @schema;
					push @columns, json_object(@schema);
				}
				$columns->[1] = '[' . join(',', @columns) . ']';
			}
			$part = json_object(@row);
		}
		$fields->[1] = '[' . join(',', @parts) . ']';
	}
	return json_object(@envelope);
}

# What differs from run to run
sub mask
{
	my ($record) = @_;

	set($record, 'source', '"version"', sub { $_ = 'masked' });
	set($record, 'source', '"name"', sub { $_ = 'masked' });
	set($record, '', qr/^"ts_[mun]s"$/, sub { $_ = 'masked' });
	return $record;
}

# Changes the fields of that name (or of names like that) in a part of the value
sub set
{
	my ($record, $part, $name, $change) = @_;
	my $fields = $record->{value} && $record->{value}->{$part} or return;

	foreach my $field (@$fields)
	{
		next unless ref $name ? $field->[0] =~ $name : $field->[0] eq $name;
		$change->() foreach $field->[1];
	}
	return;
}

# A record as its parts: the value's fields by "before", "after", "source", "transaction" and, for all others, ''
sub parts
{
	my ($table, $key, $value, $headers) = @_;
	my $record = { table => $table, key => $key, headers => { %{ $headers || {} } } };

	return $record if !defined $value;
	foreach my $field (json_fields($value))
	{
		my ($part) = $field->[0] =~ /^"(before|after|source|transaction)"$/;

		if ($part && $field->[1] =~ /^\{/) { $record->{value}->{$part} = [ json_fields($field->[1]) ]; }
		else { push @{ $record->{value}->{''} }, $field; }
	}
	return $record;
}

# Every difference of two records in words
sub compare
{
	my ($place, $theirs, $ours) = @_;
	my @problems;
	my $note = sub {
		my ($what, @texts) = @_;
		my ($x, $y) = map { defined $_ ? length $_ > 300 ? substr($_, 0, 300) . '…' : $_ : 'nothing' } @texts;
		push @problems, "$place $what: $x, ours is $y"
		  if (defined $texts[0] ? $texts[0] : 'nothing') ne (defined $texts[1] ? $texts[1] : 'nothing');
	};
	my ($t, $o) = ($theirs->{value} || {}, $ours->{value} || {});

	$note->('key', $theirs->{key}, $ours->{key});
	$note->("header $_", $theirs->{headers}->{$_}, $ours->{headers}->{$_})
	  foreach sort keys %{ { %{ $theirs->{headers} }, %{ $ours->{headers} } } };
	foreach my $part (sort keys %{ { %$t, %$o } })
	{
		my %ours = map { @$_ } @{ $o->{$part} || [] };
		my %theirs = map { @$_ } @{ $t->{$part} || [] };

		$note->("$part, fields", map { $_->{$part} ? join ',', map { $_->[0] } @{ $_->{$part} } : undef } $t, $o);
		$note->("$part $_", $theirs{$_}, $ours{$_}) foreach grep { exists $ours{$_} } sort keys %theirs;
	}
	return @problems;
}

#
# Theirs, by topic, as Debezium wrote them and with what differs on purpose
#
my %theirs;
open my $in, '<:raw', $file or die "$file: $!";
while (my $line = readline $in)
{
	chomp $line;
	my ($topic, @texts) = map { $_ eq '\\N' ? undef : $_ } split /\t/, $line;
	my %record;

	@record{qw(key value key_with_schema value_with_schema)} = splice @texts, 0, 4;
	while (my ($name, $header, $header_with_schema) = splice @texts, 0, 3)
	{
		$record{headers}->{$name} = $header;
		$record{headers_with_schema}->{$name} = $header_with_schema;
	}
	push @{ $theirs{ $topic =~ s/^dbz_them\.//r } }, \%record;
}
close $in;

# {"schema":…,"payload":…} as these two
sub unwrapped
{
	my ($text) = @_;
	return (undef, undef) if !defined $text;
	my %parts = map { @$_ } json_fields($text);
	return @parts{ '"schema"', '"payload"' };
}

# Where two texts part
sub compare_text
{
	my ($place, $theirs, $ours) = @_;
	my ($t, $o) = map { defined $_ ? $_ : 'nothing' } $theirs, $ours;
	return () if $t eq $o;
	my ($same) = map { length } ("$t\0$o" ^ "$o\0$t") =~ /^(\0*)/;
	my $from = $same > 150 ? $same - 150 : 0;

	return "$place, behind " . substr($t, $from, $same - $from) . ': ' . substr($t, $same, 150) . '   ours is   ' . substr($o, $same, 150);
}

# Compares all topics with those of a pipeline; of a column that is not the same on purpose, nothing
sub compare_topics
{
	my ($pipeline, %o) = @_;
	my $different = $o{different} || qr/^"different"$/;

	foreach my $topic (sort keys %theirs)
	{
		my $table = $topic =~ s/.*\.//r;
		my (@problems, @theirs, @ours);

		next if $o{without}->{$table};
		foreach my $record (@{ $theirs{$topic} })
		{
			push @theirs, parts($table, @$record{ 'key', 'value', $o{schemas} ? 'headers_with_schema' : 'headers' });
			@{ $theirs[-1] }{ 'key_schema', 'schema' } = map { (unwrapped($record->{$_}))[0] } 'key_with_schema', 'value_with_schema' if $o{schemas};
		}
		foreach my $record (raw_records("$pipeline.$topic"))
		{
			my %headers = $record->{headers} =~ /^(__debezium\.\w+)=(.*)$/;

			if ($o{schemas})
			{
				my ($key_schema, $key) = unwrapped($record->{key});
				my ($schema, $value) = unwrapped($record->{value});

				push @ours, { %{ parts($table, $key, $value, \%headers) }, key_schema => $key_schema, schema => $schema };
			}
			else { push @ours, parts($table, $record->{key}, $record->{value}, \%headers); }
		}
		foreach my $record (@theirs)
		{
			$_->($record) foreach values %differences;
		}
		foreach my $record (@theirs, @ours)
		{
			$_->($record) foreach values %incomparable;
			mask($record);
			foreach my $part (map { $record->{value} && $record->{value}->{$_} || () } 'before', 'after')
			{
				@$part = grep { $_->[0] !~ $different } @$part;
			}
			s/"\Kdbz_(?:debezium|schemas|readable|them)(?=\.)/dbz/g foreach grep { defined } @$record{ 'key_schema', 'schema' }, values %{ $record->{headers} };
		}
		@theirs = grep { !$_->{dropped} } @theirs;
		is(scalar @ours, scalar @theirs, "$pipeline.$topic: as many records");
		foreach my $i (0 .. (@theirs < @ours ? $#theirs : $#ours))
		{
			push @problems, compare("$topic $i", $theirs[$i], $ours[$i]);
			push @problems, map { compare_text("$topic $i, $_", $theirs[$i]->{$_}, $ours[$i]->{$_}) } 'key_schema', 'schema' if $o{schemas};
		}
		is(join("\n", @problems), '', "$pipeline.$topic: what Debezium writes" . ($table eq 'random' ? " (TK_SEED=$seed)" : ''));
	}
	return;
}

compare_topics('dbz_debezium');
compare_topics('dbz_schemas', schemas => 1);

# With readable scalars, what both of us write in the same way
compare_topics(
	'dbz_readable',
	without => { random => 1, keys => 1, extremes => 1, nested => 1 },
	different => qr/^"(?:numeric|money|float|date|time|interval|bit|varbit|hstore|point|text"|name"|dbz_p|n"|at"|b"|a"|ta")/);
done_testing();
