/*
 * unit.h
 *	  Assertions for tests of the pure C parts.
 *
 * A check that fails prints where and what, and the test goes on: main returns
 * unit_done(), which prints the line "N passed, N failed".
 */
#ifndef TK_UNIT_H
#define TK_UNIT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Random numbers (xorshift64): a test prints the seed that it begins with, which must not be 0. */
static uint64_t random_state;

static inline uint64_t
random_u64(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state;
}

static inline uint32_t
random_u32(void)
{
	return (uint32_t) (random_u64() >> 32);
}

static int	unit_passed;
static int	unit_failed;

static inline bool
unit_check(bool ok, const char *file, int line, const char *what)
{
	if (ok)
		unit_passed++;
	else
	{
		unit_failed++;
		printf("%s:%d: %s\n", file, line, what);
	}
	return ok;
}

static inline bool
unit_check_int(long long actual, long long expected, const char *file, int line, const char *what)
{
	if (!unit_check(actual == expected, file, line, what))
		printf("\texpected: %lld\n\tactual:   %lld\n", expected, actual);
	return actual == expected;
}

/* NULL is a value of its own: Kafka's null, no problem found, … */
static inline bool
unit_check_bytes(const char *actual, size_t actual_len, const char *expected, size_t expected_len,
				 const char *file, int line, const char *what)
{
	bool		ok;

	if (actual == NULL || expected == NULL)
		ok = actual == expected;
	else
		ok = actual_len == expected_len && (actual_len == 0 || memcmp(actual, expected, actual_len) == 0);

	if (!unit_check(ok, file, line, what))
		printf("\texpected: %.*s\n\tactual:   %.*s\n",
			   expected ? (int) expected_len : 6, expected ? expected : "(null)",
			   actual ? (int) actual_len : 6, actual ? actual : "(null)");
	return ok;
}

static inline bool
unit_check_str(const char *actual, const char *expected, const char *file, int line, const char *what)
{
	return unit_check_bytes(actual, actual != NULL ? strlen(actual) : 0,
							expected, expected != NULL ? strlen(expected) : 0, file, line, what);
}

static inline int
unit_done(void)
{
	printf("%d passed, %d failed\n", unit_passed, unit_failed);
	return unit_failed > 0;
}

#define CHECK(condition) \
	unit_check((condition), __FILE__, __LINE__, #condition)
#define CHECK_INT(actual, expected) \
	unit_check_int((actual), (expected), __FILE__, __LINE__, #actual)
#define CHECK_BYTES(actual, len, expected, expected_len) \
	unit_check_bytes((actual), (len), (expected), (expected_len), __FILE__, __LINE__, #actual)

#define CHECK_STR(actual, expected) \
	unit_check_str((actual), (expected), __FILE__, __LINE__, #actual)

#endif							/* TK_UNIT_H */
