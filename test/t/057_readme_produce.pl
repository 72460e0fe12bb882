# README's sections on produce(): the statements, as they are written there.
use strict;
use warnings;

use File::Basename qw(dirname);
use Test::More;
use TransactionalKafka;

my $readme = PostgreSQL::Test::Utils::slurp_file(dirname(__FILE__) . '/../../README.md');
my ($section) = $readme =~ /^(## produce\(\)\n.*?^### Who may produce\n.*?)^### /ms;
my ($produce, $wait, $who, $rotate) = $section =~ /^```sql\n(.*?)^```/msg;
isnt($rotate, undef, 'four examples');

my $node = new_node('main');
create_server($node, name => 'events');
query($node, <<'SQL');
CREATE TABLE orders (id int PRIMARY KEY, state text);
CREATE ROLE shop_app;
CREATE ROLE reports;
CREATE ROLE anybody;
INSERT INTO orders VALUES (42, 'new');
SQL
create_pipeline($node, 'readme_produce', tables => ['orders'], server => 'events', options => { envelope => 'plain', topic_partitions => 1 });

query($node, $produce);
is(query($node, $wait), 't', 'read your own writes');
my @records = consume('order-events');
is_deeply(
	[ map { [ $_->{key}, $_->{payload}, @{ $_->{header_list} }[ 0 .. 5 ] ] } @records ],
	[ [ 42, '{"type":"paid","order":42}', trace => '7f3a', tag => 'new', tag => 'eu' ] ],
	'… among them the record');
is_deeply([ values_of('state', consume('readme_produce.public.orders')) ], [qw(paid new)], '… and the rows');

query($node, $who);
query($node, 'GRANT USAGE ON FOREIGN SERVER events TO anybody');
foreach my $case ([ shop_app => 'audit', 'order-events' ], [ reports => 'report.daily', 'report.weekly' ])
{
	my ($role, @topics) = @$case;

	query($node, "SET ROLE $role; SELECT kafka.produce('$_', 'x')") foreach @topics;
	foreach my $topic ('report.daily.x', 'audit2', $role eq 'reports' ? 'audit' : 'report.daily')
	{
		my $errors;
		$node->psql('postgres', "SET ROLE $role; SELECT kafka.produce('$topic', 'x')", stderr => \$errors);
		like($errors, qr/permission denied to produce to topic "$topic"/, "$role: not $topic");
	}
}
my $errors;
$node->psql('postgres', q(SET ROLE anybody; SELECT kafka.produce('audit', 'x')), stderr => \$errors);
like($errors, qr/permission denied to produce to topic "audit"/, 'who has none goes by the mapping for PUBLIC');
is(query($node, $rotate), 2, 'a new key');
wait_until { query($node, 'SELECT min(key_id) FROM kafka.produce_key') eq '2' } 'the end of the old key';
query($node, q(SELECT kafka.produce('audit', 'x')));
is(query($node, q(SELECT kafka.wait_for(timeout => '60s'))), 't', 'all in Kafka');
is(query($node, 'SELECT rejected_messages FROM kafka.stat_pipelines'), 0, 'nothing was rejected');

done_testing();
