/*
 * encode_debezium_value.c
 *	  Scalars as Debezium 3.7 writes them with its defaults.
 *
 * That is: decimal.handling.mode precise, time.precision.mode adaptive,
 * interval.handling.mode numeric, binary.handling.mode bytes, hstore as JSON,
 * money with two digits, through Kafka Connect's JsonConverter.  Consumers
 * that were written for these bytes must find them, the quirks included:
 *
 *	- What Debezium can't convert it makes null, with a warning in its log:
 *	  numeric's NaN and infinities, arrays in arrays, arrays of bit strings.
 *	- timestamp counts µs in 64 bits; of infinity it makes the ends of that range,
 *	  and what is after the year 294247 comes out as Java's arithmetic wraps.
 *	- date makes of infinity two far days, and in arrays two near ones.
 *	- An hstore is in the order of Java's HashMap; time[] has no µs.
 *
 * Where Debezium loses a value that its form has room for (all of type name, a
 * timetz with seconds in its offset) the value is written.
 */
#include "encode_value.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>

#define PLACEHOLDER "__debezium_unavailable_value"
#define PLACEHOLDER_UUID "b68a35a7-17ad-35b3-af2a-ae46edb4545a" /* UUID.nameUUIDFromBytes() of it */

#define US_PER_SECOND	INT64_C(1000000)
#define SECONDS_PER_DAY	INT64_C(86400)
#define US_PER_DAY		(SECONDS_PER_DAY * US_PER_SECOND)

/* What Debezium makes of infinity: in ms (pgjdbc's), as days, and as the days of java.sql.Date, whose 32 bits overflow */
#define TIMESTAMP_INFINITY			INT64_C(9223372036825200000)
#define TIMESTAMP_MINUS_INFINITY	INT64_C(-9223372036832400000)
#define DATE_INFINITY				INT64_C(2146033979) /* 5877611-06-21 */
#define DATE_MINUS_INFINITY			INT64_C(-2147472691)	/* -5877611-06-23 */
#define ELEMENT_INFINITY			INT64_C(-622191234)
#define ELEMENT_MINUS_INFINITY		INT64_C(-625821272)

/* A longer number's memory is taken from the heap. */
#define STACK_LIMBS		64
#define STACK_BYTES		256

#define append_literal(out, literal) tk_buffer_append(out, literal, sizeof(literal) - 1)

static inline bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static inline bool
is_text(const char *text, size_t len, const char *word)
{
	return len == strlen(word) && memcmp(text, word, len) == 0;
}

/*
 * Numbers
 */

/* Java's BigInteger.toByteArray(): big-endian two's complement, no byte more than needed. */
static void
append_big_endian(TkBuffer *out, const unsigned char *bytes, size_t len)
{
	while (len > 1 && ((bytes[0] == 0x00 && bytes[1] < 0x80) || (bytes[0] == 0xFF && bytes[1] >= 0x80)))
	{
		bytes++;
		len--;
	}
	tk_append_base64(out, bytes, len);
}

/* A decimal's digits: those before its point, those behind, and zeros */
typedef struct Digits
{
	const char *whole;
	size_t		nwhole;
	const char *fraction;
	size_t		nfraction;
	size_t		nzeros;
} Digits;

static inline uint32_t
digit_at(const Digits *digits, size_t i)
{
	if (i < digits->nwhole)
		return (uint32_t) (digits->whole[i] - '0');
	i -= digits->nwhole;
	return i < digits->nfraction ? (uint32_t) (digits->fraction[i] - '0') : 0;
}

/* The unscaled value of a decimal, whose point is dropped, in base64. */
static void
append_unscaled(TkBuffer *out, bool negative, const Digits *digits)
{
	size_t		n = digits->nwhole + digits->nfraction + digits->nzeros;
	size_t		capacity = n / 9 + 2;	/* 9 digits are less than 32 bits, and a sign */
	uint32_t	on_stack[STACK_LIMBS];
	unsigned char bytes_on_stack[STACK_LIMBS * 4];
	uint32_t   *limbs = on_stack;	/* the least first */
	unsigned char *bytes = bytes_on_stack;
	size_t		used = 0;
	size_t		i = 0;
	uint32_t	carry;

	if (capacity > STACK_LIMBS)
	{
		limbs = malloc(capacity * (sizeof(uint32_t) + 4));
		if (limbs == NULL)
		{
			out->failed = true;
			return;
		}
		bytes = (unsigned char *) (limbs + capacity);
	}
	while (i < n)
	{
		uint32_t	chunk = 0;
		uint32_t	factor = 1;
		uint64_t	sum;
		size_t		k;

		for (k = 0; k < 9 && i < n; k++, factor *= 10)
			chunk = chunk * 10 + digit_at(digits, i++);
		sum = chunk;
		for (k = 0; k < used; k++)
		{
			sum += (uint64_t) limbs[k] * factor;
			limbs[k] = (uint32_t) sum;
			sum >>= 32;
		}
		if (sum > 0)
			limbs[used++] = (uint32_t) sum;
	}
	while (used < capacity)
		limbs[used++] = 0;

	carry = negative;
	for (i = 0; i < used; i++)
	{
		uint32_t	limb = negative ? ~limbs[i] : limbs[i];
		unsigned char *b = bytes + (used - 1 - i) * 4;

		limb += carry;
		carry = carry && limb == 0;
		b[0] = (unsigned char) (limb >> 24);
		b[1] = (unsigned char) (limb >> 16);
		b[2] = (unsigned char) (limb >> 8);
		b[3] = (unsigned char) limb;
	}
	append_big_endian(out, bytes, used * 4);
	if (limbs != on_stack)
		free(limbs);
}

/* '-123.450': false for NaN and the infinities. */
static bool
parse_decimal(const char *text, size_t len, bool *negative, Digits *digits)
{
	const char *p = text;
	const char *end = text + len;

	memset(digits, 0, sizeof(*digits));
	*negative = p < end && *p == '-';
	if (*negative)
		p++;
	digits->whole = p;
	while (p < end && is_digit(*p))
		p++;
	digits->nwhole = (size_t) (p - digits->whole);
	digits->fraction = p;
	if (p < end && *p == '.')
	{
		digits->fraction = ++p;
		while (p < end && is_digit(*p))
			p++;
		digits->nfraction = (size_t) (p - digits->fraction);
	}
	return p == end && digits->nwhole + digits->nfraction > 0;
}

/* As pgjdbc reads numeric's type modifier: of a negative scale it makes one that is near 2048. */
static int
numeric_scale(int32_t typmod)
{
	return (typmod - 4) & 0xFFFF;
}

static void
append_numeric(TkBuffer *out, const char *text, size_t len, int32_t typmod)
{
	Digits		digits;
	bool		negative;

	if (!parse_decimal(text, len, &negative, &digits))
	{
		append_literal(out, "null");
		return;
	}
	if (typmod >= 0)
	{
		size_t		scale = (size_t) numeric_scale(typmod);

		if (digits.nfraction > scale)
			digits.nfraction = scale;
		digits.nzeros = scale - digits.nfraction;
		append_unscaled(out, negative, &digits);
		return;
	}
	while (digits.nfraction > 0 && digits.fraction[digits.nfraction - 1] == '0')
		digits.nfraction--;
	append_literal(out, "{\"scale\":");
	tk_unsigned(out, digits.nfraction);
	append_literal(out, ",\"value\":");
	append_unscaled(out, negative, &digits);
	tk_buffer_char(out, '}');
}

/* '-$1,000.00' */
static void
append_money(TkBuffer *out, const char *text, size_t len)
{
	char		cents[32];
	Digits		digits = {cents, 0, cents, 0, 0};
	size_t		i;

	for (i = 0; i < len && digits.nwhole < sizeof(cents); i++)
	{
		if (is_digit(text[i]))
			cents[digits.nwhole++] = text[i];
	}
	append_unscaled(out, len > 0 && text[0] == '-', &digits);
}

/*
 * Java's Double.toString() and Float.toString() of PostgreSQL's shortest
 * digits: a point always, an exponent below 1e-3 and from 1e7 on.  Java's
 * shortest has two digits at least, so of a single one it takes the nearest
 * with two, which differs among the smallest numbers: 4.9E-324.
 */
static void
append_float(TkBuffer *out, const char *text, size_t len, bool single)
{
	char		copy[32];
	char		digits[32];
	char		two[32];
	int			n = 0;
	int			exponent = 0;	/* of the first digit */
	int			point = -1;
	bool		significant = false;
	const char *p;

	if (len >= sizeof(copy) || !tk_is_json_number(text, len))
	{
		tk_json_string(out, text, len); /* "NaN", "Infinity" */
		return;
	}
	memcpy(copy, text, len);
	copy[len] = '\0';
	p = copy;
	if (*p == '-')
		tk_buffer_char(out, *p++);
	for (; is_digit(*p) || *p == '.'; p++)
	{
		if (*p == '.')
		{
			point = n;
			continue;
		}
		if (!significant && *p == '0')
		{
			/* Leading zeros don't count but for their place. */
			if (point >= 0)
				exponent--;
			continue;
		}
		significant = true;
		digits[n++] = *p;
	}
	if (n == 0)
	{
		append_literal(out, "0.0");
		return;
	}
	exponent += (point < 0 ? n : point) - 1;
	if (*p == 'e' || *p == 'E')
		exponent += (int) strtol(p + 1, NULL, 10);
	while (n > 1 && digits[n - 1] == '0')
		n--;
	if (n == 1 && exponent < (single ? FLT_MIN_10_EXP : DBL_MIN_10_EXP) + 1)
	{
		snprintf(two, sizeof(two), "%.1e", single ? (double) strtof(copy, NULL) : strtod(copy, NULL));
		p = two + (two[0] == '-');
		digits[0] = p[0];
		digits[1] = p[2];
		n = p[2] == '0' ? 1 : 2;
		exponent = (int) strtol(p + 4, NULL, 10);
	}

	if (exponent >= -3 && exponent < 7)
	{
		int			i;

		if (exponent < 0)
			append_literal(out, "0");
		for (i = 0; i <= exponent; i++)
			tk_buffer_char(out, i < n ? digits[i] : '0');
		tk_buffer_char(out, '.');
		for (i = exponent + 1; i < 0; i++)
			tk_buffer_char(out, '0');
		if (i >= n)
			tk_buffer_char(out, '0');
		else
			tk_buffer_append(out, digits + i, (size_t) (n - i));
		return;
	}
	tk_buffer_char(out, digits[0]);
	tk_buffer_char(out, '.');
	if (n > 1)
		tk_buffer_append(out, digits + 1, (size_t) (n - 1));
	else
		tk_buffer_char(out, '0');
	tk_buffer_char(out, 'E');
	tk_decimal(out, exponent);
}

/*
 * Dates and times
 */
typedef struct Cursor
{
	const char *p;
	const char *end;
} Cursor;

static bool
skip_char(Cursor *c, char expected)
{
	if (c->p == c->end || *c->p != expected)
		return false;
	c->p++;
	return true;
}

/* Digits, "least" or more */
static bool
parse_number(Cursor *c, int least, int64_t *n)
{
	int			digits = 0;

	*n = 0;
	for (; c->p < c->end && is_digit(*c->p) && digits < 18; c->p++, digits++)
		*n = *n * 10 + (*c->p - '0');
	return digits >= least;
}

/* The fraction of a second behind its point, in µs; further digits don't count. */
static bool
parse_fraction(Cursor *c, int64_t *us)
{
	int64_t		unit = US_PER_SECOND / 10;

	*us = 0;
	if (c->p == c->end || !is_digit(*c->p))
		return false;
	for (; c->p < c->end && is_digit(*c->p); c->p++, unit /= 10)
		*us += (*c->p - '0') * unit;
	return true;
}

/* HH:MM:SS[.ffffff] in µs */
static bool
parse_time(Cursor *c, int64_t *us)
{
	int64_t		hours;
	int64_t		minutes;
	int64_t		seconds;
	int64_t		fraction = 0;

	if (!parse_number(c, 2, &hours) || !skip_char(c, ':') ||
		!parse_number(c, 2, &minutes) || !skip_char(c, ':') ||
		!parse_number(c, 2, &seconds) ||
		(skip_char(c, '.') && !parse_fraction(c, &fraction)))
		return false;
	if (hours > 24 || minutes > 59 || seconds > 60)
		return false;
	*us = ((hours * 60 + minutes) * 60 + seconds) * US_PER_SECOND + fraction;
	return true;
}

/* (+|-)HH[:MM[:SS]] in seconds */
static bool
parse_offset(Cursor *c, int64_t *seconds)
{
	bool		negative = c->p < c->end && *c->p == '-';
	int64_t		unit = 3600;
	int64_t		part;

	*seconds = 0;
	if (!negative && (c->p == c->end || *c->p != '+'))
		return false;
	do
	{
		c->p++;
		if (!parse_number(c, 2, &part))
			return false;
		*seconds += part * unit;
		unit /= 60;
	} while (unit > 0 && c->p < c->end && *c->p == ':');
	if (negative)
		*seconds = -*seconds;
	return true;
}

typedef struct Day
{
	int64_t		year;			/* 0 is 1 BC */
	int64_t		month;
	int64_t		day;
} Day;

/* YYYY-MM-DD; the era stands at the very end of the text. */
static bool
parse_day(Cursor *c, Day *day)
{
	if (!parse_number(c, 4, &day->year) || day->year > 99999999 || !skip_char(c, '-') ||
		!parse_number(c, 2, &day->month) || !skip_char(c, '-') || !parse_number(c, 2, &day->day))
		return false;
	if (day->month < 1 || day->month > 12)
		return false;
	if (c->end - c->p >= 3 && memcmp(c->end - 3, " BC", 3) == 0)
	{
		c->end -= 3;
		day->year = 1 - day->year;
	}
	return true;
}

/* Days since 1970-01-01 of the proleptic Gregorian calendar, whose years begin in March here. */
static int64_t
epoch_day(const Day *day)
{
	int64_t		year = day->year - (day->month <= 2);
	int64_t		era = (year >= 0 ? year : year - 399) / 400;
	int64_t		year_of_era = year - era * 400;
	int64_t		month = (day->month + 9) % 12;
	int64_t		day_of_year = (153 * month + 2) / 5 + day->day - 1;

	return era * 146097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719468;
}

/* The precision in a type modifier of time and timestamp */
static int
time_precision(int32_t typmod)
{
	return typmod < 0 ? 6 : typmod;
}

static bool
append_date(TkBuffer *out, const char *text, size_t len, bool in_array)
{
	Cursor		c = {text, text + len};
	Day			day;

	if (is_text(text, len, "infinity"))
		tk_decimal(out, in_array ? ELEMENT_INFINITY : DATE_INFINITY);
	else if (is_text(text, len, "-infinity"))
		tk_decimal(out, in_array ? ELEMENT_MINUS_INFINITY : DATE_MINUS_INFINITY);
	else if (parse_day(&c, &day) && c.p == c.end)
		tk_decimal(out, epoch_day(&day));
	else
		return false;
	return true;
}

/* An array's times go through a class of Java that has milliseconds only. */
static bool
append_time(TkBuffer *out, const char *text, size_t len, int32_t typmod, bool in_array)
{
	Cursor		c = {text, text + len};
	int64_t		us;

	if (!parse_time(&c, &us) || c.p != c.end)
		return false;
	if (in_array)
		us -= us % 1000;
	tk_decimal(out, time_precision(typmod) <= 3 ? us / 1000 : us);
	return true;
}

static void
append_two_digits(TkBuffer *out, int64_t n)
{
	if (n < 10)
		tk_buffer_char(out, '0');
	tk_decimal(out, n);
}

/* HH:MM:SS of a time of the day in µs, and "digits" digits of its fraction */
static void
append_clock(TkBuffer *out, int64_t us, int digits)
{
	int64_t		seconds = us / US_PER_SECOND;
	int64_t		rest = us % US_PER_SECOND;
	int64_t		unit = US_PER_SECOND / 10;

	append_two_digits(out, seconds / 3600);
	tk_buffer_char(out, ':');
	append_two_digits(out, seconds / 60 % 60);
	tk_buffer_char(out, ':');
	append_two_digits(out, seconds % 60);
	if (digits > 0)
		tk_buffer_char(out, '.');
	for (; digits > 0; digits--, unit /= 10)
		tk_buffer_char(out, (char) ('0' + rest / unit % 10));
}

static bool
append_timetz(TkBuffer *out, const char *text, size_t len)
{
	Cursor		c = {text, text + len};
	int64_t		us;
	int64_t		offset;
	int			digits = 6;
	int64_t		fraction;

	if (!parse_time(&c, &us) || !parse_offset(&c, &offset) || c.p != c.end)
		return false;
	if (us != US_PER_DAY || offset != 0)
		us = ((us - offset * US_PER_SECOND) % US_PER_DAY + US_PER_DAY) % US_PER_DAY;
	for (fraction = us % US_PER_SECOND; digits > 0 && fraction % 10 == 0; digits--)
		fraction /= 10;
	tk_buffer_char(out, '"');
	append_clock(out, us, digits);
	append_literal(out, "Z\"");
	return true;
}

/* A day, a blank, a time: what timestamp and timestamptz begin with. */
static bool
parse_timestamp(Cursor *c, Day *day, int64_t *us)
{
	return parse_day(c, day) && skip_char(c, ' ') && parse_time(c, us);
}

/* Seconds as µs, as Java's TimeUnit does: at the ends of the range it stays there. */
static int64_t
seconds_to_us(int64_t seconds)
{
	if (seconds > INT64_MAX / US_PER_SECOND)
		return INT64_MAX;
	if (seconds < INT64_MIN / US_PER_SECOND)
		return INT64_MIN;
	return seconds * US_PER_SECOND;
}

static bool
append_timestamp(TkBuffer *out, const char *text, size_t len, int32_t typmod)
{
	bool		in_ms = time_precision(typmod) <= 3;
	Cursor		c = {text, text + len};
	Day			day;
	int64_t		us;
	int64_t		seconds;

	if (is_text(text, len, "infinity"))
		tk_decimal(out, in_ms ? TIMESTAMP_INFINITY : INT64_MAX);
	else if (is_text(text, len, "-infinity"))
		tk_decimal(out, in_ms ? TIMESTAMP_MINUS_INFINITY : INT64_MIN);
	else if (parse_timestamp(&c, &day, &us) && c.p == c.end)
	{
		seconds = epoch_day(&day) * SECONDS_PER_DAY + us / US_PER_SECOND;
		us %= US_PER_SECOND;
		if (in_ms)
			tk_decimal(out, seconds * 1000 + us / 1000);
		else
			tk_decimal(out, (int64_t) ((uint64_t) seconds_to_us(seconds) + (uint64_t) us));
	}
	else
		return false;
	return true;
}

/* ISO 8601 with as many digits as the type has, and a signed year where it has more than four digits, or is BC. */
static bool
append_timestamptz(TkBuffer *out, const char *text, size_t len, int32_t typmod)
{
	Cursor		c = {text, text + len};
	Day			day;
	int64_t		us;
	int64_t		offset;
	int64_t		year;
	int64_t		unit;

	/* TimeZone is UTC. */
	if (!parse_timestamp(&c, &day, &us) || !parse_offset(&c, &offset) || c.p != c.end || offset != 0)
		return false;
	tk_buffer_char(out, '"');
	year = day.year < 0 ? -day.year : day.year;
	if (day.year < 0)
		tk_buffer_char(out, '-');
	else if (year > 9999)
		tk_buffer_char(out, '+');
	for (unit = 1000; unit > 1 && year < unit; unit /= 10)
		tk_buffer_char(out, '0');
	tk_decimal(out, year);
	tk_buffer_char(out, '-');
	append_two_digits(out, day.month);
	tk_buffer_char(out, '-');
	append_two_digits(out, day.day);
	tk_buffer_char(out, 'T');
	append_clock(out, us, time_precision(typmod));
	append_literal(out, "Z\"");
	return true;
}

/* [-]N or [-]N.ffffff before its unit, in millionths */
static bool
parse_quantity(Cursor *c, int64_t *whole, int64_t *fraction)
{
	bool		negative = skip_char(c, '-');

	*fraction = 0;
	if (!parse_number(c, 1, whole) || (skip_char(c, '.') && !parse_fraction(c, fraction)))
		return false;
	if (negative)
	{
		*whole = -*whole;
		*fraction = -*fraction;
	}
	return true;
}

/*
 * An ISO 8601 duration in µs, a month having 365.25 / 12 days, in the steps of
 * Debezium's arithmetic.  Volatile: each is rounded to a double, whatever the
 * processor could do at once.
 */
static bool
append_interval(TkBuffer *out, const char *text, size_t len)
{
	Cursor		c = {text, text + len};
	int64_t		months = 0;
	int64_t		days = 0;
	int64_t		hours = 0;
	int64_t		minutes = 0;
	int64_t		seconds = 0;
	int64_t		us = 0;
	bool		time = false;
	volatile double sum;
	volatile double second;

	if (!skip_char(&c, 'P'))
	{
		append_literal(out, "null");	/* 'infinity', from 17 on */
		return true;
	}
	while (c.p < c.end)
	{
		int64_t		whole;
		int64_t		fraction;

		if (!time && skip_char(&c, 'T'))
			time = true;
		if (!parse_quantity(&c, &whole, &fraction) || c.p == c.end)
			return false;
		switch (*c.p++)
		{
			case 'Y':
				months += whole * 12;
				break;
			case 'M':
				if (time)
					minutes = whole;
				else
					months += whole;
				break;
			case 'D':
				days = whole;
				break;
			case 'H':
				hours = whole;
				break;
			case 'S':
				seconds = whole;
				us = fraction;
				break;
			default:
				return false;
		}
	}

	second = (double) us / 1000000.0;
	second += (double) seconds;
	sum = (double) months * (365.25 / 12.0);
	sum += (double) days;
	sum *= 24;
	sum += (double) hours;
	sum *= 60;
	sum += (double) minutes;
	sum *= 60;
	sum += second;
	sum *= 1e6;
	if (sum >= 9223372036854775807.0)
		tk_decimal(out, INT64_MAX);
	else if (sum <= -9223372036854775808.0)
		tk_decimal(out, INT64_MIN);
	else
		tk_decimal(out, (int64_t) sum);
	return true;
}

/*
 * Others
 */

/* '0101': one bit is a boolean; more are bytes, the last bit being the least, without leading zeros. */
static void
append_bits(TkBuffer *out, const char *text, size_t len, int32_t typmod)
{
	unsigned char on_stack[STACK_BYTES] = {0};
	unsigned char *bytes = on_stack;
	size_t		n;
	size_t		i;

	if (typmod == 1)
	{
		if (len == 1)
			tk_buffer_string(out, text[0] == '1' ? "true" : "false");
		else
			append_literal(out, "null");
		return;
	}
	while (len > 0 && text[0] != '1')
	{
		text++;
		len--;
	}
	n = (len + 7) / 8;
	if (n > STACK_BYTES && (bytes = calloc(n, 1)) == NULL)
	{
		out->failed = true;
		return;
	}
	for (i = 0; i < len; i++)
	{
		if (text[len - 1 - i] == '1')
			bytes[i / 8] |= (unsigned char) (1 << i % 8);
	}
	tk_append_base64(out, bytes, n);
	if (bytes != on_stack)
		free(bytes);
}

/* A coordinate, as text and, ended by a NUL, for strtod() */
typedef struct Coordinate
{
	char		text[32];
	size_t		len;
} Coordinate;

/* The next number of a geometric type's text, whatever brackets stand around. */
static bool
next_coordinate(Cursor *c, Coordinate *number)
{
	static const char brackets[] = "()[]<>{},";

	while (c->p < c->end && memchr(brackets, *c->p, sizeof(brackets) - 1) != NULL)
		c->p++;
	number->len = 0;
	while (c->p < c->end && memchr(brackets, *c->p, sizeof(brackets) - 1) == NULL)
	{
		if (number->len + 1 == sizeof(number->text))
			return false;
		number->text[number->len++] = *c->p++;
	}
	number->text[number->len] = '\0';
	return number->len > 0;
}

/* The first "n" numbers; false if there are more or less. */
static bool
parse_coordinates(const char *text, size_t len, Coordinate *numbers, int n)
{
	Cursor		c = {text, text + len};
	Coordinate	more;
	int			i;

	for (i = 0; i < n; i++)
	{
		if (!next_coordinate(&c, &numbers[i]))
			return false;
	}
	return !next_coordinate(&c, &more) && c.p == c.end;
}

static void
append_coordinate(TkBuffer *out, const Coordinate *number)
{
	append_float(out, number->text, number->len, false);
}

/*
 * Well-known binary, little-endian
 */
#define WKB_POINT		1
#define WKB_LINE_STRING	2
#define WKB_POLYGON		3

static void
binary_word(TkBuffer *binary, uint32_t word)
{
	int			i;

	for (i = 0; i < 4; i++)
		tk_buffer_char(binary, (char) (word >> (8 * i)));
}

static void
binary_double(TkBuffer *binary, const Coordinate *number)
{
	double		d = strtod(number->text, NULL);
	uint64_t	bits;

	memcpy(&bits, &d, sizeof(bits));
	binary_word(binary, (uint32_t) bits);
	binary_word(binary, (uint32_t) (bits >> 32));
}

static void
binary_header(TkBuffer *binary, uint32_t type)
{
	tk_buffer_char(binary, 1);
	binary_word(binary, type);
}

static void
binary_point(TkBuffer *binary, const Coordinate *x, const Coordinate *y)
{
	binary_double(binary, x);
	binary_double(binary, y);
}

/* Writes the binary as base64 and gives it back. */
static void
append_binary(TkBuffer *out, TkBuffer *binary)
{
	if (binary->failed)
		out->failed = true;
	else
		tk_append_base64(out, (const unsigned char *) binary->data, binary->len);
	tk_buffer_free(binary);
}

static void
append_xy(TkBuffer *out, const Coordinate *x, const Coordinate *y)
{
	TkBuffer	binary = {0};

	binary_header(&binary, WKB_POINT);
	binary_point(&binary, x, y);
	append_literal(out, "{\"x\":");
	append_coordinate(out, x);
	append_literal(out, ",\"y\":");
	append_coordinate(out, y);
	append_literal(out, ",\"wkb\":");
	append_binary(out, &binary);
	append_literal(out, ",\"srid\":null}");
}

static bool
append_point(TkBuffer *out, const char *text, size_t len)
{
	Coordinate	n[2];

	if (!parse_coordinates(text, len, n, 2))
		return false;
	append_xy(out, &n[0], &n[1]);
	return true;
}

static bool
append_line(TkBuffer *out, const char *text, size_t len)
{
	Coordinate	n[3];

	if (!parse_coordinates(text, len, n, 3))
		return false;
	append_literal(out, "{\"a\":");
	append_coordinate(out, &n[0]);
	append_literal(out, ",\"b\":");
	append_coordinate(out, &n[1]);
	append_literal(out, ",\"c\":");
	append_coordinate(out, &n[2]);
	tk_buffer_char(out, '}');
	return true;
}

static bool
append_circle(TkBuffer *out, const char *text, size_t len)
{
	Coordinate	n[3];

	if (!parse_coordinates(text, len, n, 3))
		return false;
	append_literal(out, "{\"center\":");
	append_xy(out, &n[0], &n[1]);
	append_literal(out, ",\"radius\":");
	append_coordinate(out, &n[2]);
	tk_buffer_char(out, '}');
	return true;
}

/* PostgreSQL's geometric types that are no PostGIS, told apart by "extensions" */
static void
append_shape(TkBuffer *out, TkBuffer *binary, const char *extensions)
{
	append_literal(out, "{\"wkb\":");
	append_binary(out, binary);
	append_literal(out, ",\"srid\":null,\"extensions\":{\"type\":");
	tk_buffer_string(out, extensions);
	append_literal(out, "}}");
}

/* Two corners, as the polygon of four */
static bool
append_box(TkBuffer *out, const char *text, size_t len)
{
	TkBuffer	binary = {0};
	Coordinate	n[4];

	if (!parse_coordinates(text, len, n, 4))
		return false;
	binary_header(&binary, WKB_POLYGON);
	binary_word(&binary, 1);
	binary_word(&binary, 5);
	binary_point(&binary, &n[0], &n[1]);
	binary_point(&binary, &n[0], &n[3]);
	binary_point(&binary, &n[2], &n[3]);
	binary_point(&binary, &n[2], &n[1]);
	binary_point(&binary, &n[0], &n[1]);
	append_shape(out, &binary, "\"box\"");
	return true;
}

/* Points: a line string, or with "ring" a polygon's ring, which ends where it begins. */
static bool
append_points(TkBuffer *out, const char *text, size_t len, bool ring, const char *extensions)
{
	Cursor		c = {text, text + len};
	TkBuffer	binary = {0};
	Coordinate	first[2] = {{"", 0}, {"", 0}};
	Coordinate	last[2] = {{"", 0}, {"", 0}};
	Coordinate	xy[2];
	uint32_t	n = 0;
	size_t		count_at;

	binary_header(&binary, ring ? WKB_POLYGON : WKB_LINE_STRING);
	if (ring)
		binary_word(&binary, 1);
	count_at = binary.len;
	binary_word(&binary, 0);
	while (next_coordinate(&c, &xy[0]) && next_coordinate(&c, &xy[1]))
	{
		if (n++ == 0)
			memcpy(first, xy, sizeof(first));
		memcpy(last, xy, sizeof(last));
		binary_point(&binary, &xy[0], &xy[1]);
	}
	if (c.p != c.end || n == 0)
	{
		tk_buffer_free(&binary);
		return false;
	}
	if (ring && n > 1 &&
		(strtod(first[0].text, NULL) != strtod(last[0].text, NULL) || strtod(first[1].text, NULL) != strtod(last[1].text, NULL)))
	{
		n++;
		binary_point(&binary, &first[0], &first[1]);
	}
	if (!binary.failed)
	{
		int			i;

		for (i = 0; i < 4; i++)
			binary.data[count_at + (size_t) i] = (char) (n >> (8 * i));
	}
	append_shape(out, &binary, extensions);
	return true;
}

/* The byte that two hex digits stand for, or -1 */
static int
hex_byte(const char *text)
{
	static const char digits[] = "0123456789abcdef0123456789ABCDEF";
	const char *high = memchr(digits, text[0], sizeof(digits) - 1);
	const char *low = memchr(digits, text[1], sizeof(digits) - 1);

	return high == NULL || low == NULL ? -1 : (int) ((high - digits) % 16 * 16 + (low - digits) % 16);
}

/* Four bytes from the one at "at" on */
static uint32_t
hex_word(const char *text, size_t at, bool little_endian)
{
	uint32_t	word = 0;
	size_t		i;

	for (i = 0; i < 4; i++)
		word = word << 8 | (uint32_t) (hex_byte(text + 2 * (at + (little_endian ? 3 - i : i))) & 0xFF);
	return word;
}

/*
 * PostGIS's extended well-known binary: the order of bytes, the type with a
 * flag that says whether the SRID follows.
 */
static bool
append_geometry(TkBuffer *out, const char *text, size_t len, bool extensions)
{
	size_t		start = out->len;
	bool		little_endian;

	if (len < 2 * 9)
		return false;
	append_literal(out, "{\"wkb\":");
	if (!tk_append_hex(out, text, len))
	{
		out->len = start;
		return false;
	}
	little_endian = hex_byte(text) != 0;
	append_literal(out, ",\"srid\":");
	if ((hex_word(text, 1, little_endian) & 0x20000000) != 0)
		tk_decimal(out, (int32_t) hex_word(text, 5, little_endian));
	else
		append_literal(out, "null");
	if (extensions)
		append_literal(out, ",\"extensions\":null");
	tk_buffer_char(out, '}');
	return true;
}

/* '[1,2.5]' of pgvector */
static bool
append_vector(TkBuffer *out, const char *text, size_t len, bool single)
{
	const char *p;
	const char *end;
	size_t		start = out->len;

	if (len < 2 || text[0] != '[' || text[len - 1] != ']')
		return false;
	p = text + 1;
	end = text + len - 1;
	tk_buffer_char(out, '[');
	while (p < end)
	{
		const char *comma = memchr(p, ',', (size_t) (end - p));
		size_t		n = (size_t) ((comma != NULL ? comma : end) - p);

		if (!tk_is_json_number(p, n))
		{
			out->len = start;
			return false;
		}
		if (out->len > start + 1)
			tk_buffer_char(out, ',');
		append_float(out, p, n, single);
		p += n + 1;
	}
	tk_buffer_char(out, ']');
	return true;
}

/* An object in a string */
static bool
append_hstore(TkBuffer *out, const TkType *type, const char *text, size_t len)
{
	TkBuffer	object = {0};
	bool		done = tk_append_hstore(&object, type, text, len, TK_STYLE_INNER);

	if (done)
		tk_json_text(out, object.data, object.len, TK_STYLE_DEBEZIUM);
	out->failed = out->failed || object.failed;
	tk_buffer_free(&object);
	return done;
}

/* Whether one of an array's numbers is NaN or an infinity; of other letters there are only NULL's. */
static bool
has_special(const char *text, size_t len)
{
	return len > 0 && (memchr(text, 'a', len) != NULL || memchr(text, 'y', len) != NULL);
}

bool
tk_debezium_has(const TkType *type)
{
	switch (type->kind)
	{
		case TK_KIND_OTHER:
		case TK_KIND_COMPOSITE:
			return false;
		case TK_KIND_ARRAY:
			switch (type->element->kind)
			{
				case TK_KIND_NAME:
				case TK_KIND_MONEY:
				case TK_KIND_INTERVAL:
				case TK_KIND_VARBIT:
				case TK_KIND_XML:
				case TK_KIND_POINT:
				case TK_KIND_ARRAY:
				case TK_KIND_VECTOR:
				case TK_KIND_HALFVEC:
					return false;
				default:
					return tk_debezium_has(type->element);
			}
		default:
			return true;
	}
}

bool
tk_debezium_value(TkBuffer *out, const TkType *type, const char *text, size_t len, int style)
{
	switch (type->kind)
	{
		case TK_KIND_REAL:
		case TK_KIND_FLOAT:
			append_float(out, text, len, type->kind == TK_KIND_REAL);
			return true;
		case TK_KIND_NUMERIC:
			append_numeric(out, text, len, type->typmod);
			return true;
		case TK_KIND_MONEY:
			append_money(out, text, len);
			return true;
		case TK_KIND_DATE:
			return append_date(out, text, len, (style & TK_STYLE_ELEMENT) != 0);
		case TK_KIND_TIME:
			return append_time(out, text, len, type->typmod, (style & TK_STYLE_ELEMENT) != 0);
		case TK_KIND_TIMETZ:
			return append_timetz(out, text, len);
		case TK_KIND_TIMESTAMP:
			return append_timestamp(out, text, len, type->typmod);
		case TK_KIND_TIMESTAMPTZ:
			return append_timestamptz(out, text, len, type->typmod);
		case TK_KIND_INTERVAL:
			return append_interval(out, text, len);
		case TK_KIND_BIT:
		case TK_KIND_VARBIT:
			append_bits(out, text, len, type->typmod);
			return true;
		case TK_KIND_POINT:
			return append_point(out, text, len);
		case TK_KIND_BOX:
			return append_box(out, text, len);
		case TK_KIND_LSEG:
			return append_points(out, text, len, false, "\"lseg\"");
		case TK_KIND_PATH:
			return append_points(out, text, len, false,
								 len > 0 && text[0] == '[' ? "\"path\",\"closed\":\"false\"" : "\"path\",\"closed\":\"true\"");
		case TK_KIND_POLYGON:
			return append_points(out, text, len, true, "\"polygon\"");
		case TK_KIND_LINE:
			return append_line(out, text, len);
		case TK_KIND_CIRCLE:
			return append_circle(out, text, len);
		case TK_KIND_GEOMETRY:
		case TK_KIND_GEOGRAPHY:
			return append_geometry(out, text, len, type->kind == TK_KIND_GEOMETRY);
		case TK_KIND_VECTOR:
		case TK_KIND_HALFVEC:
			return append_vector(out, text, len, type->kind == TK_KIND_HALFVEC);
		case TK_KIND_HSTORE:
			return append_hstore(out, type, text, len);
		case TK_KIND_ARRAY:
			if (type->element->kind != TK_KIND_BIT && !(type->element->kind == TK_KIND_NUMERIC && has_special(text, len)))
				return false;
			append_literal(out, "null");
			return true;
		default:
			return false;
	}
}

/* The placeholder's bytes as numbers: Debezium's way to say it in an array of integers. */
static void
append_codes(TkBuffer *out)
{
	const char *p;
	bool		first = true;

	for (p = PLACEHOLDER; *p != '\0'; p++)
	{
		tk_buffer_char(out, first ? '[' : ',');
		tk_unsigned(out, (unsigned char) *p);
		first = false;
	}
	tk_buffer_char(out, ']');
}

/*
 * Where Debezium has none that fits the type it writes null; here the text
 * stands, for null would be a value.
 */
void
tk_append_unavailable(TkBuffer *out, const TkType *type, int style)
{
	bool		array = type->kind == TK_KIND_ARRAY;

	if ((style & TK_STYLE_DEBEZIUM) == 0)
	{
		append_literal(out, "\"" PLACEHOLDER "\"");
		return;
	}
	switch (array ? type->element->kind : type->kind)
	{
		case TK_KIND_BYTEA:
			if (array)
				tk_buffer_char(out, '[');
			tk_append_base64(out, (const unsigned char *) PLACEHOLDER, strlen(PLACEHOLDER));
			if (array)
				tk_buffer_char(out, ']');
			return;
		case TK_KIND_HSTORE:
			if (array)
				break;
			append_literal(out, "\"{\\\"" PLACEHOLDER "\\\":\\\"" PLACEHOLDER "\\\"}\"");
			return;
		case TK_KIND_TEXT:
		case TK_KIND_JSON:
			if (!array)
				break;
			append_literal(out, "[\"" PLACEHOLDER "\"]");
			return;
		case TK_KIND_UUID:
			if (!array)
				break;
			append_literal(out, "[\"" PLACEHOLDER_UUID "\"]");
			return;
		case TK_KIND_INTEGER:
		case TK_KIND_BIGINT:
		case TK_KIND_DATE:
			if (!array)
				break;
			append_codes(out);
			return;
		default:
			break;
	}
	append_literal(out, "\"" PLACEHOLDER "\"");
}
