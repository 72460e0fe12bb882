# What the TAP tests share: PostgreSQL servers with the extension, real brokers, a consumer that knows nothing of us,
# and waiting for a condition (no test waits for a time).
#
# test/check starts one broker for all tests (environment variable BROKER, here broker()).  A test that stops or
# suspends a broker starts one of its own (start_broker).
package TransactionalKafka;

use strict;
use warnings;

use Carp qw(croak);
use Cwd qw(abs_path);
use Exporter qw(import);
use File::Basename qw(basename dirname);
use IPC::Run ();
use JSON::PP ();
use KafkaRequest ();
use POSIX qw(WNOHANG);
use Time::HiRes qw(time);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More ();

our @EXPORT = qw(broker start_broker create_topic kafka_tool new_node freeze crash await_crash create_server create_pipeline pipeline_field state
  wait_for_state worker_pid with_new_worker between_ends terminate_worker query quote consume consume_until value values_of
  wait_until set_failpoint clear_failpoint logged start_anew table_pipeline is_sent all_sent fails_with is_stopped resume_stops background_sql);

# A test that hangs ends here, not with the whole run.
my $limit = $ENV{TK_TEST_LIMIT} || 600;
$SIG{ALRM} = sub { die "the test ran for more than $limit s\n" };
$SIG{INT} = $SIG{TERM} = sub { die "killed by SIG$_[0]\n" };
alarm $limit;

# A server that does not start ends this test, not all the others too.
{
	no warnings 'redefine';
	*PostgreSQL::Test::Cluster::BAIL_OUT = sub { die "@_\n" };
}

# Orphans become children of this process (PR_SET_CHILD_SUBREAPER = 36), so that crash() can bury a killed postmaster:
# while its process id is taken, if only by a zombie, no other one starts there.  A container may have no init.
eval { require 'sys/syscall.ph'; syscall(SYS_prctl(), 36, 1, 0, 0, 0); };

my $script = abs_path(dirname(__FILE__)) . '/../kafka/broker';
my $default_timeout = $PostgreSQL::Test::Utils::timeout_default || 180;
my @brokers;

# wait_until { condition } $what [, $timeout in s]: returns the condition's value once it is true; dies with
# "timed out waiting for $what".
sub wait_until(&$;$)
{
	my ($condition, $what, $timeout) = @_;
	my $end = time + ($timeout || $default_timeout);

	for (;;)
	{
		my $value = $condition->();
		return $value if $value;
		croak "timed out waiting for $what" if time > $end;
		select undef, undef, undef, 0.02;
	}
}

#
# Brokers
#

# The address of the broker that all tests share.
sub broker
{
	$ENV{BROKER} ||= start_broker('shared')->address;
	return $ENV{BROKER};
}

# A broker of this test's own: start_broker($name, 'broker.setting=value', ...).  Ends with the test.
sub start_broker
{
	my ($name, @settings) = @_;
	my $self = bless {
		directory => "$PostgreSQL::Test::Utils::tmp_check/" . basename($0, '.pl') . "_broker_$name",
		settings  => \@settings
	}, 'TransactionalKafka::Broker';

	push @brokers, $self;
	$self->start;
	return $self;
}

# Makes a topic as an administrator would: create_topic($topic, { partitions => 3, 'cleanup.policy' => 'compact' },
# $broker).  Rarely needed: pipelines make theirs.
sub create_topic
{
	my ($topic, $options, $broker) = @_;
	my %config = %{ $options || {} };
	my $partitions = delete $config{partitions} || 1;

	kafka_tool(
		'TopicCommand', $broker, '--create', '--topic', $topic, '--partitions', $partitions,
		map { ('--config', "$_=$config{$_}") } sort keys %config);
	return;
}

# A command of Kafka's own, by its class in org.apache.kafka.tools: kafka_tool('TopicCommand', $broker or undef for the
# shared one, '--list'); returns what it prints.  A last argument that is a reference to text is its standard input.
sub kafka_tool
{
	my ($class, $broker, @arguments) = @_;
	my $input = ref $arguments[-1] ? pop @arguments : \undef;
	my $output = '';
	my $jars = $ENV{KAFKA_JARS} || abs_path(dirname($script) . '/../../build/kafka');

	IPC::Run::run([ 'java', '-XX:TieredStopAtLevel=1', '-XX:+UseSerialGC', '-XX:-UsePerfData', '-cp', "$jars/*",
			"org.apache.kafka.tools.$class",
			'--bootstrap-server', $broker || broker(), @arguments ],
		'<', $input, '>&', \$output, IPC::Run::timeout($default_timeout))
	  or croak "$class @arguments: $output";
	return $output;
}

package TransactionalKafka::Broker;

sub address   { return $_[0]->{address}; }
sub directory { return $_[0]->{directory}; }

sub start
{
	my ($self) = @_;
	$self->{address} = $self->command('start', @{ $self->{settings} });
	return;
}

sub stop    { $_[0]->command('stop');    return; }
sub kill9   { $_[0]->command('kill');    return; }
sub suspend { $_[0]->command('suspend'); return; }
sub resume  { $_[0]->command('resume');  return; }

sub restart
{
	my ($self) = @_;
	$self->stop;
	$self->start;
	return;
}

sub command
{
	my ($self, $command, @arguments) = @_;
	my ($output, $errors) = ('', '');

	IPC::Run::run([ $script, $command, $self->{directory}, @arguments ],
		'<', \undef, '>', \$output, '2>', \$errors, IPC::Run::timeout(120))
	  or Carp::croak("broker $command: $errors");
	chomp $output;
	return $output;
}

package TransactionalKafka;

#
# PostgreSQL
#

# A started server with the library preloaded: new_node($name, "more = configuration\n", %parameters of init).
# A crash of any process stops it for good (a test shall not miss one), unless restart_after_crash => 1.
sub new_node
{
	my ($name, $configuration, %parameters) = @_;
	my $restart = delete $parameters{restart_after_crash};
	my $start   = delete $parameters{start};
	my $node    = PostgreSQL::Test::Cluster->new($name);

	$node->init(allows_streaming => 'logical', %parameters);
	$node->append_conf('postgresql.conf', join "\n",
		"shared_preload_libraries = 'transactional_kafka'",
		$ENV{TK_STAGE} ? slurp_file("$ENV{TK_STAGE}.conf") : '',
		'shared_buffers = 16MB',
		'max_connections = 40',
		'max_worker_processes = 40',
		'max_replication_slots = 40',
		'max_prepared_transactions = 10',
		'wal_keep_size = 0',
		'autovacuum_naptime = 10s',
		'log_statement = ddl',
		'restart_after_crash = ' . ($restart ? 'on' : 'off'),
		$configuration || '');
	$node->start unless defined $start && !$start;
	return $node;
}

# SIGSTOP; returns once the process stands still, and whether it does: it may have ended.
sub freeze
{
	my ($pid) = @_;
	my $state;

	kill 'STOP', $pid;
	wait_until { (undef, undef, $state) = process_stat("/proc/$pid/stat"); !defined $state || $state =~ /[TZX]/ }
	"process $pid to stand still";
	return defined $state && $state eq 'T';
}

# kill -9 of the server with all its processes, returns once the last one is gone: start it again at will.
sub crash
{
	my ($node) = @_;
	my $postmaster = (split /\n/, slurp_file($node->data_dir . '/postmaster.pid'))[0];

	# the postmaster first: it must neither start others meanwhile nor see its children die
	freeze($postmaster);
	my @processes = ($postmaster, children($postmaster));

	$node->kill9;
	kill 'KILL', @processes;
	wait_until { waitpid $_, WNOHANG foreach @processes; !grep { running($_) } @processes }
	'the end of a killed server', 30;
	return;
}

# The same for a server of which one process was killed: it ends by itself (restart_after_crash is off).
sub await_crash
{
	my ($node) = @_;
	my $postmaster = $node->{_pid};

	wait_until { waitpid $postmaster, WNOHANG; !running($postmaster) } 'the end of a crashed server', 60;
	$node->_update_pid(0);
	return;
}

sub children
{
	my ($parent) = @_;
	my @children;

	foreach my $file (glob '/proc/[0-9]*/stat')
	{
		my ($pid, $ppid) = process_stat($file);
		push @children, $pid if defined $ppid && $ppid == $parent;
	}
	return @children;
}

sub running
{
	my ($pid) = @_;
	my (undef, undef, $state) = process_stat("/proc/$pid/stat");
	return defined $state && $state ne 'Z';
}

# pid, parent, state
sub process_stat
{
	my ($file) = @_;
	open my $in, '<', $file or return;
	my $line = <$in>;
	return unless defined $line && $line =~ /^(\d+) \(.*\) (\S) (\d+) /s;
	return ($1, $3, $2);
}

# One query, its rows as psql prints them unaligned; a failed one dies with the server's message.
sub query
{
	my ($node, $sql, %parameters) = @_;
	my $database = delete $parameters{database} || 'postgres';

	return $node->safe_psql($database, $sql, %parameters);
}

sub quote
{
	my ($text) = @_;
	$text =~ s/'/''/g;
	return "'$text'";
}

# The extension and a server ("kafka") in a database: create_server($node, name =>, broker =>, database =>,
# options => { property => value }).
sub create_server
{
	my ($node, %o) = @_;
	my %options = ('bootstrap.servers' => $o{broker} || broker(), %{ $o{options} || {} });
	my $list = join ', ', map { "\"$_\" " . quote($options{$_}) } sort keys %options;
	my $name = $o{name} || 'kafka';

	query($node, <<"SQL", database => $o{database});
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS transactional_kafka;
CREATE SERVER IF NOT EXISTS $name FOREIGN DATA WRAPPER transactional_kafka OPTIONS ($list);
SQL
	return;
}

# create_pipeline($node, $name, tables => [...] | publication => ..., options => {...}, server => 'kafka',
# database => ...); returns when the call does.
sub create_pipeline
{
	my ($node, $name, %o) = @_;
	my @arguments = (quote($name), quote($o{server} || 'kafka'));

	push @arguments, 'tables => ' . quote('{' . join(',', map { s/(["\\])/\\$1/gr =~ s/(.*)/"$1"/sr } @{ $o{tables} }) . '}')
	  if $o{tables};
	push @arguments, 'publication => ' . quote($o{publication}) if $o{publication};
	if ($o{options})
	{
		# plain bytes, like the names that tests pass: else Perl would encode those twice
		my $options = JSON::PP->new->canonical->ascii->encode($o{options});
		utf8::downgrade($options);
		push @arguments, 'options => ' . quote($options);
	}
	query($node, 'CALL kafka.create_pipeline(' . join(', ', @arguments) . ')', database => $o{database});
	return;
}

# A column of the pipeline's row in kafka.pipelines.
sub pipeline_field
{
	my ($node, $pipeline, $column, %parameters) = @_;

	return query($node, "SELECT $column FROM kafka.pipelines WHERE pipeline = " . quote($pipeline), %parameters);
}

sub state
{
	my ($node, $pipeline, %parameters) = @_;
	return pipeline_field($node, $pipeline, 'state', %parameters);
}

sub wait_for_state
{
	my ($node, $pipeline, $state, $timeout) = @_;
	my $last = '';

	return wait_until { $last = state($node, $pipeline); $last eq $state }
	"state $state of pipeline $pipeline", $timeout;
}

# The worker's process, undef if there is none.
sub worker_pid
{
	my ($node, $pipeline) = @_;
	my $pid = query($node,
		'SELECT pid FROM pg_stat_activity WHERE backend_type = ' . quote("transactional_kafka pipeline $pipeline"));

	return $pid eq '' ? undef : $pid;
}

# with_new_worker { ... } $node, $pipeline: does something that makes the worker start anew, such as altering its
# pipeline; returns once the next one runs.
sub with_new_worker(&$$)
{
	my ($change, $node, $pipeline) = @_;
	my $old = worker_pid($node, $pipeline) || '';

	$change->();
	return wait_until { (worker_pid($node, $pipeline) || $old) ne $old && state($node, $pipeline) eq 'running' }
	"another worker of pipeline $pipeline";
}

# between_ends { ... } $node, $pipeline, $address: takes the broker at that address down while it is not at the end of any
# of the pipeline's transactions, for which the worker stands still.  A broker without leaders for its partitions, as one
# that stops or starts alone, takes them for deleted: what it finds in PrepareCommit or PrepareAbort gets no markers, stays
# open for ever, and is complete for the coordinator (Kafka's bug: "Couldn't find leader endpoint for partitions ... likely
# deleted already and hence can be skipped").
sub between_ends(&$$$)
{
	my ($down, $node, $pipeline, $address) = @_;
	my $prefix = query($node,
		q{SELECT concat_ws('.', 'pg', system_identifier, d.oid) FROM pg_control_system(), pg_database d WHERE datname = 'postgres'});
	my $pid = worker_pid($node, $pipeline);
	my $stands = $pid && freeze($pid);

	my $ended = sub {
		my $transaction = KafkaRequest::describe_transaction($address, "$prefix.$pipeline.$_[0]");

		# 105: it knows no such id
		return $transaction->{error} == 105 || ($transaction->{error} == 0 && $transaction->{state} !~ /^Prepare/);
	};
	wait_until { !grep { !$ended->($_) } 0 .. 7 } 'the broker to end what it is ending';
	$down->();
	kill 'CONT', $pid if $stands;
	return;
}

# pg_terminate_backend of the worker: an end without a word in the middle of whatever it does, but no crash of the
# server.  Returns once that process is gone; the launcher starts the next one.
sub terminate_worker
{
	my ($node, $pipeline) = @_;
	my $pid = wait_until { worker_pid($node, $pipeline) } "a worker of pipeline $pipeline";

	query($node, "SELECT pg_terminate_backend($pid)");
	wait_until { !running($pid) } "the end of worker $pid";
	return $pid;
}

# set_failpoint($node, 'after-flush:exit'), ... 'after-append:kill@150' for the n-th visit of a process, '' for none.
# Every process that starts after this returned knows it; one that runs hears of it soon.
sub set_failpoint
{
	my ($node, $setting) = @_;

	query($node, 'ALTER SYSTEM SET transactional_kafka.failpoints = ' . quote($setting));
	$node->reload;
	wait_until { query($node, 'SHOW transactional_kafka.failpoints') eq $setting } "fail-point '$setting' in force";
	return;
}

# set_failpoint($node, '') for a server that is down.
sub clear_failpoint
{
	my ($node) = @_;
	my $file   = $node->data_dir . '/postgresql.auto.conf';
	my $conf   = slurp_file($file);

	$conf =~ s/^transactional_kafka\.failpoints.*\n//mg;
	open my $out, '>', $file or die "$file: $!";
	print $out $conf;
	close $out or die "$file: $!";
	return;
}

# How often the server's log has it (a regular expression); from an offset, such as -s $node->logfile once was.
sub logged
{
	my ($node, $pattern, $offset) = @_;
	my $log = slurp_file($node->logfile, $offset || 0);

	return scalar(() = $log =~ /$pattern/g);
}

# A worker that waits out its backoff starts now, one that runs starts anew: what any change of the definition does.
sub start_anew
{
	my ($node, $pipeline) = @_;

	query($node, 'SELECT kafka.alter_pipeline(' . quote($pipeline) . ", '{}')");
	return;
}

#
# The independent consumer: kcat, read_committed, from the beginning to the last stable offset
#

# consume($topic, broker =>, isolation => 'read_uncommitted', from => offset): the records as hashes { topic, partition,
# offset, ts, key, payload, headers => { name => value }, header_list => [name, value, ...] }, ordered by partition and
# offset; key, payload and header values are text or undef.  A topic that does not exist holds none.
sub consume
{
	my ($topic, %o) = @_;
	my ($output, $errors) = ('', '');
	my @records;
	my $done = IPC::Run::run([
			qw(kcat -C -J -q -e -u -o), defined $o{from} ? $o{from} : 'beginning', '-t', $topic, '-b', $o{broker} || broker(),
			map { ('-X', $_) } (
				'isolation.level=' . ($o{isolation} || 'read_committed'),
				'fetch.wait.max.ms=5', 'fetch.error.backoff.ms=20',
				'allow.auto.create.topics=false', 'topic.metadata.refresh.fast.interval.ms=50')
		],
		'<', \undef, '>', \$output, '2>', \$errors, IPC::Run::timeout($default_timeout));

	if (!$done)
	{
		return () if $errors =~ /Unknown topic or partition/;
		croak "kcat failed: $errors";
	}
	foreach my $line (split /\n/, $output)
	{
		my $record = JSON::PP::decode_json($line);
		my @list = @{ $record->{headers} || [] };

		$record->{header_list} = [@list];
		$record->{headers} = {@list};
		push @records, $record;
	}
	@records = sort { $a->{partition} <=> $b->{partition} || $a->{offset} <=> $b->{offset} } @records;
	return @records;
}

# Consumes again and again until there are $enough records (a number, or a function of the list that says so).  More
# than enough is returned too: the test compares.
sub consume_until
{
	my ($topic, $enough, %o) = @_;
	my $timeout = delete $o{timeout};
	my @records;
	my $what = ref $enough ? "records of $topic" : "$enough records of $topic";

	wait_until {
		@records = consume($topic, %o);
		ref $enough ? $enough->(@records) : @records >= $enough;
	}
	$what, $timeout;
	return @records;
}

my $json = JSON::PP->new->allow_nonref->allow_bignum;

# A record's payload as data; undef for a tombstone.
sub value
{
	my ($record) = @_;
	return defined $record->{payload} ? $json->decode($record->{payload}) : undef;
}

# One field of each record's payload: values_of('after.id', @records), the way into nested objects with dots.
sub values_of
{
	my ($path, @records) = @_;

	return map {
		my $value = value($_);
		$value = ref $value eq 'HASH' ? $value->{$_} : undef foreach split /\./, $path;
		$value;
	} @records;
}

#
# Pipelines of one table, both of one name, whose only column is id
#

# Makes table and pipeline, and sends a first row, 1.
sub table_pipeline
{
	my ($node, $name, %o) = @_;
	my %consumer = $o{broker} ? (broker => delete $o{broker}) : ();

	query($node, "CREATE TABLE $name (id int PRIMARY KEY)");
	create_pipeline($node, $name, tables => [$name], %o);
	query($node, "INSERT INTO $name VALUES (1)");
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_sent($name, [1], %consumer);
}

# A test: exactly these ids are in Kafka, each once, in this order.
sub is_sent
{
	my ($name, $ids, %consumer) = @_;
	my $last = $ids->[-1];
	my @records = consume_until("$name.public.$name",
		sub { my @seen = values_of('after.id', @_); grep { $_ == $last } @seen }, %consumer);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return Test::More::is_deeply([ values_of('after.id', @records) ], $ids, "$name: Kafka holds $ids->[0] .. $last, each once");
}

# Tests: the pipeline is in that state, says why and what to do, and has no worker.
sub is_stopped
{
	my ($node, $name, $state, $reason) = @_;
	my ($seen, $hint, $why);

	wait_until
	{
		($seen, $hint, $why) = split /\|/, query($node,
			q(SELECT p.state || coalesce(' in process ' || s.pid, ''), p.hint, p.reason FROM kafka.pipelines p )
			  . q(JOIN kafka.stat_pipelines s USING (pipeline) WHERE pipeline = ) . quote($name)), 3;
		$seen eq $state;
	}
	"state $state of pipeline $name";
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	Test::More::like($why, qr/$reason/, "$name: $state, with its reason");
	Test::More::isnt($hint, '', "$name: and a hint");
	return;
}

# Tests: all that has committed so far is in Kafka.
sub all_sent
{
	my ($node, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return Test::More::is(query($node, "SELECT kafka.wait_for(pipeline => '$name', timeout => '60s')"), 't', "$name has sent all");
}

# Tests: the SQL is refused, with that in its error.
sub fails_with
{
	my ($node, $sql, $pattern, $name, $database) = @_;
	my ($status, undef, $errors) = $node->psql($database || 'postgres', $sql);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	Test::More::isnt($status, 0, $name);
	Test::More::like($errors, $pattern, '… and says why');
	return;
}

# Tests: resume() tries, and the pipeline stops as that: the call says so, the view does, the log does.
sub resume_stops
{
	my ($node, $name, $state, $reason) = @_;
	my $log = -s $node->logfile;
	my $errors;
	my $failed = $node->psql('postgres', "CALL kafka.resume('$name')", stderr => \$errors);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	Test::More::isnt($failed, 0, "$name: resume fails");
	Test::More::like($errors, qr/pipeline "$name" has stopped \($state\): .*$reason/, "$name: with the reason");
	is_stopped($node, $name, $state, $reason);
	wait_until
	{
		logged($node,
			qr/WARNING:  pipeline "$name" has stopped \($state\): the server keeps all WAL from its position on/, $log);
	}
	"a warning of retained WAL for $name";
	return;
}

# psql with some SQL, running by itself: { run => IPC::Run's handle, output =>, errors => }; finish it by ->{run}->finish.
sub background_sql
{
	my ($node, $sql) = @_;
	my $call = { output => '', errors => '' };

	$call->{run} = IPC::Run::start([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'), '-c', $sql ],
		'<', \undef, '>', \$call->{output}, '2>', \$call->{errors});
	return $call;
}

END
{
	my $status = $?;
	alarm 0;
	$_->kill9 foreach @brokers;
	$? = $status;
}

1;
