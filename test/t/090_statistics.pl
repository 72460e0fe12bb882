# kafka.stat_pipelines, kafka.stat_checkpoints and kafka.stat_progress_checkpoints: what they say is what was done, is the
# same after the process was restarted, and begins anew where it should.
use strict;
use warnings;

use List::Util qw(sum0);
use Test::More;
use TransactionalKafka;

# It ends transactions that are over their time soon.
my $broker = start_broker('own', 'transaction.abort.timed.out.transaction.cleanup.interval.ms=1000');
my $node   = new_node('main', "track_commit_timestamp = on\n");
create_server($node, broker => $broker->address);

sub pipelines   { return query($node, "SELECT $_[0] FROM kafka.stat_pipelines WHERE pipeline = 'stats'"); }
sub checkpoints { return query($node, "SELECT $_[0] FROM kafka.stat_checkpoints WHERE pipeline = 'stats'"); }
sub progress    { return query($node, "SELECT $_[0] FROM kafka.stat_progress_checkpoints WHERE pipeline = 'stats' ORDER BY checkpoint_id"); }
sub reset_all   { query($node, q{SELECT kafka.stat_reset('stats')}); return; }

# A row says which transaction wrote it, and all rows are of one length in Kafka.
my $next = 1000;

sub commit_rows
{
	my ($rows) = @_;
	my $first = $next;

	$next += $rows;
	return query($node, "INSERT INTO stats SELECT generate_series($first, $next - 1)");
}

# So many rows, in one checkpoint of their own.
sub send_rows
{
	commit_rows(@_);
	query($node, q{SELECT kafka.checkpoint('stats')});
	return;
}

# triggered = completed + failed + in progress, where nothing failed before its trigger
sub adds_up
{
	my ($what) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	return is(checkpoints('triggered - completed - failed - in_progress'), 0, "$what: every triggered checkpoint is accounted for");
}

query($node, 'CREATE TABLE stats (id int PRIMARY KEY)');
create_pipeline($node, 'stats', tables => ['stats'], options => { envelope => 'plain' });

subtest 'a pipeline that has sent nothing yet' => sub {
	is(checkpoints('triggered, in_progress, completed, failed, consecutive_failures, redriven, already_committed, replayed, alarms, pool_waits'),
		'0|0|0|0|0|0|0|0|0|0', 'all counters are 0');
	is(checkpoints('duration_ms_min, duration_ms_avg, duration_ms_p50, records_p99, bytes_max, last_completed_id, last_failed_id, last_failed_reason'),
		'|||||||', 'what there was none of is null');
	is(checkpoints('restored, last_restored_id, last_restored_outcome'), '1|0|', 'its first start went on from nothing');
	is(pipelines('checkpoints, transactions, records, bytes, transactions_per_second, queued_records, last_error'), '0|0|0|0|0|0|',
		'… nor has it failed');
	is(progress('1'), '', 'nothing is under way');
	wait_until { pipelines('waits_for') eq 'KafkaIdle' } 'an idle worker to say so';
	wait_until { pipelines('lag_bytes, lag_time') eq '0|00:00:00' } 'an idle pipeline without lag';
};

subtest 'sizes and times of checkpoints' => sub {
	reset_all();
	send_rows($_) foreach reverse 1 .. 20;

	is(checkpoints('triggered, in_progress, completed, failed'), '20|0|20|0', 'as many as there were');
	is(checkpoints('records_min, records_avg, records_p50, records_p95, records_p99, records_max'), '1|10.5|10|19|20|20',
		'records of a checkpoint: 1 to 20');

	my @records = grep { $_->{key} =~ /^\{"id":\d{4}\}$/ } consume_until('stats.public.stats', 210, broker => $broker->address);
	my $each    = length($records[0]{key}) + length($records[0]{payload});
	is(scalar(@records), 210, 'in Kafka');
	is_deeply([ grep { length($_->{key}) + length($_->{payload}) != $each } @records ], [], '… each of the same size');
	is(checkpoints('bytes_min, bytes_avg, bytes_max'), join('|', $each, 10.5 * $each, 20 * $each), 'bytes are those of keys and values, exactly');
	foreach my $case ([ 50, 10 ], [ 95, 19 ], [ 99, 20 ])
	{
		my ($percent, $rows) = @$case;
		my $found = checkpoints("bytes_p$percent");

		cmp_ok(abs($found - $rows * $each), '<=', 0.032 * $rows * $each, "p$percent of the bytes, $found, is within the stated 3.2 % of " . $rows * $each);
	}
	is(pipelines('checkpoints, transactions, records, bytes'), join('|', 20, 20, 210, 210 * $each), 'stat_pipelines has their sums');

	foreach my $what (qw(duration flush postgres_commit kafka_commit))
	{
		is(checkpoints("${what}_ms_min > 0 AND ${what}_ms_min <= ${what}_ms_p50 AND ${what}_ms_p50 <= ${what}_ms_p95 AND "
				  . "${what}_ms_p95 <= ${what}_ms_p99 AND ${what}_ms_p99 <= ${what}_ms_max AND ${what}_ms_avg BETWEEN ${what}_ms_min AND ${what}_ms_max"),
			't', "$what: in the order that they must be in");
	}
	is(checkpoints('round((flush_ms_avg + postgres_commit_ms_avg + kafka_commit_ms_avg - duration_ms_avg)::numeric, 3)'), '0.000',
		'the parts are the whole');
	is(query($node, <<'SQL'), 't', 'the times are those of kafka.checkpoints, in milliseconds');
SELECT abs(s.last_completed_flush_ms + s.last_completed_postgres_commit_ms + s.last_completed_kafka_commit_ms
		- s.last_completed_duration_ms) < 0.001
	AND s.last_completed_flush_ms <= 1000 * extract(epoch FROM c.prepared_at - c.triggered_at) + 1
	AND s.last_completed_duration_ms <= 1000 * extract(epoch FROM s.last_completed_at - c.triggered_at) + 1
FROM kafka.stat_checkpoints s JOIN kafka.checkpoints c ON c.checkpoint_id = s.last_completed_id
SQL
	is(checkpoints('last_completed_transactions, last_completed_records, last_completed_bytes'), "1|1|$each", 'the last one');
	is(query($node, 'SELECT max(checkpoint_id) = max(last_completed_id) FROM kafka.checkpoints, kafka.stat_checkpoints'), 't', '… by its id');
	is(query($node, 'SELECT s.last_commit_at = c.last_completed_at FROM kafka.stat_pipelines s JOIN kafka.stat_checkpoints c USING (pipeline)'),
		't', '… and its time');
};

subtest 'rates are over the time since the reset, up to a minute' => sub {
	reset_all();
	send_rows(300);
	is(query($node, <<'SQL'), 't', '300 records in the time that has passed');
SELECT abs(records_per_second * over - 300) < 3 AND abs(transactions_per_second * over - 1) < 0.01
	AND abs(bytes_per_second * over - bytes) < 0.01 * bytes
FROM kafka.stat_pipelines, greatest(least(extract(epoch FROM clock_timestamp() - stats_reset), 60), 1) AS over
SQL
};

subtest 'while Kafka does not answer: progress, lag, queue, what is waited for' => sub {
	reset_all();
	$broker->suspend;
	my $start = query($node, 'SELECT clock_timestamp()');
	commit_rows(700);
	my $oldest = query($node, "SELECT pg_xact_commit_timestamp(xmin) FROM stats WHERE id = $next - 1");

	wait_until { pipelines('waits_for') eq 'KafkaAcknowledgements' } 'a worker that waits for acknowledgements';
	commit_rows(2000);
	my $newest = query($node, "SELECT pg_xact_commit_timestamp(xmin) FROM stats WHERE id = $next - 1");
	wait_until { progress('state, transactions, records') eq "triggered|1|700\nopen|1|2000" } 'the next one to be filled meanwhile';
	is(checkpoints('triggered, in_progress, completed, failed'), '1|1|0|0', 'one is in progress');
	is(progress('first_commit_at'), "$oldest\n$newest", 'from which transaction on, by the time of its commit');
	is(progress("since >= opened_at AND opened_at >= first_commit_at AND opened_at >= '$start' AND since <= clock_timestamp()"), "t\nt", 'since when');
	is(progress('bytes > records'), "t\nt", 'its bytes');
	is(pipelines('oldest_unsent_commit_at'), $oldest, 'the oldest transaction that is not in Kafka');
	is(pipelines("lag_time <= clock_timestamp() - '$oldest' AND clock_timestamp() - lag_time - '$oldest' < interval '100ms'"), 't', '… its age is the lag');
	is(pipelines("sent_until < '$oldest'"), 't', 'only what committed before that is known to be sent');
	cmp_ok(pipelines('lag_bytes'), '>', 700 * 50, 'the lag in bytes');
	cmp_ok(pipelines('retained_wal_bytes'), '>=', pipelines('lag_bytes'), '… and the WAL of it is kept');
	is(pipelines('wal_status'), 'reserved', '… in the bounds that are set');
	is(pipelines('queued_records'), 701, 'with the client are its records and its progress record');

	# The end of the process is no failure of a checkpoint: somebody wanted it.
	terminate_worker($node, 'stats');
	is(checkpoints('triggered, in_progress, completed, failed, consecutive_failures'), '1|0|0|1|0',
		'a checkpoint of a worker that was terminated has failed, but not for a row of failures');
	is(checkpoints('last_failed_state, last_failed_reason'), 'triggered|its process was ended', '… because of that');
	is(progress('1'), '', '… and is not under way any more');
	is(pipelines('queued_records'), 0, '… nor queued');
	is(pipelines('oldest_unsent_commit_at'), $oldest, 'what it held is still not in Kafka');

	$broker->resume;
	start_anew($node, 'stats');
	is(query($node, q{SELECT kafka.wait_for(timeout => '60s')}), 't', 'Kafka gets it');
	wait_until { pipelines('lag_bytes, lag_time, oldest_unsent_commit_at') eq '0|00:00:00|' } 'no lag';
	is(pipelines("sent_until >= '$newest'"), 't', 'all that had committed is sent');
	wait_until { pipelines('waits_for') eq 'KafkaIdle' } 'an idle worker';
	is(pipelines('queued_records'), 0, 'an empty queue');
	is(progress('1'), '', 'nothing under way');
	is(pipelines('transactions, records'), '2|2700', 'each counted once, though sent twice');
	adds_up('after an end in the middle');
};

subtest 'a full checkpoint with no transactional id for the next one' => sub {
	with_new_worker { query($node, q(SELECT kafka.alter_pipeline('stats', '{"checkpoint_max_records": 10}'))) } $node, 'stats';
	reset_all();
	$broker->suspend;
	commit_rows(10);
	wait_until { pipelines('waits_for') eq 'KafkaAcknowledgements' } 'the first';
	is(checkpoints('pool_waits'), 0, 'with one on its way the next can be filled');
	commit_rows(10);
	wait_until { pipelines('waits_for') eq 'KafkaTransactionalId' } 'the second to be full';
	is(checkpoints('triggered, in_progress, failed, pool_waits'), '1|1|0|1', 'it waits, which is counted and no error');
	is(progress('state, records'), "triggered|10\nopen|10", 'it is still open');
	$broker->resume;
	is(query($node, q{SELECT kafka.wait_for(timeout => '60s')}), 't', 'Kafka gets both');
	is(checkpoints('completed, failed, pool_waits'), '2|0|1', '… in two checkpoints');
	with_new_worker { query($node, q(SELECT kafka.alter_pipeline('stats', '{"checkpoint_max_records": null}'))) } $node, 'stats';
	return;
};

subtest 'a checkpoint that an error ends' => sub {
	reset_all();
	set_failpoint($node, 'after-flush:error');
	commit_rows(3);
	my $oldest = query($node, "SELECT pg_xact_commit_timestamp(xmin) FROM stats WHERE id = $next - 1");

	wait_until { checkpoints('failed') >= 2 } 'two failures';
	is(checkpoints('consecutive_failures = failed AND completed = 0'), 't', 'they are in a row');
	is(checkpoints('last_failed_state, last_failed_reason'), 'acknowledged|fail-point "after-flush"', 'how far it was, and why it failed');
	is(query($node, 'SELECT s.last_failed_id = p.checkpoint_id + 1 FROM kafka.stat_checkpoints s, kafka.stat_pipelines p'), 't', 'its id is that of the next');
	is(pipelines('last_error'), 'fail-point "after-flush"', 'the last error of the pipeline');
	is(pipelines('last_failure_at >= stats_reset'), 't', '… and its time');
	is(pipelines('oldest_unsent_commit_at'), $oldest, 'what could not be sent counts as unsent between two attempts, too');
	set_failpoint($node, '');
	start_anew($node, 'stats');
	is(query($node, q{SELECT kafka.wait_for(timeout => '60s')}), 't', 'it heals');
	is(checkpoints('completed, consecutive_failures, failed >= 2'), '1|0|t', 'which ends the row, and the count stays');
	is(pipelines('last_error'), 'fail-point "after-flush"', 'the last error is still told');
	adds_up('after failures');

	# Before its trigger
	reset_all();
	set_failpoint($node, 'after-append:error');
	commit_rows(2000);
	wait_until { checkpoints('failed') > 0 } 'a failure before the trigger';
	is(checkpoints('completed, last_failed_state'), '0|open', 'fails as well');
	set_failpoint($node, '');
	start_anew($node, 'stats');
	is(query($node, q{SELECT kafka.wait_for(timeout => '60s')}), 't', 'it heals, too');
};

subtest 'an error that is no checkpoint\'s' => sub {
	reset_all();
	my $restored = checkpoints('restored');
	set_failpoint($node, 'recovery-start:error');
	start_anew($node, 'stats');
	wait_until { pipelines('last_error') eq 'fail-point "recovery-start"' } 'a start that fails';
	is(checkpoints('failed, consecutive_failures, restored'), "0|0|$restored", 'a start that fails is no checkpoint that fails');
	set_failpoint($node, '');
	start_anew($node, 'stats');
	wait_for_state($node, 'stats', 'running');
};

subtest 'what a start makes of a prepared checkpoint' => sub {
	reset_all();
	set_failpoint($node, 'after-kafka-commit:exit');
	commit_rows(2);
	wait_until { checkpoints('restored') == 1 } 'the start after that';
	is(checkpoints('redriven, already_committed, replayed, last_restored_outcome'), '0|1|0|already_committed',
		'Kafka had committed it when the process ended');
	is(checkpoints('triggered, completed, failed'), '1|1|0', '… so it is completed');
	is(query($node, 'SELECT last_restored_id = checkpoint_id AND last_restored_lsn = end_lsn FROM kafka.stat_checkpoints JOIN kafka.checkpoints USING (pipeline) ORDER BY checkpoint_id DESC LIMIT 1'),
		't', '… and where the start went on');
	is(pipelines('transactions, records'), '1|2', '… and counted once');

	# Prepared, and not committed: the start commits it, or sends it again.
	set_failpoint($node, 'after-prepare-commit:wait');
	reset_all();
	commit_rows(5);
	wait_until { progress('state, records') eq 'prepared|5' } 'a prepared checkpoint';
	is(checkpoints('triggered, in_progress, completed, failed'), '1|1|0|0', 'it is in progress');
	terminate_worker($node, 'stats');
	set_failpoint($node, '');
	is(query($node, q{SELECT kafka.wait_for(timeout => '60s')}), 't', 'Kafka gets it');
	is(checkpoints('redriven, already_committed, replayed, last_restored_outcome, restored'), '1|0|0|redriven|1',
		'the start has committed it');
	is(checkpoints('completed, failed, alarms, consecutive_failures'), '1|0|0|0', '… so it is completed');
	is(checkpoints('last_completed_records, last_completed_duration_ms, records_max'), '5||', '… but nobody has seen how long it took');
	is(pipelines('transactions, records'), '1|5', 'its records are counted once');
	adds_up('after a start with a prepared checkpoint');

	# Kafka had ended it by itself.
	with_new_worker { query($node, q(SELECT kafka.alter_pipeline('stats', '{"transaction_timeout": "1s"}'))) } $node, 'stats';
	set_failpoint($node, 'after-prepare-commit:wait');
	reset_all();
	commit_rows(7);
	wait_until { progress('state, records') eq 'prepared|7' } 'a prepared checkpoint';
	my $id = query($node, q{SELECT transactional_id FROM kafka.checkpoints WHERE state = 'prepared'});
	wait_until { kafka_tool('TransactionsCommand', $broker->address, 'describe', '--transactional-id', $id) =~ /CompleteAbort/ } 'Kafka to abort it';
	terminate_worker($node, 'stats');
	set_failpoint($node, '');
	query($node, q(SELECT kafka.alter_pipeline('stats', '{"transaction_timeout": null}')));
	is(query($node, q{SELECT kafka.wait_for(timeout => '60s')}), 't', 'Kafka gets it');
	is(checkpoints('redriven, already_committed, replayed, alarms'), '0|0|1|1', 'it is sent again, which is an alarm');
	is(checkpoints('triggered, completed, failed, consecutive_failures'), '2|1|1|0', '… so the first attempt has failed');
	is(checkpoints('last_failed_state, last_failed_reason'), 'prepared|Kafka did not commit it; its range is sent again', '… for that reason');
	is(pipelines('transactions, records'), '1|7', 'its records are counted once');
	adds_up('after an alarm');
};

subtest 'a restart of the process keeps everything' => sub {
	my $columns = 'triggered, completed, failed, redriven, already_committed, replayed, duration_ms_p50, duration_ms_max, records_max, bytes_avg, last_completed_id, stats_reset';
	my $before   = checkpoints($columns);
	my $counters = pipelines('checkpoints, transactions, records, bytes, last_commit_at');
	my $restored = checkpoints('restored');

	terminate_worker($node, 'stats');
	wait_until { checkpoints('restored') == $restored + 1 } 'the next start';
	is(checkpoints($columns), $before, 'of checkpoints');
	is(pipelines('checkpoints, transactions, records, bytes, last_commit_at'), $counters, 'of the pipeline');
	is(checkpoints('last_restored_id = last_completed_id, last_restored_outcome'), 't|', 'the start found nothing to decide');
	query($node, q{CALL kafka.pause('stats')});
	is(checkpoints($columns), $before, 'so does a pause');
	is(pipelines('state, pid, waits_for'), 'stopped||', '… in which nothing is waited for');
	query($node, q{CALL kafka.resume('stats')});
	is(checkpoints($columns), $before, 'and a resume');
};

subtest 'a reset, and who may do what' => sub {
	my $facts = pipelines('last_commit_at, last_error, checkpoint_id, sent_until IS NOT NULL');
	my $reset = pipelines('stats_reset');

	query($node, 'CREATE ROLE stranger; CREATE ROLE monitor IN ROLE pg_monitor; CREATE ROLE owner REPLICATION; '
		  . 'GRANT USAGE ON FOREIGN SERVER kafka TO owner');
	query($node, q{SET ROLE owner; CALL kafka.create_pipeline('theirs', 'kafka')});
	my $as = sub { return query($node, "SET ROLE $_[0]; $_[1]") };
	my $refusal = sub { my ($status, $out, $errors) = $node->psql('postgres', "SET ROLE $_[0]; $_[1]"); return $errors };

	foreach my $view (qw(stat_pipelines stat_checkpoints))
	{
		is($as->('stranger', "SELECT pipeline FROM kafka.$view"), '', "$view: nothing for a stranger");
		is($as->('owner', "SELECT pipeline FROM kafka.$view"), 'theirs', '… its own for an owner');
		is($as->('monitor', "SELECT pipeline FROM kafka.$view ORDER BY 1"), "stats\ntheirs", '… all for who monitors');
	}
	is($as->('stranger', 'SELECT (SELECT count(*) FROM kafka.live()) + (SELECT count(*) FROM kafka.live_checkpoints()) + '
			  . '(SELECT count(*) FROM kafka.live_progress()) + (SELECT count(*) FROM kafka.stat_progress_checkpoints)'), 0,
		'nor by the functions behind the views');
	like($refusal->($_, q{SELECT kafka.stat_reset('stats')}), qr/must be owner of pipeline "stats"/, "no reset for $_")
	  foreach qw(stranger monitor owner);
	like($refusal->('postgres', q{SELECT kafka.stat_reset('nobody')}), qr/pipeline "nobody" does not exist/, 'nor of what there is not');

	$as->('owner', 'SELECT kafka.stat_reset()');
	is(pipelines('stats_reset'), $reset, 'a reset of all is one of what the caller owns');
	is($as->('owner', "SELECT stats_reset > '$reset' FROM kafka.stat_pipelines"), 't', '… which it is');
	query($node, 'SELECT kafka.stat_reset()');
	is(checkpoints("triggered, completed, failed, restored, redriven, already_committed, replayed, duration_ms_max, last_failed_id, last_completed_id, last_restored_id, stats_reset > '$reset'"),
		'0|0|0|0|0|0|0|||||t', 'counting begins anew');
	is(pipelines('checkpoints, transactions, records, bytes, records_per_second'), '0|0|0|0|0', '… in both views');
	is(pipelines('last_commit_at, last_error, checkpoint_id, sent_until IS NOT NULL'), $facts, 'facts stay');
	query($node, q{CALL kafka.drop_pipeline('theirs')});
	query($node, 'DROP OWNED BY owner; DROP ROLE stranger, monitor, owner');
};

subtest 'a standby can be asked' => sub {
	my $standby = PostgreSQL::Test::Cluster->new('standby');

	$node->backup('backup');
	$standby->init_from_backup($node, 'backup', has_streaming => 1);
	$standby->start;
	$node->wait_for_catchup($standby, 'replay', $node->lsn('flush'));
	is(query($standby, 'SELECT pipeline, state, pid, checkpoints, lag_bytes FROM kafka.stat_pipelines'), 'stats|stopped|||',
		'its pipelines do not run');
	is(query($standby, 'SELECT pipeline, completed, records_max FROM kafka.stat_checkpoints'), 'stats||', '… and have no statistics');
	$standby->stop;
};

subtest 'a restart of the server begins anew, and Kafka is away' => sub {
	send_rows(1);
	$broker->suspend;
	my $start = query($node, 'SELECT clock_timestamp()');
	$node->restart;
	wait_until { pipelines('pid') ne '' } 'a worker';
	is(checkpoints("triggered, completed, failed, restored, records_max, last_completed_id, stats_reset > '$start'"), '0|0|0|0|||t', 'all counters are 0');
	commit_rows(100);
	is(query($node, <<'SQL'), 't', 'the lag in bytes is from what the slot has confirmed on');
SELECT lag_bytes BETWEEN 1 AND retained_wal_bytes
	AND lag_bytes <= pg_wal_lsn_diff(pg_current_wal_flush_lsn(), confirmed_flush_lsn) AND lag_bytes < 10000000
FROM kafka.stat_pipelines, pg_replication_slots WHERE slot_name LIKE 'tk\_%'
SQL
	is(pipelines(q{oldest_unsent_commit_at, abs(extract(epoch FROM clock_timestamp() - lag_time - (SELECT max(committed_at) FROM kafka.checkpoints))) < 1}), '|t',
		'the lag in time is from the last checkpoint on, until more is known');
	wait_until { pipelines('waits_for') eq 'KafkaRequest' } 'a start that waits for Kafka';
	$broker->resume;
	start_anew($node, 'stats');
	is(query($node, q{SELECT kafka.wait_for(timeout => '60s')}), 't', 'it is sent');
	is(checkpoints('completed, records_max'), '1|100', 'and counted');
};

$node->stop;
done_testing();
