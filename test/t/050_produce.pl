# kafka.produce(): a record in the caller's transaction, exactly as durable, as ordered and as private as its rows.
use strict;
use warnings;

use IPC::Run ();
use Test::More;
use TransactionalKafka;

my $node = new_node('main');
create_server($node);
query($node, 'CREATE TABLE prod_t (id int PRIMARY KEY); CREATE TABLE prod_src (id int PRIMARY KEY)');
create_pipeline($node, 'prod', tables => ['prod_t'],
	options => { envelope => 'plain', topic_partitions => 1, checkpoint_interval => '5ms' });
query($node, q(SELECT kafka.set_table('prod', 'prod_t', '{"topic": "prod_stream"}')));

# SQL in one session, and then all that has committed is in Kafka.
sub sent
{
	my ($sql, %parameters) = @_;

	query($node, $sql, %parameters);
	is(query($node, q(SELECT kafka.wait_for(timeout => '60s')), %parameters), 't', 'all in Kafka') or die 'not in Kafka';
	return;
}

# What SQL that must fail says.
sub refusal
{
	my ($sql) = @_;
	my $errors = '';

	isnt($node->psql('postgres', $sql, stderr => \$errors), 0, "refused: $sql");
	return $errors;
}

# Records as [key, value], as bytes; undef is Kafka's null.
sub raw
{
	my ($topic) = @_;
	my ($output, $errors) = ('', '');
	my @records;

	IPC::Run::run([ qw(kcat -C -q -e -u -o beginning -b), broker(), '-t', $topic, '-f', '%K %S %k%s' ],
		'<', \undef, '>', \$output, '2>', \$errors) or die "kcat: $errors";
	while ($output =~ s/^(-?\d+) (-?\d+) //)
	{
		my @lengths = ($1, $2);

		push @records, [ map { $_ < 0 ? undef : substr $output, 0, $_, '' } @lengths ];
	}
	is($output, '', "$topic: nothing left of kcat's output");
	return @records;
}

sub payloads
{
	my ($topic, $enough) = @_;
	return [ map { $_->{payload} } $enough ? consume_until($topic, $enough) : consume($topic) ];
}

sub rejected
{
	my ($pipeline) = @_;
	return query($node, "SELECT rejected_messages FROM kafka.stat_pipelines WHERE pipeline = '$pipeline'");
}

sub runs_in_another_process
{
	my ($old) = @_;

	return wait_until
	{
		my $pid = worker_pid($node, 'prod');
		$pid && $pid ne $old && state($node, 'prod') eq 'running';
	}
	'a new worker';
}

#
# Rows and records of one transaction, with a crash after any one of them
#
my $last = 0;

foreach my $case (
	[ plain => 'exit', 1 ], [ plain => 'exit', 2 ], [ plain => 'exit', 3 ],
	[ plain => 'kill', 1 ], [ plain => 'kill', 2 ], [ plain => 'kill', 3 ],
	[ debezium => 'exit', 1 ], [ debezium => 'exit', 2 ], [ debezium => 'kill', 1 ], [ debezium => 'kill', 2 ])
{
	my ($envelope, $action, $n) = @$case;
	my $log = -s $node->logfile;
	my ($one, $two, $three) = map { $last + $_ } 1 .. 3;
	my $old = worker_pid($node, 'prod');

	# records are counted from the start of the process
	set_failpoint($node, "after-append:$action\@$n");
	query($node, qq(SELECT kafka.alter_pipeline('prod', '{"envelope": "$envelope"}')));
	runs_in_another_process($old);

	# the server may be gone before it can say that this has committed
	$node->psql('postgres', <<"SQL");
BEGIN;
INSERT INTO prod_t VALUES ($one);
SELECT kafka.produce('prod_stream', '{"id": $two}'::jsonb);
INSERT INTO prod_t VALUES ($three);
COMMIT;
SQL
	wait_until { logged($node, qr/fail-point "after-append"/, $log) } "record $n";
	if ($action eq 'kill')
	{
		await_crash($node);
		clear_failpoint($node);
		$node->start;
	}
	else
	{
		set_failpoint($node, '');
		start_anew($node, 'prod');
	}
	$last = $three;
	my @records = consume_until('prod_stream', $last);
	my @ids = map { my $value = value($_); $value->{after} ? $value->{after}->{id} : $value->{id} } @records;
	is_deeply(\@ids, [ 1 .. $last ], "$envelope, $action after record $n of INSERT, produce(), INSERT: all three, in order, once");
}

#
# Bytes
#
my $all_bytes = join '', map { chr } 0 .. 255;
my $hex = unpack 'H*', $all_bytes;

sent(<<"SQL");
SELECT kafka.produce('prod_values', 'text', 'key');
SELECT kafka.produce('prod_values', E'caf\\u00e9', E'\\u20ac');
SELECT kafka.produce('prod_values', '\\x$hex'::bytea, '\\x00ff00'::bytea);
SELECT kafka.produce('prod_values', '{"b": [null, "x"], "a": 1.50}'::jsonb, 'json');
SELECT kafka.produce('prod_values', 'no key');
SELECT kafka.produce('prod_values', NULL, key => 'tombstone');
SELECT kafka.produce('prod_values', NULL::bytea, key => '\\x00'::bytea);
SELECT kafka.produce('prod_values', NULL);
SELECT kafka.produce('prod_values', '', '');
SELECT kafka.produce('prod_values', ''::bytea, ''::bytea);
SELECT kafka.produce('prod_values', 'null'::jsonb, NULL);
SELECT kafka.produce('prod_values', repeat('x', 100000), repeat('k', 5000));
SQL
is_deeply(
	[ raw('prod_values') ],
	[
		[ 'key', 'text' ],
		[ "\xe2\x82\xac", "caf\xc3\xa9" ],
		[ "\0\xff\0", $all_bytes ],
		[ 'json', '{"a": 1.50, "b": [null, "x"]}' ],
		[ undef, 'no key' ],
		[ 'tombstone', undef ],
		[ "\0", undef ],
		[ undef, undef ],
		[ '', '' ],
		[ '', '' ],
		[ undef, 'null' ],
		[ 'k' x 5000, 'x' x 100000 ]
	],
	'text, bytea and jsonb arrive byte for byte; null and empty stay apart');

sent(<<'SQL');
SELECT kafka.produce('prod_headers', 'all', headers =>
	'{"a": "1", "b": ["2", "3", null, "2"], "n": null, "t": true, "num": 1.50, "none": [], "empty": "", "": "x", "é": "€"}');
SELECT kafka.produce('prod_headers', 'no headers', headers => '{}');
SELECT kafka.produce('prod_headers', 'null headers', headers => NULL);
SELECT kafka.produce('prod_headers', 'tombstone with a header', NULL, '{"h": "1"}');
SELECT kafka.produce('prod_headers', NULL, 'k', '{"h": "2"}');
SELECT kafka.produce('prod_headers', 'many', headers =>
	(SELECT jsonb_build_object('h', jsonb_agg(i)) FROM generate_series(1, 1000) i));
SQL
my @records = consume('prod_headers');
is_deeply(
	$records[0]->{header_list},
	[ a => '1', b => '2', b => '3', b => undef, b => '2', n => undef, t => 'true', num => '1.50', empty => '', '' => 'x',
		"\x{e9}" => "\x{20ac}" ],
	'headers: in the object\'s order, an array repeats its name, null is Kafka\'s null');
is_deeply([ map { $_->{header_list} } @records[ 1 .. 4 ] ], [ [], [], [ h => '1' ], [ h => '2' ] ], 'headers: none, and one');
is_deeply($records[5]->{header_list}, [ map { (h => $_) } 1 .. 1000 ], 'headers: a thousand');

sent(<<'SQL');
SELECT kafka.produce('prod_json', 'literal', headers => ' { "bb" : 1e2 , "a" : [ "2" , "\u00e9\ud83d\ude00\n" ] , "bb" : 1.0 } ');
SELECT kafka.produce('prod_json', 'json', headers => json_build_object('bb', 1, 'a', true, 'bb', 'x'));
SELECT kafka.produce('prod_json', 'jsonb', headers => jsonb_build_object('bb', 1e2, 'a', true));
SELECT kafka.produce('prod_json', '\x6a'::bytea, headers => '{"b": 1, "a": 2}'::json);
SELECT kafka.produce('prod_json', '{}'::jsonb, headers => '{"b": 1, "a": 2}');
PREPARE untyped AS SELECT kafka.produce('prod_json', $1, headers => $2);
EXECUTE untyped('prepared', '{"b": 1, "a": 2}');
SQL
is_deeply(
	[ map { $_->{header_list} } consume('prod_json') ],
	[
		[ bb => '1e2', a => '2', a => "\x{e9}\x{1f600}\n", bb => '1.0' ],
		[ bb => '1', a => 'true', bb => 'x' ],
		[ a => 'true', bb => '100' ],
		([ b => '1', a => '2' ]) x 3
	],
	'headers: of a literal, json and an untyped parameter order and repeated names are kept, numbers as written; jsonb has its own order');

query($node, q(SELECT kafka.alter_pipeline('prod', '{"topic_partitions": 3}')));
sent(<<'SQL');
SELECT kafka.produce('prod_partitions', p::text, key => 'same', partition => p) FROM unnest('{2,0,1,2}'::int[]) p;
SQL
is_deeply([ map { "$_->{partition}:$_->{payload}" } consume('prod_partitions') ], [ '0:0', '1:1', '2:2', '2:2' ],
	'partition: as told, whatever the key');
query($node, q(SELECT kafka.alter_pipeline('prod', '{"topic_partitions": 1}')));

#
# It is part of its transaction
#
sent(<<'SQL');
BEGIN;
SELECT kafka.produce('prod_tx', '1');
SAVEPOINT back;
SELECT kafka.produce('prod_tx', 'never');
ROLLBACK TO back;
SELECT kafka.produce('prod_tx', '2');
SAVEPOINT kept;
SELECT kafka.produce('prod_tx', '3');
RELEASE kept;
COMMIT;
BEGIN;
SELECT kafka.produce('prod_tx', 'never');
ROLLBACK;
DO $$
BEGIN
	PERFORM kafka.produce('prod_tx', 'never');
	RAISE division_by_zero;
EXCEPTION WHEN division_by_zero THEN
	PERFORM kafka.produce('prod_tx', '4');
END $$;
SQL
is_deeply(payloads('prod_tx'), [ 1, 2, 3, 4 ], 'what a savepoint, an exception or ROLLBACK takes back is never sent');

sent(<<'SQL');
BEGIN;
SELECT kafka.produce('prod_2pc', 'prepared');
SAVEPOINT back;
SELECT kafka.produce('prod_2pc', 'never');
ROLLBACK TO back;
INSERT INTO prod_src VALUES (1000);
PREPARE TRANSACTION 'prod_commit';
BEGIN;
SELECT kafka.produce('prod_2pc', 'never');
PREPARE TRANSACTION 'prod_rollback';
SELECT kafka.produce('prod_2pc', 'meanwhile');
SQL
is_deeply(payloads('prod_2pc'), ['meanwhile'], 'PREPARE TRANSACTION sends nothing yet');
sent(<<'SQL');
ROLLBACK PREPARED 'prod_rollback';
SELECT kafka.produce('prod_2pc', 'after');
SQL
is_deeply(payloads('prod_2pc'), [ 'meanwhile', 'after' ], 'ROLLBACK PREPARED sends nothing');

# … the other one is committed by another server process, after a restart, while the pipeline is paused
query($node, q(CALL kafka.pause('prod')));
query($node, q(SELECT kafka.produce('prod_2pc', 'paused')));
# … and right after it, when nobody has read the definition yet, which a lock makes sure of
query($node, q(BEGIN; LOCK kafka.pipeline IN ACCESS EXCLUSIVE MODE; PREPARE TRANSACTION 'prod_lock'));
$node->restart;
my @early = map { background_sql($node, $_) }
  (q(SELECT kafka.produce('prod_2pc', 'early')), q(SELECT kafka.wait_for(timeout => '60s')));
wait_until { query($node, q(SELECT count(*) FROM pg_stat_activity WHERE query ~ '^SELECT kafka' AND wait_event_type = 'Lock')) eq '2' }
'the early callers';
query($node, q(ROLLBACK PREPARED 'prod_lock'));
$_->{run}->finish foreach @early;
is($early[0]->{errors}, '', 'produce() right after the server\'s start waits until the pipelines are known');
like($early[1]->{errors}, qr/pipeline "prod" does not run/, '… wait_for() too: it does not take the database for one without');
is(state($node, 'prod'), 'stopped', 'paused over a restart');
query($node, q(COMMIT PREPARED 'prod_commit'; SELECT kafka.produce('prod_2pc', 'still paused')));
is_deeply(payloads('prod_2pc'), [ 'meanwhile', 'after' ], 'a paused pipeline sends nothing');
query($node, q(CALL kafka.resume('prod')));
is_deeply(
	payloads('prod_2pc', 6),
	[ 'meanwhile', 'after', 'paused', 'early', 'prepared', 'still paused' ],
	'resume() sends all of it; what was prepared is where its COMMIT PREPARED is');

#
# Callers
#
sent(<<'SQL');
CREATE FUNCTION prod_tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM kafka.produce('prod_trigger', NEW.id::text, TG_OP);
	RETURN NEW;
END $$;
CREATE TRIGGER tell AFTER INSERT OR UPDATE ON prod_src FOR EACH ROW EXECUTE FUNCTION prod_tell();
INSERT INTO prod_src VALUES (1), (2);
COPY prod_src FROM STDIN;
3
4
\.
UPDATE prod_src SET id = 5 WHERE id = 1;
INSERT INTO prod_src VALUES (2) ON CONFLICT DO NOTHING;
SQL
is_deeply(
	[ map { "$_->{key} $_->{payload}" } consume('prod_trigger') ],
	[ 'INSERT 1', 'INSERT 2', 'INSERT 3', 'INSERT 4', 'UPDATE 5' ],
	'from a trigger, under COPY too');

sent(<<'SQL');
CREATE FUNCTION prod_sql(n int) RETURNS void LANGUAGE sql AS $$ SELECT kafka.produce('prod_callers', n::text) $$;
CREATE FUNCTION prod_definer(n int) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
	EXECUTE 'SELECT kafka.produce($1, $2)' USING 'prod_callers', n::text;
END $$;
CREATE PROCEDURE prod_loop() LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 5 .. 8 LOOP
		PERFORM kafka.produce('prod_callers', i::text);
		IF i % 2 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
	END LOOP;
END $$;
SELECT prod_sql(1);
DO $$ BEGIN PERFORM kafka.produce('prod_callers', '2'); END $$;
CREATE ROLE prod_user;
SET ROLE prod_user;
SELECT prod_definer(3);
RESET ROLE;
GRANT USAGE ON FOREIGN SERVER kafka TO prod_user;
SET ROLE prod_user;
SELECT kafka.produce('prod_callers', '4');
RESET ROLE;
CALL prod_loop();
WITH rows AS (INSERT INTO prod_src VALUES (9) RETURNING id) SELECT kafka.produce('prod_callers', id::text) FROM rows;
PREPARE p(text) AS SELECT kafka.produce('prod_callers', $1);
EXECUTE p('10');
EXECUTE p(NULL);
SQL
is_deeply(
	payloads('prod_callers'),
	[ 1, 2, 3, 4, 5, 7, 9, 10, undef ],
	'from functions, DO, a procedure that commits, a query, a prepared statement, and by whoever has USAGE');

#
# 100 serializable transactions, ten at a time
#
$node->append_conf('postgresql.conf', "log_min_error_statement = error\n");
my $serial = "$PostgreSQL::Test::Utils::tmp_check/prod_serial.pgbench";
PostgreSQL::Test::Utils::append_to_file($serial, <<'SQL');
\set n :n + 1
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT kafka.produce('prod_serial', :client_id || '.' || :n);
SELECT kafka.produce('prod_serial', :client_id || '.' || :n || ' again', headers => '{"h": "1"}');
COMMIT;
SQL
my ($output, $errors) = ('', '');
ok(
	IPC::Run::run(
		[ 'pgbench', '-n', '-c', '10', '-j', '2', '-t', '10', '-D', 'n=0', '-f', $serial, $node->connstr('postgres') ],
		'<', \undef, '>', \$output, '2>', \$errors),
	'100 SERIALIZABLE transactions that produce') or diag($output, $errors);
like($output, qr{number of transactions actually processed: 100/100}, '… all commit');
unlike($output, qr/number of failed transactions: [1-9]/, '… none fails to serialize');
sent('SELECT 1');
@records = map { $_->{payload} } consume('prod_serial');
my @wanted = map { my $client = $_; map { ("$client.$_", "$client.$_ again") } 1 .. 10 } 0 .. 9;
is_deeply([ sort @records ], [ sort @wanted ], '… each record arrives once');
is_deeply(
	[ grep { /again/ } map { $records[ 2 * $_ ] . ' again' eq $records[ 2 * $_ + 1 ] ? () : "$_: $records[2 * $_] again" } 0 .. 99 ],
	[], '… and transactions are not mixed');

#
# Messages that produce() has not written
#
is(rejected('prod'), 0, 'nothing was rejected so far');
my $log = -s $node->logfile;
sent(<<'SQL');
SELECT FROM pg_create_logical_replication_slot('prod_spy', 'test_decoding');
SELECT kafka.produce('prod_forged', 'genuine', 'k', '{"h": "1"}');
CREATE TABLE prod_stolen AS
SELECT substring(data FROM position('content:'::bytea IN data) + 8) AS message
FROM pg_logical_slot_get_binary_changes('prod_spy', NULL, NULL)
WHERE position('prefix: transactional_kafka'::bytea IN data) > 0;
SELECT pg_drop_replication_slot('prod_spy');
CREATE ROLE prod_forger;
GRANT SELECT ON prod_stolen TO prod_forger;
SQL
is(query($node, q(SELECT count(*), bool_and(position('prod_forged'::bytea IN message) > 0 AND
	position('genuine'::bytea IN message) > 0) FROM prod_stolen)), '1|t', 'a thief has the bytes of a genuine message');

my $rejected = 0;
foreach my $transactional ('true', 'false')
{
	foreach my $forged (q('hello'), q(''), q('\x01'::bytea), q((SELECT message FROM prod_stolen)),
		q((SELECT substring(message FOR length(message) - 1) FROM prod_stolen)),
		q((SELECT set_byte(message, length(message) - 1, 50) FROM prod_stolen)))
	{
		# with a transaction id, so that the commit flushes the other kind too
		sent("SET ROLE prod_forger; SELECT txid_current(), pg_logical_emit_message($transactional, 'transactional_kafka', $forged)");
		is(rejected('prod'), ++$rejected, "forged, transactional $transactional, $forged: counted");
	}
}
sent(q(SELECT pg_logical_emit_message(true, 'another', 'hello'), txid_current(), pg_logical_emit_message(false, 'another', 'hello')));
is(rejected('prod'), $rejected, 'a message of another prefix is none of our business');

# The signature is of no use in its own transaction either: not the same bytes again, nor with the next number, nor
# those of what a savepoint took back with another value.  Read from the WAL, from where it is on one page.
sent(<<'SQL');
CREATE FUNCTION prod_last_message(start pg_lsn, stop pg_lsn) RETURNS bytea LANGUAGE plpgsql AS $$
DECLARE
	prefix CONSTANT bytea := 'transactional_kafka'::bytea || '\x00';
	segment text;
	begins int;
	bytes bytea;
BEGIN
	PERFORM pg_switch_wal();	-- which flushes
	SELECT file_name, file_offset INTO segment, begins FROM pg_walfile_name_offset(start);
	IF begins / 8192 <> (begins + (stop - start)::int) / 8192 THEN
		RETURN NULL;
	END IF;
	bytes := pg_read_binary_file('pg_wal/' || segment, begins, (stop - start)::int);
	RETURN substring(bytes FROM position(prefix IN bytes) + length(prefix));
END $$;
CREATE PROCEDURE prod_forge() LANGUAGE plpgsql AS $$
DECLARE
	start pg_lsn;
	message bytea;
BEGIN
	LOOP
		start := pg_current_wal_insert_lsn();
		PERFORM kafka.produce('prod_forged', 'same transaction');
		message := prod_last_message(start, pg_current_wal_insert_lsn());
		EXIT WHEN message IS NOT NULL;
		ROLLBACK;
	END LOOP;
	-- the record is padded to 8 bytes
	message := substring(message FOR position('same transaction'::bytea IN message) + 15 + 2);
	PERFORM pg_logical_emit_message(true, 'transactional_kafka', message);
	PERFORM pg_logical_emit_message(true, 'transactional_kafka', set_byte(message, 20, get_byte(message, 20) + 1));
	PERFORM pg_logical_emit_message(false, 'transactional_kafka', message);
	PERFORM kafka.produce('prod_forged', 'goes on');
	PERFORM pg_logical_emit_message(true, 'transactional_kafka', message);
END $$;
CALL prod_forge();
SQL
is(rejected('prod'), $rejected += 4, 'repeated in its own transaction, as it is and with another number: counted');
is_deeply(payloads('prod_forged'), [ 'genuine', 'same transaction', 'goes on' ], 'no forged message is ever sent');
is(state($node, 'prod'), 'running', 'nor harms the pipeline');
cmp_ok(
	logged($node,
		qr/LOG:  pipeline "prod" ignored a message of transaction \d+ that kafka\.produce\(\) has not written\n.*DETAIL:  Such messages so far: \d+\./,
		$log),
	'>=', 1, 'it is logged');
cmp_ok(logged($node, qr/pipeline "prod" ignored a message/, $log), '<', $rejected, '… but not each time');

#
# Which pipeline
#
create_pipeline($node, 'prod_other', options => { envelope => 'plain', topic_partitions => 1, checkpoint_interval => '5ms' });
like(
	refusal(q(SELECT kafka.produce('prod_which', 'x'))),
	qr/this database has 2 pipelines.*HINT:  Name one/s, 'of two pipelines one must be named');
sent(<<'SQL');
BEGIN;
SELECT kafka.produce('prod_which', 'by prod', pipeline => 'prod');
SELECT kafka.produce('prod_which_other', 'by prod_other', headers => '{"h": "1"}', pipeline => 'prod_other');
SELECT kafka.produce('prod_which', 'by prod again', pipeline => 'prod');
SELECT kafka.produce('prod_which_other', 'by prod_other again', headers => '{"h": "2"}', pipeline => 'prod_other');
COMMIT;
SQL
is_deeply(payloads('prod_which'), [ 'by prod', 'by prod again' ], 'a message is sent by its pipeline only');
@records = consume('prod_which_other');
is_deeply([ map { $_->{payload} } @records ], [ 'by prod_other', 'by prod_other again' ], '… each by its own');
is_deeply(
	[ map { $_->{header_list} } @records ],
	[ [ h => '1' ], [ h => '2', 'pg.last' => 'true' ] ],
	'with metadata headers the last record of a transaction says so');
is(rejected('prod') . rejected('prod_other'), "${rejected}0", '… and the other pipeline\'s is nothing to reject');

# A pipeline whose slot is still waiting for an open transaction
my ($in, $out) = ("BEGIN;\nSELECT 'writes' FROM txid_current();\n", '');
my $writer = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr('postgres') ], '<', \$in, '>&', \$out);
wait_until { $writer->pump_nb; $out =~ /writes/ } 'an open transaction';
my $creation = background_sql($node, q(CALL kafka.create_pipeline('prod_late', 'kafka')));
wait_until { query($node, q(SELECT count(*) FROM kafka.live() JOIN kafka.pipeline USING (pipeline_id) WHERE name = 'prod_late')) eq '1' }
'the definition of prod_late';
like(
	refusal(q(SELECT kafka.produce('prod_late', 'x', pipeline => 'prod_late'))),
	qr/pipeline "prod_late" does not capture yet.*DETAIL:  Its replication slot is not there; the record would be lost/s,
	'before the slot is there a record would be lost: an error');
$in .= "COMMIT;\n\\q\n";
$writer->finish;
$creation->{run}->finish;
query($node, q(SELECT kafka.produce('prod_late', 'captured', pipeline => 'prod_late')));
is_deeply(payloads('prod_late', 1), ['captured'], '… and once it is, none is');
query($node, qq(CALL kafka.drop_pipeline('$_'))) foreach qw(prod_late prod_other);

#
# Topics and partitions that do not exist
#
query($node, q(SELECT kafka.alter_pipeline('prod', '{"create_topics": false}')));
query($node, q(BEGIN; SELECT kafka.produce('prod_callers', '11'); SELECT kafka.produce('prod_missing', '1'); COMMIT));
is_stopped($node, 'prod', 'failed', qr/topic "prod_missing" does not exist and create_topics is false/);
is(scalar @{ payloads('prod_callers') }, 9, 'nothing of the transaction is visible');
query($node, q(SELECT kafka.produce('prod_callers', '12')));
$node->psql('postgres', q(CALL kafka.resume('prod')));    # it may see the pipeline run before that comes by
is_stopped($node, 'prod', 'failed', qr/topic "prod_missing" does not exist/);
query($node, q(SELECT kafka.alter_pipeline('prod', '{"create_topics": null}')));
query($node, q(CALL kafka.resume('prod')));
is_deeply(payloads('prod_missing', 1), ['1'], 'with create_topics it goes on, and the topic is made');
is_deeply(
	payloads('prod_callers', 11),
	[ 1, 2, 3, 4, 5, 7, 9, 10, undef, 11, 12 ],
	'… with all that was produced meanwhile');

# Both a topic that the pipeline uses, and one that it has to make
foreach my $topic ('prod_tx', 'prod_new')
{
	my $before = @{ payloads('prod_stream') };
	my ($first, $second) = ($last + 1, $last + 2);

	$last = $second;
	query($node, <<"SQL");
BEGIN;
INSERT INTO prod_t VALUES ($first);
SELECT kafka.produce('$topic', 'nowhere', 'k', partition => 5);
INSERT INTO prod_t VALUES ($second);
COMMIT;
SQL
	is_stopped($node, 'prod', 'failed', qr{topic or partition missing while .*: topic "$topic".* partition 5});
	like(pipeline_field($node, 'prod', 'hint'), qr{Create it, then CALL kafka.resume}, '… the hint says what to do');
	is(scalar @{ payloads('prod_stream') }, $before, 'nothing of the transaction is visible');
	kafka_tool('TopicCommand', undef, '--alter', '--topic', $topic, '--partitions', 6);
	query($node, q(CALL kafka.resume('prod')));
	is_deeply([ map { $_->{payload} } grep { $_->{partition} == 5 } consume_until($topic, sub { grep { $_->{partition} == 5 } @_ }) ],
		['nowhere'], 'once there is a partition 5 it goes on');
	is(scalar @{ payloads('prod_stream', $before + 2) }, $before + 2, '… with the rows of that transaction');
}

#
# Another encoding; and the extension dropped and made again in the session that produces: with a new signing key
#
query($node, q(CREATE DATABASE prod_latin1 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0));
my $again = sub {
	my ($n) = @_;
	return <<"SQL";
CREATE EXTENSION transactional_kafka;
CREATE SERVER kafka FOREIGN DATA WRAPPER transactional_kafka OPTIONS ("bootstrap.servers" '${\ broker()}');
CALL kafka.create_pipeline('prod_again', 'kafka', options => '{"topic_partitions": 1}');
SELECT kafka.produce('prod_again', 'caf' || chr(233) || ' $n', chr(233), jsonb_build_object(chr(233), chr(233)));
SELECT kafka.wait_for(timeout => '60s');
SELECT 'rejected', rejected_messages FROM kafka.stat_pipelines;
SQL
};
is(
	query(
		$node,
		"SET client_min_messages = warning;\n" . $again->(1)
		  . "CALL kafka.drop_pipeline('prod_again');\nDROP EXTENSION transactional_kafka CASCADE;\n" . $again->(2),
		database => 'prod_latin1'),
	"\nt\nrejected|0\n\nt\nrejected|0",
	'DROP EXTENSION, CREATE EXTENSION: the same session goes on to produce');
@records = consume('prod_again');
is_deeply(
	[ map { [ $_->{key}, $_->{payload}, @{ $_->{header_list} } ] } @records ],
	[ map { [ "\x{e9}", "caf\x{e9} $_", "\x{e9}", "\x{e9}" ] } 1, 2 ],
	'… both records arrive, from LATIN1 as UTF-8');

done_testing();
