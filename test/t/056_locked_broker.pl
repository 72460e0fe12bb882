# A broker that lets in only whom it knows, over TLS: what works with it, what each fault says, that no fault makes a storm
# of attempts, and that each heals once it is mended.
use strict;
use warnings;

use Test::More;
use KafkaRequest;
use LockedBroker;
use TransactionalKafka;

my $locked  = LockedBroker->new;
my $address = $locked->address;
my $node    = new_node('main');

foreach my $principal ('User:shop', 'User:CN=client')
{
	$locked->grant($principal, transactional_id => 'pg.', 'Write');
	$locked->grant($principal, topic => 'pg.', $_) foreach qw(Write Read Create DescribeConfigs);
	$locked->grant($principal, topic => 'locked_', $_) foreach qw(Write Create);
}

sub sql_of
{
	my ($action, %options) = @_;
	return join ', ', map { "$action \"$_\"" . (defined $options{$_} ? ' ' . quote($options{$_}) : '') } sort keys %options;
}

# Options of servers and user mappings, as nobody logs them; in force at once, and all together: a certificate without its
# key would stop the pipeline.
sub alter
{
	my (@changes) = @_;
	my $sql = '';

	while (my ($what, $action, $options) = splice @changes, 0, 3)
	{
		$sql .= "ALTER $what OPTIONS (" . sql_of($action, %$options) . ');';
	}
	query($node, "SET log_statement = none; SET log_min_error_statement = panic; BEGIN; $sql COMMIT");
	return;
}

# The pipeline is held up by what was just done, says why, in the view and in the log, and each of its starts asks the
# broker only a few times ($refused: what the broker's log says of each attempt, undef if it doesn't notice).
sub is_refused
{
	my ($name, $reason, $refused, $what) = @_;
	my $log        = -s $node->logfile;
	my $broker_log = $locked->log_size;
	my $starts     = 0;

	query($node, "INSERT INTO $name SELECT max(id) + 1 FROM $name");
	wait_until { ($starts = logged($node, qr/ERROR:  pipeline "$name": .*$reason/, $log)) >= 2 } "two failures of $name", 60;
	my ($state, $why) = split /\|/, pipeline_field($node, $name, 'state, reason'), 2;
	note $why;
	is($state, 'retrying', "$what: the log says why, and the pipeline tries again");
	like($why, $reason, '... the view says why too');
	if (defined $refused)
	{
		my $attempts = $locked->log_has($refused, $broker_log);

		# what the start before was still at, and librdkafka's connections of their own
		note "$attempts attempts in $starts starts";
		cmp_ok($attempts, '>=', 1, '... the broker has noticed');
		cmp_ok($attempts, '<=', 10 * $starts, '... of a few attempts a start');
	}
	return;
}

sub heals
{
	my ($name, $what) = @_;
	my $last = query($node, "SELECT max(id) FROM $name");

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_sent($name, [ 1 .. $last ], broker => $address);
	wait_for_state($node, $name, 'running');    # a re-driven checkpoint is in Kafka before that
	is(pipeline_field($node, $name, q(state || coalesce(reason, ''))), 'running', "$what: it heals by itself once that is mended");
	return;
}

#
# Who we are: SASL over TLS
#
$locked->make_server($node, 'SASL_SSL', name => 'sasl');
table_pipeline($node, 'locked_sasl', server => 'sasl', broker => $address);

alter('USER MAPPING FOR CURRENT_USER SERVER sasl', SET => { 'sasl.password' => 'Open-Sesame' });
is_refused('locked_sasl', qr/localhost:\d+.*Authentication failed: Invalid username or password/,
	qr/Failed authentication.*Invalid username or password/, 'a wrong password');
alter('USER MAPPING FOR CURRENT_USER SERVER sasl', SET => { 'sasl.password' => 'plain-secret' });
heals('locked_sasl', 'a wrong password');

# Whom we trust
my %right = $locked->options('SASL_SSL');
alter('SERVER sasl', SET => { 'bootstrap.servers' => $locked->listener('EXPIRED') });
is_refused('locked_sasl', qr/certificate of localhost:\d+ is refused: certificate has expired/, qr/Failed authentication/, 'an expired certificate');
alter('SERVER sasl', SET => { 'bootstrap.servers' => $right{'bootstrap.servers'} =~ s/localhost/127.0.0.1/r });
is_refused('locked_sasl', qr/certificate of 127\.0\.0\.1:\d+ is refused: IP address mismatch/, qr/Failed authentication/, 'a wrong host name');
alter('SERVER sasl', SET => { 'bootstrap.servers' => $right{'bootstrap.servers'}, 'ssl.ca.pem' => $locked->text('other-ca.pem') });
is_refused('locked_sasl', qr/certificate of localhost:\d+ is refused: unable to get local issuer certificate/, qr/Failed authentication/, 'an unknown CA');
alter('SERVER sasl', SET => { 'ssl.ca.pem' => $right{'ssl.ca.pem'} });
heals('locked_sasl', 'a certificate that is not trusted');

#
# Who we are: client certificates
#
$locked->make_server($node, 'SSL', name => 'mutual');
table_pipeline($node, 'locked_mutual', server => 'mutual', broker => $address);
my ($server, $mapping) = ('SERVER mutual', 'USER MAPPING FOR CURRENT_USER SERVER mutual');
alter($server, SET => { 'ssl.certificate.pem' => $locked->text('expired-client.pem') },
	$mapping, SET => { 'ssl.key.pem' => $locked->text('expired-client.key') });
is_refused('locked_mutual', qr/client certificate \(ssl\.certificate\.pem\) has expired: .*localhost:\d+/, qr/Failed authentication/, 'an expired client certificate');
alter($server, DROP => { 'ssl.certificate.pem' => undef }, $mapping, DROP => { 'ssl.key.pem' => undef, 'ssl.key.password' => undef });
is_refused('locked_mutual', qr/broker wants a client certificate, and none is set \(ssl\.certificate\.pem\): .*localhost:\d+/, qr/Failed authentication/, 'no client certificate');
alter($server, ADD => { 'ssl.certificate.pem' => $locked->text('client.pem') }, $mapping, ADD => { $locked->secrets('SSL') });
heals('locked_mutual', 'a client certificate');

#
# The re-drive, over connections of our own, goes in by the same door
#
foreach my $name ('locked_sasl', 'locked_mutual')
{
	my $log = -s $node->logfile;

	set_failpoint($node, 'after-prepare-commit:wait');
	query($node, "INSERT INTO $name SELECT max(id) + 1 FROM $name");
	wait_until { logged($node, qr/fail-point "after-prepare-commit" waits/, $log) } 'a prepared checkpoint', 30;
	my $id = query($node, "SELECT checkpoint_id FROM kafka.checkpoints WHERE pipeline = '$name' AND state = 'prepared'");
	query($node, q(ALTER SYSTEM SET transactional_kafka.failpoints = ''));
	terminate_worker($node, $name);
	set_failpoint($node, '');
	heals($name, 're-drive');
	is(query($node, "SELECT state, attempt, outcome FROM kafka.checkpoints WHERE pipeline = '$name' AND checkpoint_id = $id"),
		'committed|1|redriven', "$name: what was prepared is committed by the next start");
	is(query($node, "SELECT count(*) FROM kafka.kafka_transactions WHERE pipeline = '$name' AND state IS NOT NULL"), 2,
		'... and its transactions are listed');
}
# A mapping that only says where its role may produce is no account: PUBLIC's is.
query($node, q(SET log_statement = none; CREATE USER MAPPING FOR PUBLIC SERVER sasl OPTIONS ("sasl.username" 'shop', "sasl.password" 'plain-secret');
	DROP USER MAPPING FOR CURRENT_USER SERVER sasl; CREATE USER MAPPING FOR CURRENT_USER SERVER sasl OPTIONS (allowed_topics 'some')));
query($node, 'INSERT INTO locked_sasl SELECT max(id) + 1 FROM locked_sasl');
heals('locked_sasl', q(PUBLIC's account));
is(logged($node, qr/PANIC|terminated by signal/), 0, 'no process of the server has crashed');
done_testing();
