# README's section "When something is wrong": the queries and the ways out, as they are written there.
use strict;
use warnings;

use File::Basename qw(dirname);
use Test::More;
use TransactionalKafka;

my $readme = PostgreSQL::Test::Utils::slurp_file(dirname(__FILE__) . '/../../README.md');
my ($section) = $readme =~ /^### When something is wrong\n(.*?)^### /ms;
my ($long, $aborted, $busy, $orphans, $fenced) = $section =~ /^```sql\n(.*?)^```/msg;
isnt($fenced, undef, 'five troubles');

# A broker of its own: "shop" is a name that other tests have as well.
my $broker = start_broker('readme');
my $node = new_node('main');
query($node, 'CREATE EXTENSION transactional_kafka');
create_server($node, broker => $broker->address);
query($node, 'CREATE TABLE shop (id int PRIMARY KEY)');
create_pipeline($node, 'shop', tables => ['shop'], options => { transaction_timeout => '1s', checkpoint_timeout => '1s' });
query($node, q(INSERT INTO shop VALUES (1); SELECT kafka.wait_for()));

# Checkpoints take long: the parts of each, and the distributions.
wait_until { query($node, 'SELECT committed_at IS NOT NULL FROM kafka.checkpoints') eq 't' } 'the mark of the checkpoint';
my $seen = query($node, $long);
like($seen, qr/^1\|1\|00:00:0\d[.\d]*\|00:00:0\d[.\d]*$/m, 'which part of a checkpoint takes long');
like($seen, qr/^flush_ms_p99\|[\d.]+$/m, '... and of most');

# Kafka aborts transactions: a checkpoint that was made again, and the way out.
my $log = -s $node->logfile;
set_failpoint($node, 'after-prepare-commit:wait');
query($node, 'INSERT INTO shop VALUES (2)');
wait_until { logged($node, qr/fail-point "after-prepare-commit" waits/, $log) } 'a prepared checkpoint';
wait_until { query($node, q(SELECT string_agg(state, ' ') FROM kafka.kafka_transactions)) =~ /CompleteAbort/ } 'the broker to abort it', 60;
set_failpoint($node, '');
is(query($node, q(SELECT kafka.wait_for(timeout => '60s'))), 't', 'a transaction that took too long');
like(query($node, $aborted), qr/^2\|2\|replayed\|./m, '... is found');
is(query($node, q(SELECT options->>'transaction_timeout' FROM kafka.pipelines)), '15min', '... and its way out taken');
wait_for_state($node, 'shop', 'running');

# All transactional ids are busy
like(query($node, $busy), qr/^\d+\|\d+\n\S+\.shop\.0\|/m, 'the waits for an id, and what each is at');
is(query($node, q(SELECT options->>'max_concurrent_checkpoints' FROM kafka.pipelines)), 3, '... and more of them');
wait_for_state($node, 'shop', 'running');

# A transaction was left open: 091 has one; here is none.
is(query($node, $orphans), '', 'there is no orphan');

# Fenced: 042 does what the second statement says.
my ($look, $accept) = $fenced =~ /(.*?;)\n(.*;)/s;
is(query($node, $look), 'running||', 'the pipeline is not fenced');
like($accept, qr/^CALL kafka\.accept_position\('shop', pg_current_wal_flush_lsn\(\)\);$/, '... and what there is to do if it is');

is_sent('shop', [ 1, 2 ], broker => $broker->address);
$node->stop;
done_testing();
