# A start that crashes, wherever, is started again: it never concludes anything from its own remains.
use strict;
use warnings;

use List::Util qw(shuffle);
use Test::More;
use TransactionalKafka;

my $seed = defined $ENV{TK_SEED} ? $ENV{TK_SEED} : time;
srand $seed;
note "seed: TK_SEED=$seed";

subtest 'a start that is crashed between any two of its steps, with Kafka down too, succeeds in the end' => sub {
	my $broker = start_broker('start');
	my $start = new_node('start');
	my $points = join '|', grep { $_ ne 'after-slot-create' }
	  (query($start, 'CREATE EXTENSION transactional_kafka; SELECT kafka.failpoints()') =~ /\A(.*)^after-begin$/ms)[0] =~ /\S+/g;
	my @points = split /\|/, $points;
	my @doubts = qw(after-flush before-prepare-commit after-prepare-commit after-kafka-commit after-slot-confirm);
	my $n = 0;

	cmp_ok(scalar @points, '>=', 7, "fail-points of a start: @points");
	create_server($start, broker => $broker->address);
	query($start, 'CREATE TABLE s (id int PRIMARY KEY)');

	# The first start of all: the crash leaves a slot that the next one doesn't know of.
	my $log = -s $start->logfile;
	set_failpoint($start, 'after-slot-create:kill');
	my $call = background_sql($start, q(CALL kafka.create_pipeline('s', 'kafka', '{s}')));
	wait_until { logged($start, qr/fail-point "after-slot-create" crashes/, $log) } 'the crash after the slot was made';
	await_crash($start);
	$call->{run}->finish;
	clear_failpoint($start);
	$start->start;
	wait_for_state($start, 's', 'running');
	is(query($start, 'SELECT count(*) FROM pg_replication_slots'), 1, 'one slot after a first start that crashed');

	foreach my $round (shuffle map { my $point = $_; map { [ $point, $_ ] } qw(error exit kill hang) } @points)
	{
		my ($point, $action) = @$round;
		my $doubt = $point =~ /redrive/ ? 'after-prepare-commit' : $doubts[ rand @doubts ];

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
		if ($action eq 'kill')
		{
			await_crash($start);
			clear_failpoint($start);
			$start->start;
		}
		else
		{
			set_failpoint($start, '');
		}
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
	between_ends { $broker->kill9 } $start, 's', $broker->address;
	query($start, 'INSERT INTO s VALUES (' . ++$n . ')');
	terminate_worker($start, 's');
	wait_until { pipeline_field($start, 's', q(state || ': ' || reason)) =~ /^retrying: .*Kafka failed while looking for/ }
	'a start without Kafka to fail, and to say so';
	$broker->start;
	start_anew($start, 's');
	wait_for_state($start, 's', 'running');

	is_sent('s', [ 1 .. $n ], broker => $broker->address);
	is(logged($start, qr/stops as/), 0, 'there was no verdict against the pipeline');
	$start->stop;
	$broker->kill9;
	return;
};

done_testing();
