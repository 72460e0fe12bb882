# transactional_kafka: committed PostgreSQL transactions in Kafka, exactly once and in order
#
#   make, make install    the extension, for the PostgreSQL of $(PG_CONFIG)
#   make check            all tests, on servers of their own; installs what is missing (Debian)
#   make demo             shows what it does, likewise
#   make bench            measures it beside what PostgreSQL and librdkafka alone can do here
#   make bounds           the test of large and many at full size (15 minutes, 10 GB of disk); "make check" has it in small
#   make matrix           all tests with PostgreSQL 17 and 18 and the librdkafka of their time (as root; an hour)
#   make chaos            faults in random order for half an hour; "make check" has a few
#   make unit             the unit tests of the pure parts only
#   make simulate         the checkpoint protocol simulated, optimized: TK_SEEDS=1000000 make simulate
#   make indent           lays the C files out as pgindent does (pg-bsd-indent)
#
# FAILPOINTS=1 compiles the fail-points of the tests in; WERROR=1 makes warnings errors.

MODULE_big = transactional_kafka
EXTENSION = transactional_kafka
DATA = $(wildcard transactional_kafka--*.sql)
OBJS = $(patsubst %.c,%.o,$(sort $(wildcard src/*.c)))
PGFILEDESC = "transactional_kafka - committed transactions in Kafka, exactly once"
REGRESS = $(patsubst sql/%.sql,%,$(sort $(wildcard sql/*.sql)))

PG_CONFIG ?= pg_config
RDKAFKA_LIBS := $(or $(shell pkg-config --libs rdkafka 2>/dev/null),-lrdkafka)
RDKAFKA_CFLAGS := $(shell pkg-config --cflags rdkafka 2>/dev/null)
OPENSSL_LIBS := $(or $(shell pkg-config --libs openssl 2>/dev/null),-lssl -lcrypto)
OPENSSL_CFLAGS := $(shell pkg-config --cflags openssl 2>/dev/null)

SHLIB_LINK = $(RDKAFKA_LIBS) $(OPENSSL_LIBS)
# -Wno-unused-parameter: callbacks have the parameters that PostgreSQL and librdkafka give them
WARNINGS = -Wall -Wextra -Wno-unused-parameter $(if $(WERROR),-Werror)
# -isystem: warnings are about our code, not about PostgreSQL's headers
PG_CPPFLAGS = -isystem $(shell $(PG_CONFIG) --includedir-server) $(RDKAFKA_CFLAGS) $(OPENSSL_CFLAGS) $(if $(FAILPOINTS),-DTK_FAILPOINTS)
PG_CFLAGS = $(WARNINGS)
# no bitcode for the JIT: nothing here is called per row of a query
override with_llvm = no

# These stand on their own, without PGXS: check and demo work before PostgreSQL is installed, and PGXS has a "check"
# of its own.
OWN_GOALS = check demo bench bounds matrix chaos unit unit-programs simulate indent indent-check
ifneq ($(filter $(OWN_GOALS),$(MAKECMDGOALS)),)

.PHONY: $(MAKECMDGOALS)

check:
	@test/check

demo:
	@test/demo

bounds:
	@TK_SCALE=1 TK_TEST_LIMIT=900 test/check tap 080_bounds.pl

matrix:
	@test/install check && test/matrix

chaos:
	@TK_FAULTS=$(or $(TK_FAULTS),800) TK_TEST_LIMIT=7200 test/check tap 012_chaos.pl

bench:
	@test/install bench && test/bench/run

indent:
	@test/indent src/*.[ch] test/unit/*.[ch] test/bench/*.c

indent-check:
	@test/indent --check src/*.[ch] test/unit/*.[ch] test/bench/*.c

# Unit tests: the files that know no server, with the sanitizers.  Each program prints "N passed, N failed" last.
UNIT = build/unit
PURE = $(filter-out $(shell grep -l '^#include "postgres.h"' src/*.c),$(wildcard src/*.c))
PURE_OBJS = $(PURE:src/%.c=$(UNIT)/%.o)
UNIT_TESTS = $(patsubst test/unit/%.c,$(UNIT)/%,$(sort $(wildcard test/unit/test_*.c)))
UNIT_CFLAGS = -std=gnu99 -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined \
	-fno-omit-frame-pointer $(WARNINGS) -Werror -Wdeclaration-after-statement -Isrc $(RDKAFKA_CFLAGS) $(OPENSSL_CFLAGS)

unit: $(UNIT_TESTS)
	@for t in $(UNIT_TESTS); do echo "# $$t"; $$t || failed=1; done; [ -z "$$failed" ]

unit-programs: $(UNIT_TESTS)

# The same program without the sanitizers: 100,000 seeds a minute and more
simulate: build/simulate
	@build/simulate

build/simulate: test/unit/test_protocol.c $(wildcard test/unit/sim_*) $(PURE) $(wildcard src/*.h)
	@mkdir -p build
	$(CC) -std=gnu99 -g -O2 $(WARNINGS) -Werror -Isrc -Itest/unit $(RDKAFKA_CFLAGS) $(OPENSSL_CFLAGS) -o $@ $< $(PURE) \
		$(RDKAFKA_LIBS) $(OPENSSL_LIBS) -lpthread -lm

$(UNIT_TESTS): $(UNIT)/test_%: test/unit/test_%.c $(PURE_OBJS) $(wildcard test/unit/*.h)
	$(CC) $(UNIT_CFLAGS) -Itest/unit -MMD -MP -MF $@.d -MT $@ -o $@ $< $(PURE_OBJS) $(RDKAFKA_LIBS) $(OPENSSL_LIBS) -lpthread -lm

$(PURE_OBJS): $(UNIT)/%.o: src/%.c
	@mkdir -p $(UNIT)
	$(CC) $(UNIT_CFLAGS) -MMD -MP -c -o $@ $<

-include $(wildcard $(UNIT)/*.d)

# Other goals beside ours, as in "make clean check"
ifneq ($(filter-out $(OWN_GOALS),$(MAKECMDGOALS)),)
$(filter-out $(OWN_GOALS),$(MAKECMDGOALS)):
	$(MAKE) $@
endif

else

PGXS := $(shell $(PG_CONFIG) --pgxs 2>/dev/null)
ifeq ($(wildcard $(PGXS)),)
$(error PostgreSQL's build files are missing: install postgresql-server-dev-NN, run test/install, or set PG_CONFIG)
endif
include $(PGXS)

# PGXS looks at no headers
$(OBJS): $(wildcard src/*.h)

endif
