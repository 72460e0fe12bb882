# The life of the processes: launcher, workers, the server's start and stop, sticky states, several databases, changes
# of a running pipeline, an idle one.
use strict;
use warnings;

use IO::Socket::INET;
use IPC::Run ();
use Test::More;
use Time::HiRes qw(time);
use TransactionalKafka;

my $broker  = start_broker('own');
my $address = $broker->address;
my $node    = new_node('main');

# payloads of a topic, as rows come in the plain envelope
sub payloads
{
	my ($topic, $n, %o) = @_;
	return [ map { $_->{payload} } consume_until($topic, $n, broker => $address, %o) ];
}

sub stop_fast
{
	my ($name) = @_;
	my $begun = time;

	$node->stop('fast');
	my $took = time - $begun;
	cmp_ok($took, '<', 5, "$name: fast shutdown took " . sprintf('%.1f s', $took));
	return;
}

sub rows { return map { "{\"id\":$_}" } @_; }

#
# Pipelines of several databases start by themselves with the server.
#
query($node, 'CREATE DATABASE other');
foreach my $database ('postgres', 'other')
{
	query($node, 'CREATE TABLE t (id int PRIMARY KEY)', database => $database);
	create_server($node, broker => $address, database => $database);
}
create_pipeline($node, 'proc_shop', tables => ['t'], options => { envelope => 'plain' });
create_pipeline($node, 'proc_other', tables => ['t'], options => { envelope => 'plain' }, database => 'other');
is(query($node, q(SELECT string_agg(backend_type || ' in ' || coalesce(datname, 'no database'), ', ' ORDER BY backend_type)
	FROM pg_stat_activity WHERE backend_type LIKE 'transactional_kafka%')),
	'transactional_kafka launcher in no database, transactional_kafka pipeline proc_other in other, '
	  . 'transactional_kafka pipeline proc_shop in postgres',
	'processes have names');
$node->restart;
query($node, 'INSERT INTO t VALUES (1)');
query($node, 'INSERT INTO t VALUES (1)', database => 'other');
is_deeply(payloads('proc_shop.public.t', 1),  [ rows(1) ], 'a pipeline starts with the server');
is_deeply(payloads('proc_other.public.t', 1), [ rows(1) ], '… one of another database too');
is(query($node, 'SELECT pipeline FROM kafka.pipelines'), 'proc_shop', 'a database sees its own pipelines');
is(query($node, 'SELECT pipeline FROM kafka.stat_pipelines', database => 'other'), 'proc_other', '… each its own');

#
# The launcher
#
my $launcher = q(SELECT pid FROM pg_stat_activity WHERE backend_type = 'transactional_kafka launcher');
my $pid = query($node, $launcher);
query($node, "SELECT pg_terminate_backend($pid)");
wait_until { my $new = query($node, $launcher); $new ne '' && $new ne $pid } 'another launcher', 20;
pass('a terminated launcher comes back');
query($node, 'INSERT INTO t VALUES (2)');
is_deeply(payloads('proc_shop.public.t', 2), [ rows(1, 2) ], '… pipelines go on meanwhile');
my $worker = terminate_worker($node, 'proc_shop');
query($node, 'INSERT INTO t VALUES (3)');
is_deeply(payloads('proc_shop.public.t', 3), [ rows(1 .. 3) ], '… and it starts a worker that was terminated');
isnt(worker_pid($node, 'proc_shop'), $worker, '… as another process');
is(query($node, q(SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'transactional_kafka pipeline%')), 2,
	'no pipeline runs twice');

#
# Changes of a running pipeline are in force for what commits after them, and nothing is lost or twice.
#
create_pipeline($node, 'proc_change', tables => ['t'], options => { envelope => 'plain' });
my $id = 1000;
foreach my $envelope ('debezium', 'plain', 'debezium')
{
	query($node, "INSERT INTO t SELECT generate_series($id, $id + 99)");
	query($node, "SELECT kafka.wait_for(pipeline => 'proc_change', timeout => '30s')");
	query($node, "SELECT kafka.alter_pipeline('proc_change', '{\"envelope\": \"$envelope\"}')");
	wait_until { query($node, q(SELECT pid IS NOT NULL AND state = 'running' FROM kafka.stat_pipelines WHERE pipeline = 'proc_change')) eq 't' }
	'the pipeline runs', 20;
	$id += 100;
}
query($node, "INSERT INTO t SELECT generate_series($id, $id + 99)");
is_deeply([ map { s/.*?"id":(\d+).*/$1/r } @{ payloads('proc_change.public.t', 400) } ], [ 1000 .. $id + 99 ],
	'options of a running pipeline change without loss');
my @shapes;
foreach my $i (1 .. 8)
{
	my $envelope = $i % 2 ? 'debezium' : 'plain';
	query($node, "SELECT kafka.alter_pipeline('proc_change', '{\"envelope\": \"$envelope\"}')");
	query($node, "INSERT INTO t VALUES (2000 + $i)");
	query($node, "SELECT kafka.wait_for(pipeline => 'proc_change', timeout => '30s')");
	push @shapes, $envelope;
}
is_deeply([ map { /"op":"c"/ ? 'debezium' : 'plain' } map { $_->{payload} }
	grep { $_->{payload} =~ /"id":200[1-8]\b/ } consume('proc_change.public.t', broker => $address) ],
	\@shapes, '… and are in force for the very next transaction');

# Likewise with a pause around the change.
query($node, "CALL kafka.pause('proc_change')");
query($node, q(SELECT kafka.alter_pipeline('proc_change', '{"envelope": "plain"}')));
is(worker_pid($node, 'proc_change'), undef, 'a paused pipeline has no process');
query($node, 'INSERT INTO t VALUES (5000)');
query($node, "CALL kafka.resume('proc_change')");
query($node, q(SELECT kafka.wait_for(pipeline => 'proc_change', timeout => '30s')));
is((consume('proc_change.public.t', broker => $address))[-1]->{payload}, '{"id":5000}', 'a change while it is paused');
query($node, "CALL kafka.drop_pipeline('proc_change')");

#
# An idle pipeline lets WAL go that others write, and writes nothing itself.
#
query($node, 'CREATE TABLE foreign_wal (id int, filler text)');
my $positions = sub {
	return query($node, q(SELECT restart_lsn - '0/0', confirmed_flush_lsn - '0/0'
		FROM pg_replication_slots JOIN kafka.pipelines USING (slot_name) WHERE pipeline = 'proc_shop'));
};
query($node, q(SELECT kafka.wait_for(pipeline => 'proc_shop', timeout => '30s')));
wait_until { query($node, q(SELECT count(*) FROM kafka.checkpoint WHERE state = 'prepared')) eq '0' } 'the last checkpoint is marked', 20;
my $checkpoints = query($node, q(SELECT count(*), max(checkpoint_id) FROM kafka.checkpoints WHERE pipeline = 'proc_shop'));
my $tuples = q(SELECT md5(string_agg(row, ' ' ORDER BY row)) FROM
	(SELECT concat(xmin, ctid) AS row FROM kafka.checkpoint
	 UNION ALL SELECT concat(xmin, ctid) FROM kafka.pipeline_state) AS versions);
query($node, 'CHECKPOINT');
my $written = query($node, $tuples);
my ($restart, $confirmed) = split /\|/, $positions->();
my $goal = $restart + 3 * 16 * 1024 * 1024;
wait_until {
	query($node, q(INSERT INTO foreign_wal SELECT i, repeat('x', 500) FROM generate_series(1, 5000) i; CHECKPOINT));
	my ($r, $c) = split /\|/, $positions->();
	$r > $goal && $c >= $r;
}
'restart_lsn and confirmed_flush_lsn of the idle pipeline follow', 60;
pass('the slot of an idle pipeline follows the WAL of others');
is(query($node, q(SELECT kafka.wait_for(pipeline => 'proc_shop', timeout => '30s'))), 't', '… and what it covers too');
is(query($node, q(SELECT count(*), max(checkpoint_id) FROM kafka.checkpoints WHERE pipeline = 'proc_shop')), $checkpoints,
	'… without a checkpoint');
is(query($node, $tuples), $written, '… and without a write');

#
# Two pipelines: the cluster of one is unreachable, the other one's lag stays small.
#
my $closed = IO::Socket::INET->new(LocalAddr => '127.0.0.1', Listen => 1) or die "no port: $!";
my $nowhere = '127.0.0.1:' . $closed->sockport;
close $closed;
create_server($node, name => 'nowhere', broker => $nowhere);
create_pipeline($node, 'proc_cut_off', tables => ['t'], server => 'nowhere');
my $slowest = 0;
foreach my $i (10000 .. 10040)
{
	my $begun = time;

	query($node, "INSERT INTO t VALUES ($i); SELECT kafka.wait_for(pipeline => 'proc_shop', timeout => '30s')");
	$slowest = time - $begun if time - $begun > $slowest;
}
cmp_ok($slowest, '<', 1, sprintf 'beside a pipeline that is cut off, the slowest commit was in Kafka after %.2f s', $slowest);
is(state($node, 'proc_cut_off') =~ /^(retrying|starting)$/ ? 1 : 0, 1, '… which is still cut off');
cmp_ok(query($node, q(SELECT lag_bytes FROM kafka.stat_pipelines WHERE pipeline = 'proc_cut_off')), '>', 0, '… with a lag that is shown');

#
# Sticky states outlive the server and end by resume.
#
query($node, 'CREATE TABLE sticky (id int PRIMARY KEY)');
eval { create_pipeline($node, 'proc_sticky', tables => ['sticky'], options => { envelope => 'plain', create_topics => \0 }) };
like($@, qr/has stopped \(failed\)/, 'a pipeline in a sticky state');
my $sticky = query($node, q(SELECT state, reason, hint FROM kafka.pipelines WHERE pipeline = 'proc_sticky'));
like($sticky, qr/^failed\|topic .* does not exist.*\|.*resume/, 'state, reason and hint');
query($node, 'INSERT INTO sticky VALUES (1)');
stop_fast('a cut off and a failed pipeline');
$node->start;
query($node, q(SELECT kafka.wait_for(pipeline => 'proc_shop', timeout => '30s')));
is(query($node, q(SELECT state, reason, hint FROM kafka.pipelines WHERE pipeline = 'proc_sticky')), $sticky, 'they outlive a restart of the server');
is(worker_pid($node, 'proc_sticky'), undef, '… without a process');
query($node, q(SELECT kafka.alter_pipeline('proc_sticky', '{"create_topics": null}')));
query($node, q(CALL kafka.resume('proc_sticky')));
is_deeply(payloads('proc_sticky.public.sticky', 1), [ rows(1) ], 'resume ends it, nothing is lost');
is(query($node, q(SELECT state, reason, hint FROM kafka.pipelines WHERE pipeline = 'proc_sticky')), 'running||', '… and the reason is gone');
query($node, "CALL kafka.drop_pipeline('$_')") foreach 'proc_sticky', 'proc_cut_off';

#
# Fast shutdown, whatever Kafka does
#
# The broker hangs with a transaction open and data in flight …
query($node, 'INSERT INTO t VALUES (20000)');
query($node, q(SELECT kafka.wait_for(pipeline => 'proc_shop', timeout => '30s')));
$broker->suspend;
query($node, 'INSERT INTO t SELECT generate_series(20001, 25000)');
wait_until { query($node, q(SELECT read_lsn >= pg_current_wal_flush_lsn() OR lag_bytes > 0 FROM kafka.stat_pipelines WHERE pipeline = 'proc_shop')) eq 't' }
'the worker has the data';
my $cover = query($node, q(SELECT kafka.wait_for(pipeline => 'proc_shop', timeout => '300ms')));
is($cover, 'f', 'data is in flight to a broker that hangs');
stop_fast('the broker hangs');
# … hangs at the start …
$node->start;
wait_until { worker_pid($node, 'proc_shop') } 'a worker';
stop_fast('the broker hangs at the start');
$broker->resume;
$node->start;
my @shop = map { value($_)->{id} } consume_until('proc_shop.public.t', sub { grep { defined $_->{payload} && $_->{payload} eq '{"id":25000}' } @_ }, broker => $address, timeout => 60);
is_deeply([ grep { $_ >= 20000 } @shop ], [ 20000 .. 25000 ], 'all that was in flight arrives exactly once');
# … is gone, with data in flight …
$broker->kill9;
query($node, 'INSERT INTO t SELECT generate_series(30000, 30999)');
is(query($node, q(SELECT kafka.wait_for(pipeline => 'proc_shop', timeout => '300ms'))), 'f', 'data for a broker that is gone');
stop_fast('the broker is gone');
# … and is gone while create_pipeline waits for it, or for a transaction to end.
$node->start;
my $writer = $node->background_psql('postgres', on_error_die => 0);
$writer->query('BEGIN; INSERT INTO t VALUES (40000)');
my ($in, $out) = ("CALL kafka.create_pipeline('proc_wait', 'kafka', tables => '{t}');\n\\q\n", '');
my $waiting = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr('postgres') ], '<', \$in, '>&', \$out);
wait_until { $waiting->pump_nb; $out =~ /waits for transaction/ } 'create_pipeline waits for the transaction';
stop_fast('create_pipeline waits');
eval { $waiting->finish };
like($out, qr/terminating connection due to administrator command/, 'its session ends with the server');
eval { $writer->quit };
$broker->start;
$node->start;
is(query($node, q(SELECT enabled FROM kafka.pipelines WHERE pipeline = 'proc_wait')), 't', '… its definition stays');
wait_for_state($node, 'proc_wait', 'running', 60);
query($node, 'INSERT INTO t VALUES (50000)');
is_deeply([ map { value($_)->{after}->{id} } consume_until('proc_wait.public.t', 1, broker => $address, timeout => 60) ], [50000],
	'… and starts with the server');
@shop = map { value($_)->{id} } consume_until('proc_shop.public.t', sub { grep { defined $_->{payload} && $_->{payload} eq '{"id":50000}' } @_ }, broker => $address, timeout => 60);
is_deeply([ grep { $_ >= 30000 } @shop ], [ 30000 .. 30999, 50000 ], 'after all that each row is in Kafka once');

#
# Leaving: DROP DATABASE works once the pipelines are dropped.
#
isnt($node->psql('postgres', 'DROP DATABASE other'), 0, 'DROP DATABASE is refused while a pipeline has its slot there');
query($node, q(CALL kafka.drop_pipeline('proc_other')), database => 'other');
query($node, 'DROP DATABASE other');
is(query($node, q(SELECT count(*) FROM pg_replication_slots WHERE database = 'other')), 0, 'DROP DATABASE after drop_pipeline');
query($node, "CALL kafka.drop_pipeline('$_')") foreach 'proc_shop', 'proc_wait';
is(query($node, q(SELECT count(*) FROM pg_replication_slots)), 0, 'no slot is left');
$node->stop;
my $log = PostgreSQL::Test::Utils::slurp_file($node->logfile);
unlike($log, qr/PANIC|was terminated by signal/, 'no process of the server has crashed');

done_testing();
