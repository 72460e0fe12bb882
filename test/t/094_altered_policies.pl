# Policies of the checkpoint coordinator, each altered while the pipeline runs: in force for what commits next, and
# nothing is lost or sent twice by the change.
use strict;
use warnings;

use Test::More;
use TransactionalKafka;

my $broker = start_broker('altered');
my $node   = new_node('main');
my $sent   = 0;

query($node, 'CREATE EXTENSION transactional_kafka');
create_server($node, broker => $broker->address);
query($node, 'CREATE TABLE altered (id int PRIMARY KEY)');
create_pipeline($node, 'altered', tables => ['altered']);

sub alter { query($node, 'SELECT kafka.alter_pipeline(' . "'altered', '$_[0]')"); return; }
sub insert { query($node, 'INSERT INTO altered VALUES (' . ++$sent . ')'); return; }

sub is_all_sent
{
	my ($timeout) = @_;

	return query($node, "SELECT kafka.wait_for(pipeline => 'altered', timeout => '$timeout')") eq 't';
}

# One checkpoint each.
sub insert_and_wait
{
	insert();
	ok(is_all_sent('60s'), $_[0]);
	return;
}

sub ids
{
	return query($node, q{SELECT count(*), min(timeout), max(timeout) FROM kafka.kafka_transactions
		WHERE pipeline = 'altered'});
}

insert_and_wait('it runs');
is(ids(), '2|00:15:00|00:15:00', 'the pool by default: two ids, 15 min');

alter('{"transaction_timeout": "2min"}');
insert_and_wait('transaction_timeout altered');
is(ids(), '2|00:02:00|00:02:00', '... Kafka knows');

alter('{"max_concurrent_checkpoints": 3}');
insert_and_wait('max_concurrent_checkpoints altered');
is(ids(), '4|00:02:00|00:02:00', '... one id more than that');

alter('{"retained_checkpoints": 3}');
insert_and_wait('retained_checkpoints altered') for 1 .. 5;
is(query($node, q{SELECT count(*), max(checkpoint_id) - min(checkpoint_id) FROM kafka.checkpoints}), '3|2',
	'... the last three are there');

# A rate limit: the first commit after the start is sent at once, the next one not within the interval.
alter('{"checkpoint_interval": "10min", "transaction_timeout": null}');
insert_and_wait('checkpoint_interval altered');
insert();
ok(!is_all_sent('0'), '... the next commit waits for the interval');
alter('{"checkpoint_interval": null}');
ok(is_all_sent('60s'), '... until that is altered');

# Failures are tolerated, and then no longer.
my $log = -s $node->logfile;
set_failpoint($node, 'after-flush:error');
insert();
wait_until { logged($node, qr/ERROR:  fail-point "after-flush"/, $log) >= 2 } 'failures that are tolerated', 60;
isnt(state($node, 'altered'), 'failed', 'any number of failures is tolerated');
alter('{"tolerable_failed_checkpoints": 0}');
wait_for_state($node, 'altered', 'failed', 60);
like(pipeline_field($node, 'altered', 'reason'), qr/^\d+ checkpoints in a row have failed \(tolerable_failed_checkpoints is 0\)/,
	'... until that is altered');
set_failpoint($node, '');
query($node, q{SELECT kafka.alter_pipeline('altered', '{"tolerable_failed_checkpoints": null}'); CALL kafka.resume('altered')});
ok(is_all_sent('60s'), '... and resumed');

# A checkpoint that the broker doesn't acknowledge is given up after checkpoint_timeout, and done again.
alter('{"checkpoint_timeout": "2s"}');
insert_and_wait('checkpoint_timeout altered');
$log = -s $node->logfile;
$broker->suspend;
insert();
wait_until { logged($node, qr/ERROR:  pipeline "altered": Kafka failed while waiting for acknowledgements/, $log) }
'the checkpoint to be given up', 60;
alter('{"checkpoint_timeout": null}');
$broker->resume;
ok(is_all_sent('60s'), '... and it is done again once Kafka answers');
like(query($node, q{SELECT last_failed_state, last_failed_reason FROM kafka.stat_checkpoints WHERE pipeline = 'altered'}),
	qr/^triggered\|.*waiting for acknowledgements/, '... and counted as failed');

is_sent('altered', [ 1 .. $sent ], broker => $broker->address);
is(logged($node, qr/PANIC|TRAP|terminated by signal/), 0, 'no crash');
$node->stop;
done_testing();
