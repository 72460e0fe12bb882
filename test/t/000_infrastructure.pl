# The tests' own tools: a real broker, a consumer that sees committed Kafka transactions only, a server that can crash.
use strict;
use warnings;

use IPC::Run ();
use Test::More;
use TransactionalKafka;

my $topic = 'infrastructure';
my $broker = start_broker('own');

is_deeply([ consume($topic) ], [], 'a topic that does not exist holds no records');

create_topic($topic, { partitions => 1, 'cleanup.policy' => 'compact' }, $broker->address);
is_deeply([ consume($topic, broker => $broker->address) ], [], 'an empty topic holds none');

sub send_records
{
	my ($records, @options) = @_;
	IPC::Run::run([ 'kcat', '-P', '-b', $broker->address, '-t', $topic, '-K', ':', '-Z', @options ],
		'<', \$records) or die 'kcat -P failed';
	return;
}
send_records(qq(k1:{"n":{"m":1}}\nk2:\n), '-X', 'transactional.id=infrastructure', '-H', 'a=1', '-H', 'b=2');
my @records = consume_until($topic, 2, broker => $broker->address);
is(scalar @records, 2, 'what a Kafka transaction committed is seen');
is_deeply([ map { $_->{key} } @records ], [ 'k1', 'k2' ], 'keys');
is_deeply($records[0]->{headers}, { a => '1', b => '2' }, 'headers');
is_deeply([ values_of('n.m', @records) ], [ 1, undef ], 'payloads, a null one too');
is($records[1]->{payload}, undef, 'null is not the empty string');

# A producer that is killed within its transaction leaves it open.  (kcat sends once it has read a full buffer.)
my ($in, $out) = ("k3:never\n" x 2000, '');
my $producer = IPC::Run::start(
	[ 'kcat', '-P', '-b', $broker->address, '-t', $topic, '-K', ':', '-X', 'transactional.id=open' ],
	'<', \$in, '>&', \$out);
wait_until
{
	$producer->pump_nb;
	consume($topic, broker => $broker->address, isolation => 'read_uncommitted') > 2;
}
'the uncommitted records';
is(scalar(() = consume($topic, broker => $broker->address)), 2, 'what is not committed is not seen');
$producer->kill_kill(grace => 0);

my $address = $broker->address;
$broker->kill9;
$broker->start;
is($broker->address, $address, 'a killed broker comes back where it was');
is(scalar(() = consume_until($topic, 2, broker => $address)), 2, 'with what it had');
$broker->suspend;
ok(!IPC::Run::run([ 'kcat', '-L', '-m', '1', '-b', $address ], '<', \undef, '>&', \$out),
	'a suspended broker does not answer');
$broker->resume;
wait_until { IPC::Run::run([ 'kcat', '-L', '-m', '5', '-b', $address ], '<', \undef, '>&', \$out) }
'a resumed broker';

my $node = new_node('main');
query($node, 'CREATE TABLE t (i int); INSERT INTO t VALUES (1)');
crash($node);
$node->start;
is(query($node, 'SELECT count(*) FROM t'), 1, 'a server starts again after kill -9');

done_testing();
