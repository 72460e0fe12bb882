/*
 * encode_nested.c
 *	  Arrays, composites and hstore: PostgreSQL's text → nested JSON.
 *
 * Their output functions write the values inside as those types' own output
 * functions do, within quotes where needed.  So each is found, unquoted and
 * given to tk_json_value(), which may come back here.  How deep is decided by
 * the type (a finite tree), not by the text.
 */
#include "encode_value.h"

#include <stdlib.h>

/* PostgreSQL's arrays have at most 6 dimensions (MAXDIM). */
#define DIMENSIONS_MAX	6

/* What contains escapes is unescaped here if it fits. */
#define SCRATCH		1024

/*
 * Writes the value text[0 .. len), which stood between quotes: with its
 * backslashes, and in composites with doubled quotes.
 */
static void
append_escaped(TkBuffer *out, const TkType *type, const char *text, size_t len, int style)
{
	char		scratch[SCRATCH];
	char	   *copy = scratch;
	TkValue		value = {TK_VALUE_TEXT, 0, NULL};
	size_t		n = 0;
	size_t		i;

	if (len > SCRATCH)
	{
		copy = malloc(len);
		if (copy == NULL)
		{
			out->failed = true;
			return;
		}
	}
	for (i = 0; i < len; i++)
	{
		if ((text[i] == '\\' || text[i] == '"') && i + 1 < len)
			i++;
		copy[n++] = text[i];
	}
	value.data = copy;
	value.len = (uint32_t) n;
	tk_json_value(out, type, &value, style);
	if (copy != scratch)
		free(copy);
}

static void
append_inner(TkBuffer *out, const TkType *type, const char *text, size_t len, bool escapes, int style)
{
	TkValue		value = {TK_VALUE_TEXT, (uint32_t) len, text};

	if (escapes)
		append_escaped(out, type, text, len, style);
	else
		tk_json_value(out, type, &value, style);
}

/*
 * The end of what begins behind a quote: its closing quote, or NULL.  With
 * "doubled", two quotes are one of the value's.
 */
static const char *
find_quote(const char *p, const char *end, bool doubled, bool *escapes)
{
	*escapes = false;
	for (; p < end; p++)
	{
		if (*p == '\\' && p + 1 < end)
		{
			*escapes = true;
			p++;
		}
		else if (*p == '"')
		{
			if (!doubled || p + 1 == end || p[1] != '"')
				return p;
			*escapes = true;
			p++;
		}
	}
	return NULL;
}

/* Behind the array that begins at the brace p, or NULL */
static const char *
skip_array(const char *p, const char *end)
{
	int			depth = 0;
	bool		escapes;

	for (; p < end; p++)
	{
		if (*p == '{')
			depth++;
		else if (*p == '}' && --depth == 0)
			return p + 1;
		else if (*p == '"')
		{
			p = find_quote(p + 1, end, false, &escapes);
			if (p == NULL)
				return NULL;
		}
	}
	return NULL;
}

/*
 * Parses what array_out wrote: {1,NULL,"a \"b\""}, nested by braces, maybe
 * with bounds before it ([0:1]={1,2}: JSON has no place for them).  array_out
 * quotes every element that holds a brace, delimiter, quote, backslash or
 * white space, is empty, or spells NULL.
 *
 * Debezium's schema of an array has one dimension, and it makes null of what
 * lies in further ones.
 */
bool
tk_append_array(TkBuffer *out, const TkType *type, const char *text, size_t len, int style)
{
	const char *p = text;
	const char *end = text + len;
	int			element_style = style | TK_STYLE_ELEMENT;
	int			depth = 0;
	bool		opened = false; /* just behind a '{': a '}' may follow */

	if (len > 0 && *p == '[')
	{
		p = memchr(p, '=', len);
		if (p == NULL)
			return false;
		p++;
	}
	if (p == end || *p != '{')
		return false;

	for (;;)
	{
		/* Here an element, a deeper array, or the end of an empty one begins. */
		if (p == end)
			return false;
		if (*p == '{' && depth == 1 && (style & TK_STYLE_DEBEZIUM) != 0)
		{
			p = skip_array(p, end);
			if (p == NULL)
				return false;
			tk_buffer_append(out, "null", 4);
		}
		else if (*p == '{')
		{
			if (++depth > DIMENSIONS_MAX)
				return false;
			tk_buffer_char(out, '[');
			opened = true;
			p++;
			continue;
		}
		else if (*p == '"')
		{
			const char *from = p + 1;
			bool		escapes;

			p = find_quote(from, end, false, &escapes);
			if (p == NULL)
				return false;
			append_inner(out, type->element, from, (size_t) (p - from), escapes, element_style);
			p++;
		}
		else if (*p != '}')
		{
			TkValue		value = {TK_VALUE_TEXT, 0, p};

			while (p < end && *p != type->delimiter && *p != '{' && *p != '}' && *p != '"')
				p++;
			value.len = (uint32_t) (p - value.data);
			if (value.len == 0)
				return false;
			if (value.len == 4 && memcmp(value.data, "NULL", 4) == 0)
				value.kind = TK_VALUE_NULL;
			tk_json_value(out, type->element, &value, element_style);
		}
		else if (!opened)
			return false;
		opened = false;

		/*
		 * Behind it: as many ends as there are, then the delimiter or the end of the text.
		 */
		while (p < end && *p == '}')
		{
			tk_buffer_char(out, ']');
			p++;
			if (--depth == 0)
				return p == end;
		}
		if (p == end || *p != type->delimiter)
			return false;
		tk_buffer_char(out, ',');
		p++;
	}
}

/*
 * Parses what record_out wrote: (1,,"a ""b"""), a field that is NULL being
 * empty, and an empty one "".
 */
bool
tk_append_composite(TkBuffer *out, const TkType *type, const char *text, size_t len, int style)
{
	const char *p = text;
	const char *end = text + len;
	int			i;

	if (len < 2 || *p++ != '(')
		return false;
	tk_buffer_char(out, '{');
	for (i = 0; i < type->nattributes; i++)
	{
		const TkAttribute *attribute = &type->attributes[i];
		const char *from = p;
		bool		escapes;

		if (i > 0)
			tk_buffer_char(out, ',');
		tk_json_text(out, attribute->name, strlen(attribute->name), style);
		tk_buffer_char(out, ':');
		if (p < end && *p == '"')
		{
			p = find_quote(++from, end, true, &escapes);
			if (p == NULL)
				return false;
			append_inner(out, &attribute->type, from, (size_t) (p - from), escapes, style);
			p++;
		}
		else
		{
			while (p < end && *p != ',' && *p != ')')
				p++;
			if (p == from)
				tk_buffer_append(out, "null", 4);
			else
				append_inner(out, &attribute->type, from, (size_t) (p - from), false, style);
		}
		if (i + 1 < type->nattributes && (p == end || *p++ != ','))
			return false;
	}
	tk_buffer_char(out, '}');
	return end - p == 1 && *p == ')';
}

/* A key or value of hstore_out: in quotes, where quotes and backslashes have a backslash before them. */
typedef struct Quoted
{
	const char *text;			/* NULL: the value NULL */
	size_t		len;
	bool		escapes;
} Quoted;

typedef struct Pair
{
	Quoted		key;
	Quoted		value;
	uint32_t	bucket;			/* of Java's HashMap */
	size_t		number;
} Pair;

static bool
parse_quoted(const char **p, const char *end, Quoted *quoted)
{
	const char *close;

	if (*p == end || **p != '"')
		return false;
	quoted->text = *p + 1;
	close = find_quote(quoted->text, end, false, &quoted->escapes);
	if (close == NULL)
		return false;
	quoted->len = (size_t) (close - quoted->text);
	*p = close + 1;
	return true;
}

static bool
skip_literal(const char **p, const char *end, const char *literal)
{
	size_t		n = strlen(literal);

	if ((size_t) (end - *p) < n || memcmp(*p, literal, n) != 0)
		return false;
	*p += n;
	return true;
}

/* "key"=>"value" or "key"=>NULL */
static bool
parse_pair(const char **p, const char *end, Pair *pair)
{
	if (!parse_quoted(p, end, &pair->key) || !skip_literal(p, end, "=>"))
		return false;
	if (skip_literal(p, end, "NULL"))
	{
		pair->value.text = NULL;
		return true;
	}
	return parse_quoted(p, end, &pair->value);
}

static void
append_pair(TkBuffer *out, const Pair *pair, bool first, int style)
{
	static const TkType text = {.kind = TK_KIND_TEXT};

	if (!first)
		tk_buffer_char(out, ',');
	append_inner(out, &text, pair->key.text, pair->key.len, pair->key.escapes, style);
	tk_buffer_char(out, ':');
	if (pair->value.text == NULL)
		tk_buffer_append(out, "null", 4);
	else
		append_inner(out, &text, pair->value.text, pair->value.len, pair->value.escapes, style);
}

/* Java's String.hashCode(): over UTF-16, which hstore's UTF-8 is turned into on the way. */
static uint32_t
java_hash(const Quoted *quoted)
{
	const unsigned char *p = (const unsigned char *) quoted->text;
	const unsigned char *end = p + quoted->len;
	uint32_t	hash = 0;

	while (p < end)
	{
		uint32_t	c;
		int			more;

		if (*p == '\\' && p + 1 < end)
			p++;
		c = *p++;
		more = c < 0xC0 ? 0 : c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
		if (more > 0)
			c &= 0x3Fu >> more;
		for (; more > 0 && p < end; more--)
			c = c << 6 | (*p++ & 0x3Fu);
		if (c >= 0x10000)
		{
			c -= 0x10000;
			hash = hash * 31 + (0xD800 + (c >> 10));
			c = 0xDC00 + (c & 0x3FF);
		}
		hash = hash * 31 + c;
	}
	return hash;
}

static int
compare_buckets(const void *a, const void *b)
{
	const Pair *pa = a;
	const Pair *pb = b;

	if (pa->bucket != pb->bucket)
		return pa->bucket < pb->bucket ? -1 : 1;
	return pa->number < pb->number ? -1 : 1;
}

/*
 * The order in which Java's HashMap gives its keys back: by bucket of a table
 * that doubles when it is three quarters full, and within one as they came.
 */
static void
sort_like_java(Pair *pairs, size_t n)
{
	size_t		buckets = 16;
	size_t		i;

	while (n > buckets / 4 * 3)
		buckets *= 2;
	for (i = 0; i < n; i++)
	{
		uint32_t	hash = java_hash(&pairs[i].key);

		pairs[i].bucket = (hash ^ hash >> 16) & (uint32_t) (buckets - 1);
		pairs[i].number = i;
	}
	qsort(pairs, n, sizeof(Pair), compare_buckets);
}

/* All pairs, read twice: to count them and to keep them.  NULL if there is no memory, or none. */
static Pair *
collect_pairs(const char *text, const char *end, size_t *n)
{
	Pair		pair;
	Pair	   *pairs = NULL;
	const char *p;
	int			round;

	for (round = 0; round < 2; round++)
	{
		*n = 0;
		p = text;
		while (p < end && parse_pair(&p, end, &pair))
		{
			if (pairs != NULL)
				pairs[*n] = pair;
			(*n)++;
			(void) skip_literal(&p, end, ", ");
		}
		if (*n == 0 || (round == 0 && (pairs = malloc(*n * sizeof(Pair))) == NULL))
			return NULL;
	}
	return pairs;
}

bool
tk_append_hstore(TkBuffer *out, const TkType *type, const char *text, size_t len, int style)
{
	const char *p = text;
	const char *end = text + len;
	size_t		start = out->len;
	Pair		pair;
	Pair	   *pairs;
	size_t		n;
	size_t		i;

	tk_buffer_char(out, '{');
	while (p < end)
	{
		if ((p > text && !skip_literal(&p, end, ", ")) || !parse_pair(&p, end, &pair))
			return false;
		append_pair(out, &pair, out->len == start + 1, style & TK_STYLE_INNER);
	}
	tk_buffer_char(out, '}');
	if ((style & TK_STYLE_INNER) == 0)
		return true;

	/* Once more, in Debezium's order */
	pairs = collect_pairs(text, end, &n);
	if (pairs == NULL)
	{
		out->failed = out->failed || n > 0;
		return true;
	}
	sort_like_java(pairs, n);
	out->len = start;
	tk_buffer_char(out, '{');
	for (i = 0; i < n; i++)
		append_pair(out, &pairs[i], i == 0, style);
	tk_buffer_char(out, '}');
	free(pairs);
	return true;
}
