# kafka.rotate_key(): a new signing key under load loses nothing, and the old one goes when nothing can need it.
use strict;
use warnings;

use IPC::Run ();
use Test::More;
use TransactionalKafka;

my $node = new_node('main');
create_server($node);
create_pipeline($node, $_, options => { envelope => 'plain', topic_partitions => 1, checkpoint_interval => '5ms',
		metadata_headers => 'false' })
  foreach qw(keys_a keys_b);

sub keys_of
{
	return query($node, q(SELECT string_agg(key_id::text, ',' ORDER BY key_id) FROM kafka.produce_key), @_);
}

sub payloads
{
	my ($topic, $enough) = @_;
	return [ map { $_->{payload} } consume_until($topic, $enough) ];
}

# A session that stays, by hand: say($session, SQL) returns once it has been carried out.
sub session
{
	my $s = { in => '', out => '' };

	$s->{run} = IPC::Run::start([ 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres') ],
		'<', \$s->{in}, '>&', \$s->{out});
	return $s;
}

sub say_to
{
	my ($s, $sql) = @_;
	my $said = 'said ' . ++$s->{said} . '.';

	$s->{in} .= "$sql;\nSELECT '$said';\n";
	wait_until { $s->{run}->pump_nb; $s->{out} =~ /\Q$said\E/ } $said;
	return;
}

sub leave
{
	my ($s) = @_;
	$s->{in} .= "\\q\n";
	$s->{run}->finish;
	unlike($s->{out}, qr/ERROR/, 'a session without errors');
	return;
}

sub rejected
{
	return query($node, 'SELECT sum(rejected_messages) FROM kafka.stat_pipelines');
}

my $first = keys_of();
like($first, qr/^\d+$/, 'one key at first');

#
# Under load
#
my $load = "$PostgreSQL::Test::Utils::tmp_check/keys.pgbench";
PostgreSQL::Test::Utils::append_to_file($load, <<'SQL');
\set n :n + 1
BEGIN;
SELECT kafka.produce('keys_load_a', :client_id || '.' || :n, pipeline => 'keys_a');
SELECT kafka.produce('keys_load_b', :client_id || '.' || :n, pipeline => 'keys_b');
SELECT kafka.produce('keys_load_a', :client_id || '.' || :n || ' again', pipeline => 'keys_a');
COMMIT;
SQL
my ($output, $errors) = ('', '');
my $transactions = 400;
my $bench = IPC::Run::start([ 'pgbench', '-n', '-c', '8', '-j', '2', '-t', $transactions, '-R', '300', '-D', 'n=0', '-f', $load,
		$node->connstr('postgres') ], '<', \undef, '>', \$output, '2>', \$errors);
my $rotations = 0;

# pump_nb dies once the process has ended
sub goes_on { return eval { $bench->pump_nb; 1 } && $bench->pumpable; }

wait_until { query($node, q(SELECT max(records) FROM kafka.stat_pipelines)) > 0 } 'the load to begin';
while (goes_on())
{
	my $key = query($node, 'SELECT kafka.rotate_key()');

	wait_until { keys_of() eq $key } "the end of the keys before $key";
	$rotations++ if goes_on();
}
ok($bench->finish, 'load while keys are rotated') or diag($output, $errors);
like($output, qr{actually processed: ${\ (8 * $transactions)}/}, '… every transaction commits');
cmp_ok($rotations, '>', 1, "… with $rotations rotations");
is(query($node, q(SELECT kafka.wait_for(timeout => '60s'))), 't', 'all in Kafka');
is(rejected(), 0, '… no message was rejected');
my @wanted = sort map { my $client = $_; map { "$client.$_" } 1 .. $transactions } 0 .. 7;
is_deeply([ sort @{ payloads('keys_load_b', 8 * $transactions) } ], \@wanted, '… each record once');
is_deeply(
	[ sort @{ payloads('keys_load_a', 16 * $transactions) } ],
	[ sort map { ($_, "$_ again") } @wanted ],
	'… likewise through the other pipeline');

#
# The old key stays as long as a transaction may have signed with it, and as a pipeline has not sent it
#
my $last = query($node, 'SELECT kafka.rotate_key()');
wait_until { keys_of() eq $last } 'the end of the keys of before';

my $old = session();
say_to($old, q(BEGIN; SELECT kafka.produce('keys_old', 'before', pipeline => 'keys_a')));
my $repeatable = session();
say_to($repeatable, q(BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class));
query($node, q(BEGIN; SELECT kafka.produce('keys_prepared', 'prepared', pipeline => 'keys_a'); PREPARE TRANSACTION 'keys'));
query($node, q(CALL kafka.pause('keys_b')));
query($node, q(SELECT kafka.produce('keys_paused', 'old', pipeline => 'keys_b')));

# in the transaction that makes it the new key is not used, nor after a rollback
query($node, <<'SQL');
BEGIN;
SELECT kafka.produce('keys_own', '1', pipeline => 'keys_a');
SAVEPOINT s;
SELECT kafka.rotate_key();
SELECT kafka.produce('keys_own', 'never', pipeline => 'keys_a');
ROLLBACK TO s;
SELECT kafka.produce('keys_own', '2', pipeline => 'keys_a');
COMMIT;
BEGIN;
SELECT kafka.produce('keys_own', 'never', pipeline => 'keys_a');
SELECT kafka.rotate_key();
ROLLBACK;
SELECT kafka.produce('keys_own', '3', pipeline => 'keys_a');
BEGIN;
SELECT kafka.rotate_key();
SELECT kafka.produce('keys_own', '4', pipeline => 'keys_a');
COMMIT;
SQL
is_deeply(payloads('keys_own', 4), [ 1 .. 4 ], 'produce() beside rotate_key() in one transaction');
is($node->psql('postgres', q(BEGIN; SELECT kafka.rotate_key(); PREPARE TRANSACTION 'no')), 3, 'rotate_key() can not be prepared');
my ($keep, $new) = split /,/, keys_of();
is($keep, $last, 'the old key is kept');
cmp_ok($new, '>', $last, '… beside the new one');

# $old knows its transaction's key, the others read one now that is newer than their snapshot
wait_until { state($node, 'keys_a') eq 'running' } 'keys_a to know the new key';
say_to($old, q(SELECT kafka.produce('keys_old', 'after', pipeline => 'keys_a'); COMMIT));
say_to($repeatable, q(SELECT kafka.produce('keys_old', 'old snapshot', pipeline => 'keys_a'); COMMIT));
is_deeply(payloads('keys_old', 3), [ 'before', 'after', 'old snapshot' ],
	'one transaction, signed with two keys; and one with a snapshot from before its key');

# What the paused pipeline was given last is signed with the old one: after a restart too, when nobody knows how far it is
query($node, q(SELECT kafka.produce('keys_paused', 'still old', pipeline => 'keys_b')));
leave($_) foreach $old, $repeatable;
$node->restart;
wait_until { state($node, 'keys_a') eq 'running' } 'keys_a after the restart';
query($node, q(SELECT kafka.produce('keys_paused', 'after a restart', pipeline => 'keys_b')));
query($node, q(COMMIT PREPARED 'keys'));
is_deeply(payloads('keys_prepared', 1), ['prepared'], 'what was prepared before the rotation is genuine after it');
is(keys_of(), "$keep,$new", 'a paused pipeline keeps the old key');
query($node, q(CALL kafka.resume('keys_b')));
is_deeply(payloads('keys_paused', 3), [ 'old', 'still old', 'after a restart' ], '… and sends what it was given meanwhile');
wait_until { keys_of() eq $new } 'the end of the old key';
pass('once it has sent all of it the old key goes');
is(rejected(), 0, 'no message was rejected');

# A crash of the server right after a rotation: what comes before the workers have said anything is genuine too
query($node, q(CALL kafka.pause('keys_b')));
query($node, q(SELECT kafka.produce('keys_crash', 'before', pipeline => 'keys_b')));
$last = query($node, 'SELECT kafka.rotate_key()');
crash($node);
$node->start;
query($node, "SELECT kafka.produce('keys_crash', 'after', pipeline => '$_')") foreach qw(keys_a keys_b);
query($node, q(CALL kafka.resume('keys_b')));
is_deeply([ sort @{ payloads('keys_crash', 3) } ], [ 'after', 'after', 'before' ], 'a rotation and a crash lose nothing');
wait_until { keys_of() eq $last } 'the end of the old key';
is(rejected(), 0, 'no message was rejected');

# A pipeline made after a rotation starts with the newest key only
create_pipeline($node, 'keys_c', options => { envelope => 'plain', topic_partitions => 1 });
query($node, q(SELECT kafka.produce('keys_c', '1', pipeline => 'keys_c')));
is_deeply(payloads('keys_c', 1), ['1'], 'a new pipeline');

done_testing();
