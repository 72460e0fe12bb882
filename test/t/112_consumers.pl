# What people run behind the topics rebuilds the tables: Flink's debezium-json format, Kafka Connect with Debezium's
# ExtractNewRecordState, and a consumer of plain rows; after a mixed workload during which the worker was ended twice.
use strict;
use warnings;

use Encode ();
use JSON::PP ();
use Oracle;
use Test::More;
use TransactionalKafka;

my $seed = defined $ENV{TK_SEED} ? $ENV{TK_SEED} : int(rand(1e9));
diag("TK_SEED=$seed");

$ENV{PGCLIENTENCODING} = 'UTF8';
my $node = new_node('main');
create_server($node);

#
# The same columns twice: with the whole old row in the WAL, which Flink needs to retract it, and with the key only
#
query($node, <<'SQL');
CREATE EXTENSION hstore;
CREATE TYPE con_mood AS ENUM ('sad', 'ok', 'it''s "ok"');
CREATE DOMAIN con_price AS numeric(12,2);
CREATE TYPE con_pair AS (a int, "B" text);
CREATE TABLE con_full (
	id int, part text, b boolean, small int2, big int8, f4 float4, f8 float8, n numeric(20,6), price con_price, t text, vc varchar(10),
	bin bytea, u uuid, d date, ts timestamp, ts3 timestamp(3), tz timestamptz, mood con_mood, ints int[], texts text[], nested int[],
	pair con_pair, h hstore, j jsonb, PRIMARY KEY (part, id));
ALTER TABLE con_full REPLICA IDENTITY FULL;
CREATE TABLE con_key (LIKE con_full INCLUDING ALL);

-- A value for a column, or NULL
CREATE FUNCTION maybe(anyelement) RETURNS anyelement LANGUAGE sql VOLATILE AS 'SELECT CASE WHEN random() < 0.85 THEN $1 END';

CREATE FUNCTION random_row(id int, part text) RETURNS con_full LANGUAGE sql VOLATILE AS $$
SELECT ROW (id, part, maybe(random() < 0.5), maybe((random() * 65535 - 32768)::int2), maybe((random() * 1.8e19 - 9e18)::int8),
	maybe(random()::float4), maybe((random() * 1e30)::float8), maybe((random() * 1e9 - 5e8)::numeric(20,6)), maybe((random() * 1e6 - 5e5)::con_price),
	maybe(repeat(chr(32 + (random() * 1000)::int), (random() * 20)::int) || E'\n"\\' || chr(128024)), maybe(left(md5(random()::text), (random() * 10)::int)),
	maybe(decode(md5(random()::text), 'hex')), maybe(gen_random_uuid()), maybe('1969-12-01'::date + (random() * 20000)::int),
	maybe('1960-01-01'::timestamp + random() * interval '80 years'), maybe(('1960-01-01'::timestamp + random() * interval '80 years')::timestamp(3)),
	maybe('1960-01-01 00:00+00'::timestamptz + random() * interval '80 years'),
	maybe((enum_range(NULL::con_mood))[1 + random() * 2]), maybe(ARRAY[1, NULL, (random() * 100)::int]),
	maybe(ARRAY['a "b"', NULL, '', md5(random()::text)]), maybe('{}'::int[]),
	maybe(ROW ((random() * 10)::int, maybe('x,"y"'::text))::con_pair), maybe(hstore(ARRAY['k', 'q"'], ARRAY[md5(random()::text), NULL])),
	maybe(jsonb_build_object('a', random(), 'b', ARRAY[1, 2])))::con_full
$$;

-- n transactions: inserts, updates, changed keys, deletes and inserts after them, rolled-back parts and wholes
CREATE PROCEDURE con_workload(name text, n int) LANGUAGE plpgsql AS $$
DECLARE
	row con_full;
	kind int;
BEGIN
	FOR i IN 1..n LOOP
		FOR step IN 1..1 + random() * 6 LOOP
			kind := random() * 9;
			row := random_row((random() * 40)::int, (ARRAY['a', 'b c', 'é"'])[1 + random() * 2]);
			IF kind < 5 THEN
				EXECUTE format('INSERT INTO %I SELECT $1.* ON CONFLICT (part, id) DO UPDATE SET (b, small, big, f4, f8, n, price, t, vc, bin, u, '
					'd, ts, ts3, tz, mood, ints, texts, nested, pair, h, j) = (SELECT $1.b, $1.small, $1.big, $1.f4, $1.f8, $1.n, $1.price, $1.t, $1.vc, '
					'$1.bin, $1.u, $1.d, $1.ts, $1.ts3, $1.tz, $1.mood, $1.ints, $1.texts, $1.nested, $1.pair, $1.h, $1.j)', name) USING row;
			ELSIF kind = 5 THEN
				EXECUTE format('UPDATE %I SET t = $1, n = n + 1 WHERE part = $2', name) USING row.t, row.part;
			ELSIF kind = 6 THEN
				EXECUTE format('UPDATE %I t SET id = id + 1000 WHERE id = $1 AND NOT EXISTS '
					'(SELECT FROM %1$I o WHERE o.part = t.part AND o.id = t.id + 1000)', name) USING row.id;
			ELSIF kind = 7 THEN
				EXECUTE format('DELETE FROM %I WHERE id IN ($1, $1 + 1000)', name) USING row.id;
			ELSE
				BEGIN
					EXECUTE format('DELETE FROM %I WHERE part = $1', name) USING row.part;
					RAISE EXCEPTION 'rolled back';
				EXCEPTION WHEN raise_exception THEN
				END;
			END IF;
		END LOOP;
		IF i % 7 = 0 THEN
			ROLLBACK;
		ELSE
			COMMIT;
		END IF;
	END LOOP;
END
$$;

CREATE PROCEDURE con_round(seed float8) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM setseed(seed);
	CALL con_workload('con_full', 100);
	CALL con_workload('con_key', 100);
END
$$;
SQL

my @tables = ('con_full', 'con_key');
my %pipelines = (
	con_readable => {},
	con_schemas => { schemas => \1 },
	con_debezium => { schemas => \1, scalars => 'debezium' },
	con_plain => { envelope => 'plain' });
create_pipeline($node, $_, tables => [@tables], options => { topic_partitions => 2, %{ $pipelines{$_} } }) foreach sort keys %pipelines;

foreach my $round (1, -1)
{
	my $session = background_sql($node, 'CALL con_round(' . $round * $seed / 1e9 . ')');

	terminate_worker($node, $_) foreach sort keys %pipelines;
	$session->{run}->finish;
	is($session->{errors}, '', 'a workload while the workers end');
}
is(query($node, q(SELECT kafka.wait_for(timeout => '120s'))), 't', 'all in Kafka') or die 'not in Kafka';

#
# The consumers
#
my $row_type = 'ROW<id INT, part STRING, b BOOLEAN, small SMALLINT, big BIGINT, f4 FLOAT, f8 DOUBLE, n DECIMAL(20,6), price DECIMAL(12,2), '
  . 't STRING, vc STRING, bin BYTES, u STRING, d DATE, ts TIMESTAMP(6), ts3 TIMESTAMP(3), tz TIMESTAMP_LTZ(6), mood STRING, '
  . 'ints ARRAY<INT>, texts ARRAY<STRING>, nested ARRAY<INT>, pair ROW<a INT, `B` STRING>, h MAP<STRING, STRING>, j STRING>';
my @consumers = (
	[ 'flink', 'con_readable.public.con_full', 'plain', $row_type ],
	[ 'flink', 'con_schemas.public.con_full', 'schemas', $row_type ],
	map({ [ 'connect', "con_debezium.public.$_", '-', '-' ] } @tables),
	map({ [ 'connect', "con_schemas.public.$_", '-', '-' ] } @tables),
	map({ [ 'plain', "con_plain.public.$_", '-', '-' ] } @tables));
my $file = PostgreSQL::Test::Utils::tempdir() . '/rows';
my $output = '';
ok( IPC::Run::run([ java_program('Consumers', broker(), $file, map { @$_ } @consumers) ], '<', \undef, '>&', \$output,
		IPC::Run::timeout(180)),
	'the consumers read all topics') or diag $output;

#
# Their tables beside ours
#
query($node, "CREATE TABLE rebuilt (consumer text, value text)");
{
	open my $in, '<:raw', $file or die "$file: $!";
	open my $out, '>:raw', "$file.copy" or die "$file.copy: $!";
	while (my $line = readline $in) { print $out $line =~ s/\\/\\\\/gr; }
	close $out or die "$file.copy: $!";
}
query($node, "COPY rebuilt FROM '$file.copy'");

# hstore as an object, and without what Debezium leaves out
query($node, <<'SQL');
CREATE FUNCTION seen(con_full, composites boolean) RETURNS jsonb LANGUAGE sql AS $$
SELECT to_jsonb($1) || jsonb_build_object('h', hstore_to_jsonb($1.h), 'pair', CASE WHEN composites THEN to_jsonb($1.pair) END)
$$;
SQL
foreach my $consumer (@consumers)
{
	my ($kind, $topic) = @$consumer;
	my ($table) = $topic =~ /(\w+)$/;
	my $composites = $topic =~ /debezium/ ? 'false' : 'true';
	my $value = 'value::jsonb';

	# nothing tells a consumer without schemas that this text is base64
	$value .= q( || CASE jsonb_typeof(value::jsonb->'bin') WHEN 'string' )
	  . q(THEN jsonb_build_object('bin', decode(value::jsonb->>'bin', 'base64')) ELSE '{}' END)
	  if $kind eq 'plain';

	# h and j may stand as text in it; all others become their column's type again, whatever the consumer made of them
	my $wrong = query($node, <<"SQL");
SET timezone = 'UTC';
WITH theirs AS (
	SELECT seen(jsonb_populate_record(NULL::con_full, ($value) - '{h,j}'::text[]), $composites)
		|| jsonb_build_object('h', CASE jsonb_typeof(value::jsonb->'h') WHEN 'string' THEN (value::jsonb->>'h')::jsonb ELSE value::jsonb->'h' END,
			'j', CASE jsonb_typeof(value::jsonb->'j') WHEN 'string' THEN (value::jsonb->>'j')::jsonb ELSE value::jsonb->'j' END) AS r
	FROM rebuilt WHERE consumer = '$kind $topic'),
ours AS (
	SELECT seen(src::text::con_full, $composites) || jsonb_build_object('h', coalesce(hstore_to_jsonb(h), 'null'), 'j', coalesce(j, 'null')) AS r
	FROM $table src)
(SELECT 'missing: ' || o.r::text FROM (SELECT r FROM ours EXCEPT ALL SELECT r FROM theirs) o LIMIT 3)
UNION ALL
(SELECT 'too much: ' || t.r::text FROM (SELECT r FROM theirs EXCEPT ALL SELECT r FROM ours) t LIMIT 3)
SQL
	is($wrong, '', "$kind rebuilds $table from $topic");
}
cmp_ok(query($node, "SELECT count(*) FROM $_"), '>', 20, "$_ has rows in the end") foreach @tables;
done_testing();
