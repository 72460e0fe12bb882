# What a start concludes from the progress record in Kafka and from what the server remembers (DESIGN §3): each verdict,
# made by doing to Kafka, slot and catalog what it is there for.  A wrong verdict is worse than a crash: a false
# "go on" loses or doubles, a false "stop" is a pipeline down at night.
use strict;
use warnings;

use IPC::Run ();
use List::Util qw(shuffle);
use Test::More;
use TransactionalKafka;

my $seed = defined $ENV{TK_SEED} ? $ENV{TK_SEED} : time;
srand $seed;
note "seed: TK_SEED=$seed";

#
# Tools: a pipeline has one table, both of its name; the table's only column is id.
#

sub new_pipeline
{
	my ($node, $name, %o) = @_;

	query($node, "CREATE TABLE $name (id int PRIMARY KEY)");
	create_pipeline($node, $name, $o{publication} ? () : (tables => [$name]), %o);
	query($node, "INSERT INTO $name VALUES (1)");
	is_sent($node, $name, 1);
	return;
}

# Exactly these ids are in Kafka, each once, in this order.  broker => if it isn't the shared one.
sub is_sent
{
	my ($node, $name, @ids) = @_;
	my %o = ref $ids[-1] ? %{ pop @ids } : ();
	my $expected = $ids[-1];
	my @records = consume_until("$name.public.$name",
		sub { my @seen = values_of('after.id', @_); grep { $_ == $expected } @seen }, %o);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_deeply([ values_of('after.id', @records) ], \@ids, "$name: Kafka holds $ids[0] .. $expected, each once");
}

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

sub newest_progress
{
	my ($node, $name) = @_;
	my @records = consume(pipeline_field($node, $name, 'progress_topic'));

	return $records[-1]->{payload};
}

# Whoever may write to the progress topic, and a bar is in none of its values.
sub write_progress
{
	my ($node, $name, $value) = @_;
	my $record = "progress|$value\n";

	IPC::Run::run([ 'kcat', '-P', '-b', broker(), '-t', pipeline_field($node, $name, 'progress_topic'), '-K', '|' ],
		'<', \$record) or die 'kcat -P failed';
	return;
}

# A progress record with some fields changed.
sub with
{
	my ($record, %changes) = @_;

	foreach my $field (keys %changes)
	{
		$record =~ s/("$field":"?)([^",}]*)/$1 . (ref $changes{$field} ? $changes{$field}->($2) : $changes{$field})/e
		  or die "no $field in $record";
	}
	return $record;
}

# The pipeline, whose start was just asked for by resume(), stops: the call says why, the view does, the log does.
sub resume_stops
{
	my ($node, $name, $state, $reason) = @_;
	my $log = -s $node->logfile;
	my $errors;
	my $failed = $node->psql('postgres', "CALL kafka.resume('$name')", stderr => \$errors);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	isnt($failed, 0, "$name: resume fails");
	like($errors, qr/pipeline "$name" has stopped \($state\): .*$reason/, "$name: with the reason");
	is_stopped($node, $name, $state, $reason);
	wait_until
	{
		logged($node,
			qr/WARNING:  pipeline "$name" has stopped \($state\): the server keeps all WAL from its position on/, $log);
	}
	"a warning of retained WAL for $name";
	return;
}

sub is_stopped
{
	my ($node, $name, $state, $reason) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_for_state($node, $name, $state);
	like(pipeline_field($node, $name, 'reason'), qr/$reason/, "$name: $state, with its reason");
	isnt(pipeline_field($node, $name, 'hint'), '', "$name: and a hint");
	wait_until { !defined worker_pid($node, $name) } "no worker of $name";
	return;
}

sub background_call
{
	my ($node, $sql) = @_;
	my $call = { errors => '' };

	$call->{run} = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr('postgres'), '-c', $sql ],
		'<', \undef, '>', \$call->{output}, '2>', \$call->{errors});
	return $call;
}

#
# Verdicts on what Kafka holds, and on the slot
#

my $node = new_node('main', undef, extra => [ '--wal-segsize', '1' ]);
create_server($node);
new_pipeline($node, 'bystander');
my $bystander = 1;

# The others go on whatever happens to one.
sub bystander_goes_on
{
	query($node, 'INSERT INTO bystander VALUES (' . ++$bystander . ')');
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_sent($node, 'bystander', 1 .. $bystander);
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
			query($node, "DROP PUBLICATION tk_${id}_delete");
		} ],
);

subtest 'what Kafka or the slot says against the server stops that pipeline, for good and with a reason' => sub {
	foreach my $case (@cases)
	{
		my ($name, $state, $reason, $tamper) = @$case;

		new_pipeline($node, $name);
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
	new_pipeline($node, 'users_publication', publication => 'mine') if 0;
	query($node, 'CREATE TABLE users_publication (id int PRIMARY KEY); ALTER PUBLICATION mine ADD TABLE users_publication');
	create_pipeline($node, 'users_publication', publication => 'mine');
	query($node, 'INSERT INTO users_publication VALUES (1)');
	is_sent($node, 'users_publication', 1);
	query($node, q(CALL kafka.pause('users_publication')));
	query($node, 'DROP PUBLICATION mine');
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
		is_sent($node, $name, 1, 2, 3);
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
		is_sent($node, $name, 1, 3);
	}
	return;
};

subtest 'a progress topic that vanishes under a running pipeline: nothing goes on behind it' => sub {
	my $topic = pipeline_field($node, 'topic_deleted', 'progress_topic');

	kafka_tool('TopicCommand', undef, '--delete', '--topic', $topic);
	query($node, 'INSERT INTO topic_deleted VALUES (4)');
	wait_until { state($node, 'topic_deleted') =~ /^(failed|diverged)$/ } 'the end of the pipeline';
	resume_stops($node, 'topic_deleted', 'diverged', 'the progress topic holds no record');
	is_sent($node, 'topic_deleted', 1, 2, 3);
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
	is_sent($node, 'deleting', 1);
	query($node, "CALL kafka.drop_pipeline('$_')") foreach qw(deleting wide);
	return;
};

subtest 'a slot whose WAL was removed (max_slot_wal_keep_size) is lost' => sub {
	new_pipeline($node, 'invalidated');

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

#
# Starts that crash
#

subtest 'a start that is crashed between any two of its steps, with Kafka down too, succeeds in the end' => sub {
	my $broker = start_broker('start');
	my $start = new_node('start', undef, restart_after_crash => 1);
	my $points = join '|', grep { $_ ne 'after-slot-create' }
	  (query($start, 'CREATE EXTENSION transactional_kafka; SELECT kafka.failpoints()') =~ /\A(.*)^after-begin$/ms)[0] =~ /\S+/g;
	my @points = split /\|/, $points;
	my @doubts = qw(after-flush before-prepare-commit after-prepare-commit after-kafka-commit after-slot-confirm);
	my $up = sub { wait_until { my $errors; $start->psql('postgres', 'SELECT 1', stderr => \$errors) == 0 } 'the server' };
	my $n = 0;

	cmp_ok(scalar @points, '>=', 7, "fail-points of a start: @points");
	create_server($start, broker => $broker->address);
	query($start, 'CREATE TABLE s (id int PRIMARY KEY)');

	# The first start of all: the crash leaves a slot that the next one doesn't know of.
	my $log = -s $start->logfile;
	set_failpoint($start, 'after-slot-create:kill');
	my $call = background_call($start, q(CALL kafka.create_pipeline('s', 'kafka', '{s}')));
	wait_until { logged($start, qr/fail-point "after-slot-create" crashes/, $log) } 'the crash after the slot was made';
	$call->{run}->finish;
	$up->();
	set_failpoint($start, '');
	wait_for_state($start, 's', 'running');
	is(query($start, 'SELECT count(*) FROM pg_replication_slots'), 1, 'one slot after a first start that crashed');

	foreach my $round (shuffle map { my $point = $_; map { [ $point, $_ ] } qw(error exit kill hang) } @points)
	{
		my ($point, $action) = @$round;
		my $doubt = $doubts[ rand @doubts ];

		# A checkpoint is left somewhere on its way …
		$log = -s $start->logfile;
		set_failpoint($start, "$doubt:exit");
		query($start, 'INSERT INTO s VALUES (' . ++$n . ')');
		wait_until { logged($start, qr/fail-point "$doubt" ends/, $log) } "fail-point $doubt";

		# … and the start after it too.
		set_failpoint($start, "$point:" . ($action eq 'hang' ? 'wait' : $action));
		start_anew($start, 's');
		wait_until { logged($start, qr/fail-point "$point"/, $log) } "$doubt, then $point:$action";
		$broker->suspend if $action eq 'hang';
		$up->() if $action eq 'kill';
		set_failpoint($start, '');
		if ($action eq 'hang')
		{
			# It goes on to meet a broker that doesn't answer.
			terminate_worker($start, 's');
			$broker->resume;
		}
		start_anew($start, 's');
		next if rand() < 0.5;    # or it is crashed again before it ran
		wait_for_state($start, 's', 'running');
	}

	# Down, not only hanging
	$broker->kill9;
	query($start, 'INSERT INTO s VALUES (' . ++$n . ')');
	terminate_worker($start, 's');
	wait_for_state($start, 's', 'retrying');
	like(pipeline_field($start, 's', 'reason'), qr/Kafka failed while looking for the progress topic/, 'Kafka is down');
	$broker->start;
	start_anew($start, 's');
	wait_for_state($start, 's', 'running');

	is_sent($start, 's', 1 .. $n, { broker => $broker->address });
	is(logged($start, qr/stops as/), 0, 'there was no verdict against the pipeline');
	$start->stop;
	$broker->kill9;
	return;
};

#
# Copies of a server, promotions, synchronous standbys
#

my $primary = new_node('primary');
create_server($primary);
new_pipeline($primary, 'p');
my $rows = 1;
my $standby = PostgreSQL::Test::Cluster->new('standby');
my $behind = PostgreSQL::Test::Cluster->new('behind');
$primary->backup('online');
$standby->init_from_backup($primary, 'online', has_streaming => 1);
$standby->start;
$primary->wait_for_catchup($standby);

sub insert
{
	query($primary, 'INSERT INTO p VALUES (' . ++$rows . ')');
	return;
}

sub sent
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_sent($primary, 'p', 1 .. $rows);
}

subtest 'what a synchronous standby has not flushed does not reach Kafka' => sub {
	query($primary, q(ALTER SYSTEM SET synchronous_standby_names = 'standby'));
	$primary->reload;
	wait_until { query($primary, q(SELECT sync_state FROM pg_stat_replication WHERE application_name = 'standby')) eq 'sync' }
	'a synchronous standby';
	insert();
	sent();

	$standby->stop;
	query($primary, 'SET synchronous_commit = local; INSERT INTO p VALUES (' . ++$rows . ')');

	# A cancelled wait is a local commit too.
	my $waiting = background_call($primary, 'INSERT INTO p VALUES (' . ++$rows . ')');
	my $pid = wait_until { query($primary, q(SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep')) }
	'a commit that waits for the standby';
	query($primary, "SELECT pg_cancel_backend($pid)");
	$waiting->{run}->finish;
	like($waiting->{errors}, qr/canceling wait for synchronous replication/, 'a wait is cancelled');
	is(query($primary, 'SELECT count(*) FROM p'), $rows, 'both rows are committed here');

	is(query($primary, q(SELECT kafka.wait_for(timeout => '1s'))), 'f', 'but not in Kafka');
	my @records = consume('p.public.p', isolation => 'read_uncommitted');
	is_deeply([ values_of('after.id', @records) ], [ 1 .. $rows - 2 ], 'not even in an open Kafka transaction');

	# The worker doesn't forget that by a new start.
	terminate_worker($primary, 'p');
	wait_for_state($primary, 'p', 'running');
	is(query($primary, q(SELECT kafka.wait_for(timeout => '1s'))), 'f', 'after a new start neither');
	is_deeply([ values_of('after.id', consume('p.public.p')) ], [ 1 .. $rows - 2 ], 'nothing was sent');

	$standby->start;
	sent();
	is(query($primary, q(SELECT kafka.wait_for(timeout => '60s'))), 't', 'once the standby has it, Kafka gets it');

	$standby->stop;
	query($primary, 'SET synchronous_commit = local; INSERT INTO p VALUES (' . ++$rows . ')');
	query($primary, 'ALTER SYSTEM RESET synchronous_standby_names');
	$primary->reload;
	sent();
	$standby->start;
	return;
};

subtest 'a copy of a running server beside the original stops as diverged; the original goes on undisturbed' => sub {
	my $copy = PostgreSQL::Test::Cluster->new('online_copy');
	my $worker = worker_pid($primary, 'p');

	$copy->init_from_backup($primary, 'online');
	insert();
	sent();
	$copy->start;
	is_stopped($copy, 'p', 'diverged', 'Kafka holds checkpoint \d+ .*newest that this server knows');
	query($copy, 'INSERT INTO p VALUES (1000000)');
	insert();
	sent();
	$copy->restart;
	is_stopped($copy, 'p', 'diverged', 'newest that this server knows');
	resume_stops($copy, 'p', 'diverged', 'newest that this server knows');
	insert();
	sent();
	is(worker_pid($primary, 'p'), $worker, 'its worker never noticed');
	$copy->stop;
	return;
};

subtest 'a standby promoted without the newest transactions that Kafka holds stops as diverged' => sub {
	$behind->init_from_backup($primary, 'online', has_streaming => 1);
	$behind->start;
	$primary->wait_for_catchup($behind);
	$behind->stop;
	insert();
	sent();
	$primary->wait_for_catchup($standby);
	$primary->stop;
	$behind->start;
	$behind->promote;
	is_stopped($behind, 'p', 'diverged',
		'Kafka holds transactions up to [0-9A-F]+/[0-9A-F]+ of timeline 1, but this server left that timeline at [0-9A-F]+/[0-9A-F]+');
	$behind->stop;
	return;
};

subtest 'before version 17 a promoted standby has no slot: slot_lost, and it stays so' => sub {
	# From 17 on the slot would have to be one that is synchronized; this one is not.
	$standby->promote;
	is_stopped($standby, 'p', 'slot_lost', 'its replication slot was dropped');
	query($standby, 'INSERT INTO p VALUES (2000000)');
	$standby->restart;
	is_stopped($standby, 'p', 'slot_lost', 'its replication slot was dropped');
	resume_stops($standby, 'p', 'slot_lost', 'its replication slot was dropped');
	$standby->stop;

	# It has left Kafka as it was.
	$primary->start;
	wait_for_state($primary, 'p', 'running');
	insert();
	sent();
	return;
};

subtest 'a cold copy started beside the original, which has started since, is fenced and touches nothing' => sub {
	my $copy = PostgreSQL::Test::Cluster->new('cold_copy');

	$primary->stop;
	$primary->backup_fs_cold('cold');
	$primary->start;
	wait_for_state($primary, 'p', 'running');
	insert();
	sent();
	my $worker = worker_pid($primary, 'p');

	$copy->init_from_backup($primary, 'cold');
	$copy->start;
	is_stopped($copy, 'p', 'fenced', 'another live instance of this database owns the pipeline');
	query($copy, 'INSERT INTO p VALUES (3000000)');
	$copy->restart;
	is_stopped($copy, 'p', 'fenced', 'another live instance');
	resume_stops($copy, 'p', 'fenced', 'another live instance');
	insert();
	sent();
	is(worker_pid($primary, 'p'), $worker, 'the original never noticed');
	$copy->stop;
	return;
};

subtest 'of two equal copies the first to start owns the pipeline, and the other never steals it back' => sub {
	my $copy = PostgreSQL::Test::Cluster->new('equal_copy');

	$primary->stop;
	$primary->backup_fs_cold('equal');
	$copy->init_from_backup($primary, 'equal');
	$copy->start;
	wait_for_state($copy, 'p', 'running');
	my $worker = worker_pid($copy, 'p');
	query($copy, 'INSERT INTO p VALUES (' . ++$rows . ')');
	sent();

	$primary->start;
	is_stopped($primary, 'p', 'fenced', 'another live instance of this database owns the pipeline');
	query($primary, 'INSERT INTO p VALUES (4000000)');
	resume_stops($primary, 'p', 'fenced', 'another live instance');
	query($copy, 'INSERT INTO p VALUES (' . ++$rows . ')');
	sent();
	is(worker_pid($copy, 'p'), $worker, 'the owner never noticed');
	$copy->stop;
	return;
};
$primary->stop;

done_testing();
