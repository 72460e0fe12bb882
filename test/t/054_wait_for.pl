# kafka.wait_for(): read your own writes, with many who wait, and with a pipeline that can't.
use strict;
use warnings;

use IPC::Run ();
use Test::More;
use TransactionalKafka;

my $node = new_node('main', "max_connections = 140\n");
my $broker = start_broker('waiting');
create_server($node, broker => $broker->address);
query($node, 'CREATE TABLE wait_t (id int PRIMARY KEY)');
create_pipeline($node, 'waiting', tables => ['wait_t'],
	options => { envelope => 'plain', topic_partitions => 1, checkpoint_interval => '5ms', metadata_headers => 'false' });

sub payloads
{
	my ($topic) = @_;
	return [ map { $_->{payload} } consume($topic, broker => $broker->address) ];
}

sub refusal
{
	my ($sql) = @_;
	my $errors = '';

	isnt($node->psql('postgres', $sql, stderr => \$errors), 0, "an error: $sql");
	return $errors;
}

sub waits
{
	return query($node, q(SELECT count(*) FROM pg_stat_activity WHERE query ~ 'wait_for' AND wait_event_type = 'Extension'));
}

#
# 100 sessions that commit and wait
#
my $script = "$PostgreSQL::Test::Utils::tmp_check/wait_for.pgbench";
PostgreSQL::Test::Utils::append_to_file($script, <<'SQL');
\set n :n + 1
BEGIN;
SELECT kafka.produce('wait_load', :client_id || '.' || :n);
COMMIT;
SELECT 1 / kafka.wait_for(timeout => '120s')::int;
SQL
my ($output, $errors) = ('', '');
my $load = IPC::Run::start([ 'pgbench', '-n', '-c', '100', '-j', '2', '-t', '20', '-D', 'n=0', '-f', $script, $node->connstr('postgres') ],
	'<', \undef, '>', \$output, '2>', \$errors);

# Meanwhile another one looks at what it has written, right after wait_for() said so.
foreach my $n (1 .. 5)
{
	is(query($node, "INSERT INTO wait_t VALUES ($n); SELECT kafka.wait_for(timeout => '120s')"), 't', "row $n is in Kafka");
	is_deeply(payloads('waiting.public.wait_t'), [ map { "{\"id\":$_}" } 1 .. $n ], '… where a consumer finds it at once');
}
ok($load->finish, '100 sessions commit and wait, 20 times each') or diag($output, $errors);
like($output, qr{actually processed: 2000/2000}, '… none in vain');
my @wanted = sort map { my $client = $_; map { "$client.$_" } 1 .. 20 } 0 .. 99;
is_deeply([ sort @{ payloads('wait_load') } ], \@wanted, '… each record is there once');

# A pool: who waits is not who committed
is(query($node, q(SELECT kafka.produce('wait_pool', '1'))), '', 'one session commits');
is(query($node, q(SELECT kafka.wait_for(timeout => '60s'))), 't', '… another one waits');
is_deeply(payloads('wait_pool'), ['1'], '… for that too');
my $position = query($node, q(SELECT kafka.produce('wait_pool', '2'); SELECT pg_current_wal_insert_lsn())) =~ s/\s//gr;
is(query($node, qq(SELECT kafka.wait_for('$position', 'waiting', '60s'))), 't', '… or for a position it was told');
is_deeply(payloads('wait_pool'), [ 1, 2 ], '… which covers it');
is(query($node, q(SELECT kafka.wait_for('FFFFFFF/0', timeout => '10ms'))), 'f', 'a position that is still to come: the timeout');

#
# Kafka does not answer
#
$broker->suspend;
is(query($node, q(SELECT kafka.produce('wait_down', '1'); SELECT kafka.wait_for(timeout => '100ms'))) =~ s/\s//gr, 'f', 'false at the timeout');
is(query($node, q(SELECT kafka.wait_for(timeout => '0'))), 'f', '… of nothing too');
is(query($node, q(SELECT kafka.wait_for(timeout => '-1 day'))), 'f', '… or less');
like(refusal(q(SET statement_timeout = '100ms'; SELECT kafka.wait_for())), qr/canceling statement due to statement timeout/,
	'statement_timeout ends it');
my @calls = map { background_sql($node, "SELECT kafka.wait_for(timeout => '300s')") } 1 .. 10;
my $never = background_sql($node, q(SELECT kafka.wait_for(pipeline => 'waiting') AS never));
wait_until { waits() eq '11' } 'eleven who wait';
query($node, q(SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query ~ 'AS never' AND pid <> pg_backend_pid()));
$never->{run}->finish;
like($never->{errors}, qr/canceling statement due to user request/, 'cancel ends it');
is(waits(), '10', '… the others go on');

# … they wait through the end of the worker, and of the outage
my $old = terminate_worker($node, 'waiting');
wait_until { (worker_pid($node, 'waiting') || $old) ne $old } 'the next worker';
is(waits(), '10', 'who waits does so through the end of the worker');
$broker->resume;
$_->{run}->finish foreach @calls;
is(join('', map { $_->{output} . $_->{errors} } @calls), "t\n" x 10, '… until it is in Kafka');
is_deeply(payloads('wait_down'), ['1'], '… where it is once');

#
# Paused, sticky, dropped: before the call, and while somebody waits
#
wait_for_state($node, 'waiting', 'running');
query($node, 'CREATE ROLE wait_other');
my $future = q(SELECT kafka.wait_for('FFFFFFF/0'));
@calls = map { background_sql($node, $_) } ($future) x 3, "SET ROLE wait_other; $future";
wait_until { waits() eq '4' } 'four who wait';
query($node, q(CALL kafka.pause('waiting')));
$_->{run}->finish foreach @calls;
like($_->{errors}, qr/pipeline "waiting" does not run\n.*DETAIL:  It is paused.*HINT:  CALL kafka.resume\('waiting'\)/s, 'a pause ends it')
  foreach @calls;
like(refusal(q(SELECT kafka.wait_for())), qr/pipeline "waiting" does not run.*HINT:  CALL kafka.resume/s, 'paused: an error at once, with a hint');
query($node, q(CALL kafka.resume('waiting')));

query($node, q(SELECT kafka.alter_pipeline('waiting', '{"create_topics": false}')));
wait_for_state($node, 'waiting', 'running');
@calls = map { background_sql($node, $_) } ($future) x 3, "SET ROLE wait_other; $future";
wait_until { waits() eq '4' } 'four who wait';
query($node, q(SELECT kafka.produce('wait_missing', 'the key is a secret')));
$_->{run}->finish foreach @calls;
my $owner = shift @calls;
like($owner->{errors}, qr/pipeline "waiting" has stopped \(failed\): .*topic "wait_missing" does not exist.*HINT:  .*kafka.resume/s,
	'a sticky state ends it, with its reason and hint');
is($_->{errors}, $owner->{errors}, '… likewise') foreach @calls[ 0, 1 ];
like($calls[2]->{errors}, qr/pipeline "waiting" has stopped \(failed\)$/m, '… without the reason for who may not see it');
unlike($calls[2]->{errors}, qr/wait_missing/, '… not a word of it');
like(refusal(q(SELECT kafka.wait_for())), qr/pipeline "waiting" has stopped \(failed\): .*wait_missing.*HINT/s, 'sticky: an error at once');
query($node, q(SELECT kafka.alter_pipeline('waiting', '{"create_topics": null}')));
query($node, q(CALL kafka.resume('waiting')));
is(query($node, q(SELECT kafka.wait_for(timeout => '60s'))), 't', 'after a resume it works again');

my $call = background_sql($node, $future);
wait_until { waits() eq '1' } 'one who waits';
query($node, q(CALL kafka.drop_pipeline('waiting')));
$call->{run}->finish;
like($call->{errors}, qr/pipeline "waiting" (was dropped|does not run)/, 'its drop ends it');
is(query($node, 'SELECT kafka.wait_for()'), 't', 'without a pipeline there is nothing to wait for');

# In a transaction that has written it would wait for itself.
create_pipeline($node, 'waiting_again', options => { topic_partitions => 1 });
like(
	refusal(q(BEGIN; SELECT kafka.produce('wait_x', '1'); SELECT kafka.wait_for())),
	qr/wait_for\(\) cannot run in a transaction that has written.*HINT:  COMMIT first/s,
	'before the COMMIT of what it would wait for');

# The extension goes beneath somebody who waits, and comes again.
$call = background_sql($node, $future);
wait_until { waits() eq '1' } 'one who waits';
query($node, 'SET client_min_messages = warning; DROP EXTENSION transactional_kafka CASCADE; CREATE EXTENSION transactional_kafka');
$call->{run}->finish;
like($call->{errors}, qr/pipeline "waiting_again" (was dropped|does not run)/, 'DROP EXTENSION ends it');

done_testing();
