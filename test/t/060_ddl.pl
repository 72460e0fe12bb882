# DDL around pipelines: nothing that one needs is dropped beneath it, nothing of one stays behind, no slot of a live
# one is taken for an orphan.
use strict;
use warnings;

use Test::More;
use TransactionalKafka;

use PostgreSQL::Test::Utils;

my $node = new_node('main');
create_server($node, name => 'events');
query($node, 'CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY); CREATE PUBLICATION theirs FOR TABLE u');
create_pipeline($node, 'ddl_own', server => 'events', tables => ['t']);
create_pipeline($node, 'ddl_pub', server => 'events', publication => 'theirs');

sub slots { return query($node, q(SELECT string_agg(slot_name, ' ' ORDER BY slot_name) FROM pg_replication_slots)); }

#
# What a pipeline uses
#
my ($id) = split /\|/, query($node, q(SELECT pipeline_id FROM kafka.pipeline WHERE name = 'ddl_own'));
fails_with($node, 'DROP SERVER events', qr/cannot drop server events because pipeline "ddl_.*" uses it.*HINT:  CALL kafka.drop_pipeline/s,
	'a server in use is not dropped');
fails_with($node, 'DROP SERVER events CASCADE', qr/because pipeline/, 'nor by CASCADE');
fails_with($node, 'DROP PUBLICATION theirs', qr/cannot drop publication theirs because pipeline "ddl_pub" uses it/,
	'a publication in use is not dropped');
fails_with($node, "DROP PUBLICATION tk_${id}_insert", qr/because pipeline "ddl_own" uses it/, 'nor one of the pipeline\'s own');
fails_with($node, 'ALTER PUBLICATION theirs RENAME TO others', qr/cannot rename publication "theirs".*by the publication's name at that time/s,
	'a publication in use is not renamed');
query($node, 'ALTER SERVER events RENAME TO cluster');
is(pipeline_field($node, 'ddl_own', 'server'), 'cluster', 'a renamed server is followed');
query($node, 'INSERT INTO t VALUES (1); INSERT INTO u VALUES (1)');
is(query($node, q(SELECT kafka.wait_for(timeout => '30s'))), 't', '… and the pipelines go on');
terminate_worker($node, 'ddl_own');
wait_for_state($node, 'ddl_own', 'running');
query($node, 'ALTER TABLE t RENAME TO t2; INSERT INTO t2 VALUES (2)');
is_deeply([ values_of('after.id', consume_until('ddl_own.public.t2', 1)) ], [2], 'a renamed table goes to its new topic');

#
# A dropped table
#
query($node, q(SELECT kafka.set_table('ddl_own', 't2', '{"topic": "ddl_given"}')));
wait_for_state($node, 'ddl_own', 'running');
query($node, q(CALL kafka.pause('ddl_own')));
query($node, 'INSERT INTO t2 VALUES (3); DROP TABLE t2');
query($node, q(CALL kafka.resume('ddl_own')));
is_deeply([ values_of('after.id', consume_until('ddl_given', 1)) ], [3], 'rows from before a DROP TABLE go where its settings say');
is(query($node, "SELECT count(*) FROM kafka.pipeline_table WHERE pipeline_id = $id"), 1, '… for which the settings stay');
query($node, q(SELECT kafka.checkpoint('ddl_own')));
query($node, q(CALL kafka.pause('ddl_own')));
query($node, q(CALL kafka.resume('ddl_own')));
is(query($node, "SELECT count(*) FROM kafka.pipeline_table WHERE pipeline_id = $id"), 0, '… and go at the start after that');

#
# The checkpoint table
#
query($node, 'CREATE INDEX plain ON kafka.checkpoint (end_lsn); REINDEX TABLE CONCURRENTLY kafka.checkpoint; VACUUM FULL kafka.checkpoint');
query($node, 'INSERT INTO u VALUES (2)');
is(query($node, q(SELECT kafka.wait_for(pipeline => 'ddl_pub', timeout => '30s'))), 't', 'an index more, REINDEX and VACUUM FULL are no harm');
is(query($node, q(SET enable_seqscan = off; SELECT count(*) FROM kafka.checkpoint WHERE end_lsn > '0/0')),
	query($node, 'SET enable_indexscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM kafka.checkpoint'),
	'… and the index is kept up');
foreach my $case (['CREATE INDEX odd ON kafka.checkpoint ((attempt + 1))', qr/index "odd" of table kafka.checkpoint/, 'DROP INDEX kafka.odd'],
	['ALTER TABLE kafka.checkpoint ADD more text', qr/does not have the columns/, undef])
{
	my ($break, $reason, $mend) = @$case;

	query($node, $break);
	query($node, 'INSERT INTO u SELECT max(id) + 1 FROM u');
	wait_for_state($node, 'ddl_pub', 'failed');
	like(pipeline_field($node, 'ddl_pub', 'reason'), $reason, "$break: the pipeline stops and says so");
	next unless $mend;
	query($node, $mend);
	query($node, q(CALL kafka.resume('ddl_pub')));
	is(query($node, q(SELECT kafka.wait_for(pipeline => 'ddl_pub', timeout => '30s'))), 't', "… and goes on after $mend");
}

#
# The extension
#
my $before = slots();
like($before, qr/^tk_\d+_\d+ tk_\d+_\d+$/, 'each pipeline has a slot');
query($node, 'DROP EXTENSION transactional_kafka CASCADE');
wait_until { slots() eq '' } 'the slots to go with the extension', 30;
pass('DROP EXTENSION takes slots along');
is(query($node, 'SELECT count(*) FROM pg_publication WHERE pubname ~ $$^tk_$$'), 0, '… and publications of pipelines');
wait_until { query($node, q(SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'transactional_kafka pipeline%')) eq '0' }
'the workers to end', 20;
pass('… and workers');
query($node, 'CREATE EXTENSION transactional_kafka');
create_server($node, name => 'events');
query($node, 'CREATE TABLE t (id int PRIMARY KEY)');
create_pipeline($node, 'ddl_anew', server => 'events', tables => ['t']);
query($node, 'INSERT INTO t VALUES (1)');
is(query($node, q(SELECT kafka.wait_for(timeout => '30s'))), 't', 'a pipeline of the extension that was created anew runs');

#
# Slots that belong to nobody
#
my $database = query($node, 'SELECT oid FROM pg_database WHERE datname = current_database()');
query($node, q(CALL kafka.pause('ddl_anew')));
query($node, "SELECT pg_create_logical_replication_slot('tk_${database}_$_', 'pgoutput') FROM generate_series(1, 1)") foreach (9998, 9999);
query($node, "SELECT pg_create_logical_replication_slot('tk_${database}_9997', 'test_decoding')");
query($node, "SELECT pg_create_logical_replication_slot('tk_${database}_09996', 'pgoutput')");
query($node, "SELECT pg_create_logical_replication_slot('tk_1_9995', 'pgoutput')");
my $own = query($node, q(SELECT slot_name FROM kafka.pipelines));
$node->restart;
wait_until { slots() !~ /_9999/ && slots() !~ /_9998/ } 'orphaned slots to be dropped', 30;
is(slots(), join(' ', sort("tk_${database}_9997", "tk_${database}_09996", 'tk_1_9995', $own)),
	'slots without a definition are dropped; others, and that of a paused pipeline, stay');

#
# Other databases
#
query($node, q(CALL kafka.resume('ddl_anew')));
query($node, q(SELECT kafka.wait_for(timeout => '30s')));
my $uuid = pipeline_field($node, 'ddl_anew', 'uuid');
query($node, q(CALL kafka.pause('ddl_anew')));
query($node, 'CREATE DATABASE clone TEMPLATE postgres');
is($node->safe_psql('clone', q(SELECT state FROM kafka.pipelines)), 'stopped', 'a clone by TEMPLATE does not start');
$node->safe_psql('clone', q(CALL kafka.resume('ddl_anew')));
is($node->safe_psql('clone', q(SELECT state FROM kafka.pipelines)), 'running', '… until somebody resumes it');
isnt($node->safe_psql('clone', q(SELECT uuid FROM kafka.pipelines)), $uuid, '… as another pipeline');
$node->safe_psql('clone', 'INSERT INTO t VALUES (77)');
is($node->safe_psql('clone', q(SELECT kafka.wait_for(timeout => '30s'))), 't', '… that works');

my $dump = "$PostgreSQL::Test::Utils::tmp_check/ddl.dump";
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, '-d', $node->connstr('postgres') ], 'pg_dump');
query($node, 'CREATE DATABASE restored');
$node->command_ok([ 'pg_restore', '-d', $node->connstr('restored'), $dump ], 'pg_restore');
is($node->safe_psql('restored', q(SELECT pipeline || ' ' || state || ' ' || tables::text FROM kafka.pipelines)), 'ddl_anew stopped {t}',
	'a restored definition is there and does not start');
$node->safe_psql('restored', q(CALL kafka.resume('ddl_anew')));
$node->safe_psql('restored', 'INSERT INTO t VALUES (78)');
is($node->safe_psql('restored', q(SELECT kafka.wait_for(timeout => '30s'))), 't', '… until somebody resumes it');
$node->safe_psql('restored', q(CALL kafka.pause('ddl_anew')));
query($node, 'DROP DATABASE restored');
is(query($node, q(SELECT count(*) FROM pg_replication_slots WHERE database = 'restored')), 0,
	'DROP DATABASE with a paused pipeline takes its slot along');
$node->safe_psql('clone', q(CALL kafka.drop_pipeline('ddl_anew')));
query($node, 'DROP DATABASE clone');
query($node, q(CALL kafka.drop_pipeline('ddl_anew')));

done_testing();
