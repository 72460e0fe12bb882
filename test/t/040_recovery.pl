# What a start concludes from the progress record in Kafka and from what the server remembers (DESIGN §3): each verdict,
# made by doing to Kafka, slot and catalog what it is there for.  A wrong verdict is worse than a crash: a false
# "go on" loses or doubles, a false "stop" is a pipeline down at night.
use strict;
use warnings;

use IPC::Run ();
use Test::More;
use TransactionalKafka;

sub slot
{
	my ($node, $name) = @_;
	return pipeline_field($node, $name, 'slot_name');
}

sub slot_field
{
	my ($node, $name, $field) = @_;
	return query($node, "SELECT $field FROM pg_replication_slots WHERE slot_name = " . quote(slot($node, $name)));
}

# A drop that the event trigger would refuse.
sub by_passing
{
	my ($node, $sql) = @_;

	query($node, "ALTER EVENT TRIGGER transactional_kafka_drop DISABLE; $sql; ALTER EVENT TRIGGER transactional_kafka_drop ENABLE");
	return;
}

sub newest_progress
{
	my ($node, $name) = @_;
	my @records = consume(pipeline_field($node, $name, 'progress_topic'));

	return $records[-1]->{payload};
}

# As anybody who may write to the topic can; '' is Kafka's null.  No value has a bar.
sub write_progress
{
	my ($node, $name, $value) = @_;
	my $record = "progress|$value\n";

	IPC::Run::run([ 'kcat', '-P', '-b', broker(), '-t', pipeline_field($node, $name, 'progress_topic'), '-K', '|', '-Z' ],
		'<', \$record) or die 'kcat -P failed';
	return;
}

# A progress record with some fields changed.
sub with
{
	my ($record, %changes) = @_;

	foreach my $field (keys %changes)
	{
		$record =~ s/("$field":"?)([^",}]*)/$1 . $changes{$field}/e
		  or die "no $field in $record";
	}
	return $record;
}

my $node = new_node('main', undef, extra => [ '--wal-segsize', '1' ]);
create_server($node);
table_pipeline($node, 'bystander');
my $bystander = 1;

# The others go on whatever happens to one.
sub bystander_goes_on
{
	query($node, 'INSERT INTO bystander VALUES (' . ++$bystander . ')');
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_sent('bystander', [ 1 .. $bystander ]);
}

# name => [state, reason, what is done while it is paused, what heals it]
my %original;
sub written
{
	my (%changes) = @_;
	return sub { write_progress($node, $_[0], with($original{ $_[0] }, %changes)) };
}
my $write_back = sub { write_progress($node, $_[0], $original{ $_[0] }) };
my @cases = (
	[ other_uuid => 'diverged', 'the progress record belongs to pipeline 01234567-89ab-cdef-0123-456789abcdef',
		written(uuid => '01234567-89ab-cdef-0123-456789abcdef'), $write_back ],
	[ other_system => 'diverged', 'written by system 42, ', written(system_identifier => 42), $write_back ],
	[ other_database => 'diverged', 'database 9999999; this is', written(database => 9999999), $write_back ],
	[ other_timeline => 'diverged', 'timeline 7 .* is no ancestor', written(timeline => 7), $write_back ],
	[ beyond_ours => 'diverged', 'Kafka holds checkpoint 1001 .* newest that this server knows is 1',
		written(checkpoint => 1001), $write_back ],
	[ lost_by_kafka => 'diverged', 'checkpoint 1 was committed, but the newest that Kafka holds is 0',
		written(checkpoint => 0), $write_back ],
	[ foreign_instance => 'fenced', 'another live instance .* 000000000000002a', written(instance => 42), $write_back ],
	[ unreadable => 'diverged', 'the progress record has format version 2, this build knows 1',
		written(version => 2), $write_back ],
	[ edited => 'diverged', 'the progress record is not in the form this build writes',
		written(checkpoint => '01'), $write_back ],
	[ record_deleted => 'diverged', 'somebody deleted the progress record',
		sub { write_progress($node, $_[0], '') }, $write_back ],
	[ emptied => 'diverged', 'the progress topic holds no record',
		sub {
			my $topic = pipeline_field($node, $_[0], 'progress_topic');
			my $offsets = "$PostgreSQL::Test::Utils::tmp_check/offsets.json";

			# a compacted topic's records can't be deleted without this
			kafka_tool('ConfigCommand', undef, '--alter', '--topic', $topic, '--add-config', 'cleanup.policy=delete');
			PostgreSQL::Test::Utils::append_to_file($offsets,
				qq({"version":1,"partitions":[{"topic":"$topic","partition":0,"offset":-1}]}));
			kafka_tool('DeleteRecordsCommand', undef, '--offset-json-file', $offsets);
			kafka_tool('ConfigCommand', undef, '--alter', '--topic', $topic, '--add-config', 'cleanup.policy=compact');
			is_deeply([ consume($topic) ], [], 'the progress topic is empty');
		},
		$write_back ],
	[ topic_deleted => 'diverged', 'the progress topic holds no record',
		sub { kafka_tool('TopicCommand', undef, '--delete', '--topic', pipeline_field($node, $_[0], 'progress_topic')) },
		sub {
			create_topic(pipeline_field($node, $_[0], 'progress_topic'), { 'cleanup.policy' => 'compact' });
			$write_back->(@_);
		} ],
	[ slot_dropped => 'slot_lost', 'its replication slot was dropped',
		sub { query($node, 'SELECT pg_drop_replication_slot(' . quote(slot($node, $_[0])) . ')') } ],
	[ slot_anew => 'slot_lost', 'beyond the .* where the pipeline stopped',
		sub {
			my $slot = quote(slot($node, $_[0]));
			query($node, "SELECT pg_drop_replication_slot($slot)");
			query($node, "INSERT INTO $_[0] VALUES (100)");
			query($node, "SELECT pg_create_logical_replication_slot($slot, 'pgoutput')");
		} ],
	[ slot_advanced => 'slot_lost', 'beyond the .* where the pipeline stopped',
		sub {
			query($node, "INSERT INTO $_[0] VALUES (100)");
			query($node, 'SELECT pg_replication_slot_advance(' . quote(slot($node, $_[0])) . ', pg_current_wal_lsn())');
		} ],
	[ slot_of_another_kind => 'slot_lost', 'is not one of this database with plugin pgoutput',
		sub {
			my $slot = quote(slot($node, $_[0]));
			query($node, "SELECT pg_drop_replication_slot($slot); SELECT pg_create_physical_replication_slot($slot, true)");
		} ],
	[ publication_dropped => 'failed', 'its publication "tk_\d+_delete" was dropped',
		sub {
			my ($id) = slot($node, $_[0]) =~ /_(\d+)$/;
			by_passing($node, "DROP PUBLICATION tk_${id}_delete");
		} ],
);

subtest 'what Kafka or the slot says against the server stops that pipeline, for good and with a reason' => sub {
	foreach my $case (@cases)
	{
		my ($name, $state, $reason, $tamper) = @$case;

		table_pipeline($node, $name);
		query($node, "CALL kafka.pause('$name')");
		$original{$name} = newest_progress($node, $name);
		$tamper->($name);
		query($node, "INSERT INTO $name VALUES (2)");
		resume_stops($node, $name, $state, $reason);

		# resume() checks again
		resume_stops($node, $name, $state, $reason);
	}
	bystander_goes_on();
	return;
};

subtest 'the publication of a user: dropped, it is named' => sub {
	query($node, 'CREATE PUBLICATION mine');
	query($node, 'CREATE TABLE users_publication (id int PRIMARY KEY); ALTER PUBLICATION mine ADD TABLE users_publication');
	create_pipeline($node, 'users_publication', publication => 'mine');
	query($node, 'INSERT INTO users_publication VALUES (1)');
	is_sent('users_publication', [ 1 ]);
	query($node, q(CALL kafka.pause('users_publication')));
	by_passing($node, 'DROP PUBLICATION mine');
	resume_stops($node, 'users_publication', 'failed', 'publication "mine" was dropped');
	push @cases, [ users_publication => 'failed', 'publication "mine" was dropped' ];
	return;
};

subtest 'a stop outlives changes of the definition and restarts of the server, and keeps the WAL' => sub {
	my $restart_lsn = slot_field($node, 'other_uuid', 'restart_lsn');
	my $log = -s $node->logfile;

	start_anew($node, 'other_uuid');
	foreach my $stop (sub { $node->restart }, sub { crash($node); $node->start })
	{
		$stop->();
		wait_for_state($node, 'bystander', 'running');
		is_stopped($node, @$_[ 0 .. 2 ]) foreach @cases;
		bystander_goes_on();
	}
	is(logged($node, qr/stops as/, $log), 0, 'none was started again to find that out');
	query($node, 'CHECKPOINT');
	is(slot_field($node, 'other_uuid', 'restart_lsn'), $restart_lsn, 'the slot stands where it stood');
	is_deeply([ values_of('after.id', consume("$$_[0].public.$$_[0]")) ], [1], "$$_[0]: nothing was sent meanwhile")
	  foreach @cases;
	return;
};

subtest 'once the cause is gone, resume goes on exactly where Kafka is' => sub {
	foreach my $case (grep { $$_[4] } @cases)
	{
		my $name = $$case[0];

		$$case[4]->($name);
		query($node, "CALL kafka.resume('$name')");
		is(state($node, $name), 'running', "$name: runs");
		is(pipeline_field($node, $name, 'coalesce(reason, hint)'), '', "$name: nothing is wrong any more");
		query($node, "INSERT INTO $name VALUES (3)");
		is_sent($name, [ 1, 2, 3 ]);
	}
	return;
};

subtest 'a pipeline that can not go on can be dropped and created anew' => sub {
	foreach my $name (map { $$_[0] } grep { !$$_[4] && $$_[0] ne 'users_publication' } @cases)
	{
		my $slot = slot($node, $name);

		query($node, "CALL kafka.drop_pipeline('$name')");
		is(query($node, 'SELECT count(*) FROM pg_replication_slots WHERE slot_name = ' . quote($slot)),
			0, "$name: its slot is gone with it");
		create_pipeline($node, $name, tables => [$name]);
		query($node, "INSERT INTO $name VALUES (3)");
		is_sent($name, [ 1, 3 ]);
	}
	return;
};

subtest 'a progress topic that vanishes under a running pipeline is missed: nothing goes on behind it' => sub {
	my $topic = pipeline_field($node, 'topic_deleted', 'progress_topic');

	kafka_tool('TopicCommand', undef, '--delete', '--topic', $topic);
	query($node, 'INSERT INTO topic_deleted VALUES (4)');

	# librdkafka gives up at once, or goes on asking, as the partitions share a request or not.
	$node->restart;
	wait_until { state($node, 'topic_deleted') =~ /^(failed|diverged)$/ } 'the end of the pipeline';
	resume_stops($node, 'topic_deleted', 'diverged', 'the progress topic holds no record');
	is_sent('topic_deleted', [ 1, 2, 3 ]);
	query($node, q(CALL kafka.drop_pipeline('topic_deleted')));
	return;
};

subtest 'a progress topic that Kafka would empty, or with more than one partition, is refused' => sub {
	create_topic('deleting.progress', { 'cleanup.policy' => 'delete' });
	create_topic('wide.progress', { partitions => 2, 'cleanup.policy' => 'compact' });
	foreach my $case ([ 'deleting', 'cleanup.policy "delete"' ], [ 'wide', 'has 2 partitions instead of 1' ])
	{
		my ($name, $reason) = @$case;
		my $errors;

		query($node, "CREATE TABLE $name (id int PRIMARY KEY)");
		isnt($node->psql('postgres',
				qq(CALL kafka.create_pipeline('$name', 'kafka', '{$name}', options => '{"progress_topic": "$name.progress"}')),
				stderr => \$errors), 0, "$name: create_pipeline fails");
		like($errors, qr/"$name.progress" has? .*$reason|$reason/, "$name: with the reason");
		is_stopped($node, $name, 'failed', $reason);
	}
	kafka_tool('ConfigCommand', undef, '--alter', '--topic', 'deleting.progress', '--add-config', 'cleanup.policy=compact');
	query($node, q(CALL kafka.resume('deleting'); INSERT INTO deleting VALUES (1)));
	is_sent('deleting', [ 1 ]);
	query($node, "CALL kafka.drop_pipeline('$_')") foreach qw(deleting wide);
	return;
};

subtest 'a slot whose WAL was removed (max_slot_wal_keep_size) is lost' => sub {
	table_pipeline($node, 'invalidated');

	# The others would share its fate: a slot that is not read keeps WAL.
	query($node, "CALL kafka.drop_pipeline('$_')")
	  foreach split /\n/, query($node, q(SELECT pipeline FROM kafka.pipelines WHERE pipeline NOT IN ('invalidated', 'bystander')));
	query($node, q(CALL kafka.pause('invalidated'); INSERT INTO invalidated VALUES (2)));
	query($node, q(ALTER SYSTEM SET max_slot_wal_keep_size = '4MB'));
	$node->reload;
	wait_until
	{
		my $lsn = query($node, 'SELECT pg_switch_wal()');

		query($node, 'INSERT INTO bystander VALUES (' . ++$bystander . '); CHECKPOINT');
		wait_until { slot_field($node, 'bystander', "restart_lsn >= '$lsn'") eq 't' } 'the WAL of the bystander';
		slot_field($node, 'invalidated', 'wal_status') eq 'lost';
	}
	'the end of a slot';
	resume_stops($node, 'invalidated', 'slot_lost', 'its replication slot was invalidated: .*max_slot_wal_keep_size');
	$node->restart;
	is_stopped($node, 'invalidated', 'slot_lost', 'invalidated');
	bystander_goes_on();
	return;
};
$node->stop;

done_testing();
