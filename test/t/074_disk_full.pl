# The server's disk is full: what PostgreSQL goes on with, it goes on with; the pipeline tries again, with pauses, and
# says why; and when there is room again all arrives once, in commit order.
#
# The disk is a small one of its own (test/run_as).
use strict;
use warnings;

use IPC::Run ();
use Test::More;
use TransactionalKafka;

my $disk = $ENV{TK_SMALL_DISK} || '';
my ($blocks) = -d $disk ? `df --output=size,target '$disk'` =~ /^\s*(\d+)\s+\Q$disk\E$/m : ();

# Without it these tests can't be made, and that is no success.
die "no small disk to fill: test/run_as could not mount one (TK_SMALL_DISK='$disk')\n" unless $blocks && $blocks <= 256 * 1024;

# These directories of the data directory are on the small disk.
sub move_to_disk
{
	my ($node, @directories) = @_;

	foreach my $directory (@directories)
	{
		my $there = "$disk/" . $node->name . "_$directory";
		PostgreSQL::Test::Utils::system_or_bail('mv', $node->data_dir . "/$directory", $there);
		symlink $there, $node->data_dir . "/$directory" or die "symlink: $!";
	}
	return;
}

# To the last byte
sub fill
{
	open my $file, '>>', "$disk/filler" or die "filler: $!";
	foreach my $size (65536, 512)
	{
		while (my $n = syswrite $file, "\0" x $size) { }
		die "filler: $!" unless $!{ENOSPC};
	}
	close $file;
	return;
}

sub make_room { unlink "$disk/filler" or die "filler: $!"; return; }

sub failures { return query($_[0], q{SELECT failures FROM kafka.stat_pipelines}); }

# The numbers (keys) of what was sent; the values are large.
sub numbers
{
	my ($topic) = @_;
	my $output;

	IPC::Run::run([ qw(kcat -C -q -e -u -o beginning -f), '%k ', '-t', $topic, '-b', broker(), '-X', 'isolation.level=read_committed' ],
		'>', \$output, IPC::Run::timeout(60)) or die 'kcat failed';
	return split ' ', $output;
}

# Each once and in order
sub is_all
{
	my ($topic, $n, $what) = @_;
	my @seen;

	wait_until { @seen = numbers($topic); grep { $_ == $n } @seen } "number $n of $topic", 60;
	return is(join(' ', @seen), join(' ', 1 .. $n), $what);
}

#
# Tables and slots on the full disk: no table grows, and nothing of a large transaction can be set aside.
#
# (Autovacuum would make PostgreSQL write a file that each new session needs.)
my $node = new_node('tables', "autovacuum = off\n", start => 0);
move_to_disk($node, 'base', 'pg_replslot');
$node->start;
create_server($node);
query($node, 'CREATE TABLE t (id int PRIMARY KEY, filler text)');
create_pipeline($node, 'full', tables => ['t'], options => { topic_partitions => 1 });
query($node, q{SELECT kafka.produce('full.numbers', '', key => '1')});
is(query($node, q{SELECT kafka.wait_for(timeout => '60s')}), 't', 'there is room: Kafka gets it');
fill();
my ($status, undef, $errors) = $node->psql('postgres', q{INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 200000) i});
like($errors, qr/No space left on device/, 'the disk is full: PostgreSQL says so');

# What needs no room goes on: these transactions only write WAL.
foreach my $i (2 .. 20)
{
	query($node, "SELECT kafka.produce('full.numbers', '', key => '$i')");
}
is(query($node, q{SELECT kafka.wait_for(timeout => '60s')}), 't', '... what needs no room goes on');
is_all('full.numbers', 20, '... and arrives once');

# A transaction larger than logical_decoding_work_mem
my $offset = -s $node->logfile;
query($node, q{SELECT kafka.produce('full.numbers', repeat('x', 500000), key => i::text) FROM generate_series(21, 180) i});
query($node, q{SELECT kafka.produce('full.numbers', '', key => '181')});
wait_until { pipeline_field($node, 'full', 'reason') =~ /No space left on device/ } 'the reason', 60;
is(state($node, 'full'), 'retrying', 'a large transaction: the pipeline retries, and the view says that the disk is full');
wait_until { failures($node) >= 3 } 'three failures', 60;
my @failed = PostgreSQL::Test::Utils::slurp_file($node->logfile, $offset) =~ /ERROR: .*No space left on device/g;
cmp_ok(scalar @failed, '<=', failures($node) + 1, '... with pauses: an error each time it failed, and no more');
is(query($node, 'SELECT 1'), '1', '... sessions work');
query($node, q{SELECT kafka.produce('full.numbers', '', key => '182')});
is(scalar(grep { $_ > 20 } numbers('full.numbers')), 0, '... nothing of it is in Kafka');
make_room();
is_all('full.numbers', 182, 'there is room again: all arrives by itself, once, in commit order');
wait_for_state($node, 'full', 'running', 60);
is(pipeline_field($node, 'full', 'reason'), '', '... and the reason is gone');
query($node, q{INSERT INTO t VALUES (1, 'after')});
is_deeply([ values_of('after.id', consume_until('full.public.t', 1)) ], [1], '... tables too');

# The same while the server checkpoints and starts: what it can't do is its affair, we do nothing to it.
fill();
query($node, q{SELECT kafka.produce('full.numbers', '', key => '183')});
$node->psql('postgres', 'CHECKPOINT');
terminate_worker($node, 'full');
query($node, q{SELECT kafka.produce('full.numbers', '', key => '184')});
make_room();
is_all('full.numbers', 184, 'a start of the worker on a full disk');
is(logged($node, qr/PANIC|was terminated by signal/), 0, 'no process of the server has crashed');
is(logged($node, qr/stops as|has stopped/), 0, 'nothing of it has stopped the pipeline');
$node->stop;
system 'rm', '-rf', glob "$disk/*";

#
# WAL on the full disk: PostgreSQL ends itself, and when it is back the pipeline goes on.
#
my $other = new_node('wal', "wal_recycle = off\nmin_wal_size = 2MB\nmax_wal_size = 8MB\n", start => 0, extra => [ '--wal-segsize', 1 ]);
move_to_disk($other, 'pg_wal');
$other->start;
create_server($other);
query($other, 'CREATE TABLE wal (id int PRIMARY KEY, filler text)');
create_pipeline($other, 'wal', tables => ['wal'], options => { topic_partitions => 1 });
query($other, 'INSERT INTO wal VALUES (1)');
is(query($other, q{SELECT kafka.wait_for(timeout => '60s')}), 't', 'there is room: Kafka gets it');
query($other, 'ALTER TABLE wal ALTER filler SET STORAGE EXTERNAL');
fill();
my $n = 1;
while ($other->psql('postgres', 'INSERT INTO wal VALUES (' . ++$n . q{, repeat('x', 50000))}) == 0)
{
	die 'the disk is not full' if $n > 2000;
}
await_crash($other);
like(PostgreSQL::Test::Utils::slurp_file($other->logfile), qr/PANIC:  .*No space left on device/,
	'no room for WAL: PostgreSQL stops itself');
make_room();
$other->start;

# whatever the last session was told
my @committed = split /\n/, query($other, 'SELECT id FROM wal ORDER BY id');
cmp_ok(scalar @committed, '>=', $n - 1, '... with all that it had committed');
is_sent('wal', \@committed);
query($other, "INSERT INTO wal VALUES ($n + 1)");
is_sent('wal', [ @committed, $n + 1 ]);
$other->stop;

done_testing();
