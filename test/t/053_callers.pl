# kafka.produce() among 100 sessions at once, in parallel plans, and where nothing may be written.
use strict;
use warnings;

use IPC::Run ();
use Test::More;
use TransactionalKafka;

my $node = new_node('main', "max_connections = 140\nlog_min_error_statement = error\n");
create_server($node);
create_pipeline($node, 'callers', options => { envelope => 'plain', topic_partitions => 1, checkpoint_interval => '5ms',
		metadata_headers => 'false' });

sub payloads
{
	my ($topic, $enough) = @_;
	return [ map { $_->{payload} } $enough ? consume_until($topic, $enough) : consume($topic) ];
}

sub refusal
{
	my ($server, $sql) = @_;
	my $errors = '';

	isnt($server->psql('postgres', $sql, stderr => \$errors), 0, "refused: $sql");
	return $errors;
}

#
# 100 SERIALIZABLE transactions, all open at once (RHCLOUD-45638: an outbox table's index pages make them fail)
#
my @sessions;
my $begin = "BEGIN ISOLATION LEVEL SERIALIZABLE;\nSELECT count(*) FROM pg_am;\n";

foreach my $n (1 .. 100)
{
	my $s = { in => $begin, out => '' };

	$s->{run} = IPC::Run::start([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres') ],
		'<', \$s->{in}, '>&', \$s->{out});
	push @sessions, $s;
}

# Gives each a line, and waits until all have answered.
sub all_say
{
	my ($make, $answer) = @_;
	my $n = 0;

	$_->{in} .= $make->(++$n) foreach @sessions;
	wait_until
	{
		my $open = 0;
		foreach my $s (@sessions)
		{
			$s->{run}->pump_nb;
			$open++ unless $s->{out} =~ /$answer|ERROR|FATAL/;
		}
		!$open;
	}
	"$answer of all";
	return;
}

all_say(sub { "SELECT kafka.produce('callers_serial', '$_[0]', key => 'k$_[0]', headers => '{\"n\": $_[0]}');\nSELECT 'produced';\n" }, qr/produced/);
is(query($node, q(SELECT count(*) FROM pg_stat_activity WHERE state = 'idle in transaction' AND backend_xid IS NOT NULL)), 100,
	'100 SERIALIZABLE transactions have produced and are open');
is(query($node, q(SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock' AND relation IN
	(SELECT oid FROM pg_class WHERE relnamespace = 'kafka'::regnamespace AND relname = 'produce_key'))), 0,
	'… without a predicate lock on what produce() reads for it');
query($node, 'SELECT kafka.rotate_key()');
all_say(sub { "SELECT kafka.produce('callers_serial', '$_[0] again');\nCOMMIT;\nSELECT 'committed';\n" }, qr/committed/);
$_->{in} .= "\\q\n" foreach @sessions;
$_->{run}->finish foreach @sessions;
is(scalar(grep { $_->{out} =~ /ERROR|FATAL/ } @sessions), 0, '… all of them commit, a new key meanwhile or not')
  or diag(join "\n", map { $_->{out} } @sessions);
is(logged($node, qr/could not serialize/), 0, '… none fails to serialize');
is_deeply(
	[ sort @{ payloads('callers_serial', 200) } ],
	[ sort map { ($_, "$_ again") } 1 .. 100 ],
	'… and each record arrives once');

#
# Never in a parallel worker, where a transaction id can't be made
#
my $parallel = query($node, q(SELECT name FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query')));
query($node, <<"SQL");
CREATE TABLE callers_rows AS SELECT i FROM generate_series(1, 1000) i;
SET $parallel = on;
SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
SELECT kafka.produce('callers_parallel', i::text) FROM callers_rows ORDER BY i;
SELECT count(*) FROM callers_rows WHERE kafka.produce('callers_parallel', 'again')::text = '';
SQL
is_deeply(payloads('callers_parallel', 2000), [ 1 .. 1000, ('again') x 1000 ], 'parallel plans leave it alone');

#
# Where nothing is written
#
like(
	refusal($node, q(BEGIN READ ONLY; SELECT kafka.produce('callers_never', 'x'))),
	qr/cannot execute produce\(\) in a read-only transaction/,
	'not in a read-only transaction');
like(
	refusal($node, q(SET default_transaction_read_only = on; DO $$ BEGIN PERFORM kafka.produce('callers_never', 'x'); END $$)),
	qr/cannot execute produce\(\) in a read-only transaction/,
	'… nor from a function in one');
like(
	refusal($node, q(BEGIN READ ONLY; SELECT kafka.rotate_key())),
	qr/cannot execute rotate_key\(\) in a read-only transaction/,
	'rotate_key() neither');
$node->backup('standby');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'standby', has_streaming => 1);
$standby->start;
$node->wait_for_catchup($standby);
like(
	refusal($standby, q(SELECT kafka.produce('callers_never', 'x'))),
	qr/cannot execute produce\(\) during recovery/,
	'not on a standby');
like(refusal($standby, q(SELECT kafka.wait_for())), qr/wait_for\(\).*recovery|standby/, 'nor is there anything to wait for');
like(refusal($standby, q(SELECT kafka.rotate_key())), qr/rotate_key\(\).*recovery|standby/, '… or to rotate');
$standby->stop;
is(query($node, q(SELECT kafka.wait_for(timeout => '60s'))), 't', 'all in Kafka');
is_deeply(payloads('callers_never'), [], 'nothing of that was sent');

done_testing();
